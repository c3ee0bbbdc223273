"""Keys of Lambda's own settings that SCAR lacks: disk, concurrency, encryption, logs, traces, tags.

Names and limits are those of AWS's API (CreateFunction, PutFunctionConcurrency, TagResource).
"""

from __future__ import annotations

from dataclasses import dataclass

from fdl.model import (
    STORAGE_MIB_MAX,
    STORAGE_MIB_MIN,
    TAG_NAMES_CHARACTERS_MAX,
    TAGS_MAX,
    Logging,
)
from fdl.schema.scalars import Choice, Integer, Text
from fdl.schema.schema import Block, Key, MapOf, Reading, Schema
from fdl.text.nodes import Node

#: More than any account has; the account's own quota is AWS's to check.
_CONCURRENCY_MAX = 1_000_000
#: What every service that takes tags accepts.
_TAG_CHARACTERS = r"[A-Za-z0-9_.:/=+@-]"
_TAG_VALUE = Text(
    pattern=r"[A-Za-z0-9_.:/=+@ -]{0,256}",
    what="the value of a tag (letters, digits, spaces and _.:/=+-@, up to 256)",
    short="a text",
    empty=True,
)
_TAG_MAP = MapOf(
    item=_TAG_VALUE,
    key_pattern=rf"(?!(?i:aws|orchgpu):|createdby$){_TAG_CHARACTERS}{{1,128}}",
    key_what="the name of a tag (letters, digits and _.:/=+-@, up to 128; not aws:…, orchgpu:…"
    " or createdby)",
)


@dataclass(frozen=True, slots=True)
class _Tags:
    """Tags by name, no more than the services take beside our own."""

    def read(self, node: Node, path: str, reading: Reading) -> dict[str, str]:
        tags = dict(_TAG_MAP.read(node, path, reading))
        if len(tags) > TAGS_MAX:
            raise reading.error(node, path, f"more than {TAGS_MAX} tags; AWS takes 50 in all")
        if len(" ".join(tags)) > TAG_NAMES_CHARACTERS_MAX:
            message = f"the names of the tags have more than {TAG_NAMES_CHARACTERS_MAX} characters"
            raise reading.error(node, path, f"{message} together, spaces between them included")
        return tags

    def describe(self) -> str:
        return "a mapping: a text"

    def schema(self) -> Schema:
        return {**_TAG_MAP.schema(), "maxProperties": TAGS_MAX}


ROLE = Text(
    pattern=r"arn:aws[a-z-]*:iam::\d{12}:role/\S+",
    what="the ARN of a role (arn:aws:iam::<12 digits>:role/<name>)",
    short="an ARN",
)
KMS_KEY = Text(
    pattern=r"arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/[A-Za-z0-9-]+",
    what="the ARN of a KMS key (arn:aws:kms:REGION:<12 digits>:key/ID)",
    short="an ARN",
)
ACCOUNT = Text(pattern=r"\d{12}", what="an AWS account (12 digits, in quotes)", short="12 digits")

_LOGGING = Block(
    into=Logging,
    keys={
        "format": Key(
            reader=Choice(("Text", "JSON")), about="Form of the function's log in CloudWatch."
        ),
        "level": Key(
            reader=Choice(("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")),
            about="With `format: JSON`: lower levels of the runner and script are not stored.",
            default="INFO",
        ),
        "system_level": Key(
            reader=Choice(("DEBUG", "INFO", "WARN")),
            about="With `format: JSON`: the same for Lambda's own lines.",
            default="INFO",
        ),
        "group": Key(
            reader=Text(
                pattern=r"(?!aws/)[A-Za-z0-9_./#-]{1,512}",
                what="the name of a log group (letters, digits and _./#-, up to 512)",
                short="a log group",
            ),
            about="Log group of the function; several functions may share one.",
            default="/aws/lambda/<name>",
        ),
    },
)

AWS_KEYS = {
    "ephemeral_storage": Key(
        reader=Integer(low=STORAGE_MIB_MIN, high=STORAGE_MIB_MAX, unit="MB"),
        to="ephemeral_storage_mib",
        about="Size of the function's /tmp, where the input, the outputs and the script's own"
        " files lie.",
    ),
    "reserved_concurrency": Key(
        reader=Integer(low=1, high=_CONCURRENCY_MAX),
        about="Runs that Lambda keeps free for this function, and its limit; other functions of"
        " the account cannot exhaust it. On AWS further events wait 1 s to 5 min, also while runs"
        " are free.",
        default="none: the account's common limit",
    ),
    "kms_key": Key(
        reader=KMS_KEY,
        about="KMS key that encrypts the function's variables; a role of ours may use it.",
        default="AWS's own key",
    ),
    "logging": Key(reader=_LOGGING, about="Form and place of the function's log."),
    "tracing": Key(
        reader=Choice(("PassThrough", "Active")),
        about="X-Ray traces: `Active` samples runs; a role of ours may then send them.",
    ),
    "tags": Key(
        reader=_Tags(),
        about="Tags (of costs, for example) of all that deploy makes for the function, beside"
        " `orchgpu:function`.",
    ),
}

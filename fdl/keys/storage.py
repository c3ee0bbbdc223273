"""Storage in S3: the readers of bucket names and paths, and the entries of `input` and `output`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from corekit.bucket_names import CHARACTERS, broken_rule
from corekit.conditions import BadCondition, check_condition
from fdl.keys.aws import ACCOUNT as ACCOUNT_ID
from fdl.keys.aws import KMS_KEY
from fdl.model import ACCOUNT, REGION, VIAS, Path, Storage
from fdl.schema.scalars import Choice, Flag, Text
from fdl.schema.schema import Block, Key, KindReader, ListOf, Reading
from fdl.text.nodes import Location, Node

#: No longer than the longest key of S3.
_FILTER = Text(pattern=r"(?s).{1,1024}", what="a text of 1 to 1024 characters", short="a string")


_UNKNOWN = f"its placeholders are {ACCOUNT} and {REGION}"


def _bucket_fault(name: str) -> str:
    """Why a name is not one of a bucket, with a valid name that is close to it; "" = it is."""
    if name.startswith("arn:") or name == "s3:":
        why = "write bucket/prefix, without arn: or s3://"
    else:
        # the longest values that the placeholders may get
        sample = name.replace(ACCOUNT, "1" * 12).replace(REGION, "ap-southeast-1")
        why = _UNKNOWN if "{" in sample or "}" in sample else broken_rule(sample)
    close = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")
    hint = f"; write {close!r}" if why == CHARACTERS and not broken_rule(close) else ""
    return f"{name[:70]!r} is not a bucket name: {why}{hint}" if why else ""


@dataclass(frozen=True, slots=True)
class _S3Path(KindReader):
    """`bucket[/prefix…]`, with AWS's rules for bucket names."""

    shown = "`bucket/prefix`"
    accepted = Text().schema()

    def read(self, node: Node, path: str, reading: Reading) -> Path:
        text = Text(what="a path `bucket/prefix`").read(node, path, reading)
        bucket, _, prefix = text.strip("/").partition("/")
        if fault := _bucket_fault(bucket):
            raise reading.error(node, path, fault)
        if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
            raise reading.error(node, path, f"the prefix {prefix!r} has an empty or dotted part")
        if len(prefix.encode()) > 512:
            raise reading.error(node, path, "the prefix is longer than 512 bytes")
        return Path(bucket=bucket, prefix=prefix)


@dataclass(frozen=True, slots=True)
class BucketName(KindReader):
    """The name of a bucket alone."""

    shown = "a bucket"
    accepted = Text().schema()

    def read(self, node: Node, path: str, reading: Reading) -> str:
        name = Text(what="the name of a bucket").read(node, path, reading)
        if fault := _bucket_fault(name):
            raise reading.error(node, path, fault)
        return name


@dataclass(frozen=True, slots=True)
class _Condition(KindReader):
    """A JMESPath expression that is true or false of a job's result."""

    shown = "a JMESPath condition"
    accepted = Text().schema()

    def read(self, node: Node, path: str, reading: Reading) -> str:
        text = Text(what="a JMESPath condition", lines=True).read(node, path, reading)
        try:
            check_condition(text)
        except BadCondition as error:
            at = _within(node, text, error.column, reading)
            raise reading.error_at(at, path, str(error)) from None
        return text


def _within(node: Node, text: str, column: int, reading: Reading) -> Location:
    """The place of a character of a text, where the file has the text as it is; else the node's."""
    line = [*reading.source.text.splitlines(), ""][node.at.line - 1]
    start = line.find(text, node.at.column - 1)
    return node.at if start < 0 else Location(node.at.line, start + column + 1)


STORAGE_KEYS = {
    "storage_provider": Key(
        reader=Text(
            pattern=r"s3(\.[A-Za-z0-9_-]{1,64})?|(minio|onedata)(\.[A-Za-z0-9_-]{1,64})?",
            what="a storage provider: s3, minio or onedata, or one with `.id`; copy objects that"
            " lie elsewhere to S3 and write s3",
            short="`s3`",
        ),
        about="Kind of storage; all storage is in S3, reached by the function's role.",
    ),
    "path": Key(
        reader=_S3Path(),
        required=True,
        about="The bucket and the prefix of keys; an output's key is kept below it. `{account}` and"
        " `{region}` are those of the deploy.",
    ),
    "suffix": Key(
        reader=ListOf(item=_FILTER, one=True),
        to="suffixes",
        about="Only objects whose key ends with one of these. For inputs too.",
    ),
    "prefix": Key(
        reader=ListOf(item=_FILTER, one=True),
        to="prefixes",
        about="Outputs only: files whose path below TMP_OUTPUT_DIR starts with one of these.",
    ),
    "owner": Key(
        reader=ACCOUNT_ID,
        about="Account that owns the bucket, where it is another one; S3 refuses every call to a"
        " bucket that another account owns.",
        default="the account of the deploy",
    ),
    "kms_key": Key(
        reader=KMS_KEY,
        about="KMS key of the bucket's objects, for a role of ours.",
        default="the key of the bucket's default encryption",
    ),
    "each": Key(
        reader=Flag(),
        about="Inputs of a workflow's step only: a job for each file, instead of one for all.",
    ),
    "when": Key(
        reader=_Condition(),
        about="Inputs of a workflow's step only: a JMESPath condition on the result of each job"
        " that writes there (`document.kind == 'photo'`); its files come only if it is true.",
        default="every file",
    ),
    "via": Key(
        reader=Choice(VIAS),
        about="Inputs of functions with jobs: the way of uploads' events, from S3 itself, by a rule"
        " of EventBridge or by a topic of SNS. Deploy makes both on AWS; other clouds use `s3`.",
    ),
}
STORAGE = Block(into=Storage, short="path", keys=STORAGE_KEYS)
STORAGES = ListOf(item=STORAGE)

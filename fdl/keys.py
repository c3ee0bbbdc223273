"""The tables of known keys: SCAR's (research of its own files and parser) and our two blocks.

One table per block; `schema()` of `DOCUMENT` is the JSON Schema for editors. A key that is not here
is refused with a did-you-mean; `x-…` is free.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from fdl.model import (
    MIDDLEWARES,
    Compute,
    Container,
    Deployment,
    Document,
    FileSystem,
    Function,
    Functions,
    Gpu,
    Iam,
    Job,
    Lambda,
    Path,
    Queue,
    Storage,
    Vpc,
)  # fmt: skip
from fdl.nodes import Mapping, Node, Scalar, Sequence, Source
from fdl.schema import (
    Block,
    Choice,
    Duration,
    Flag,
    Key,
    ListOf,
    MapOf,
    Memory,
    Only,
    Percent,
    Plain,
    Reader,
    Reading,
    Text,
    Whole,
)  # fmt: skip

_BUCKET = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_TEXT = Text()
_VARIABLES = MapOf(
    item=Text(empty=True),
    key_pattern=r"[A-Za-z_][A-Za-z0-9_]*",
    key_what="the name of a variable (letters, digits and _, not starting with a digit)",
)
#: Relative and inside the file's directory; an absolute path is the user's own business.
_FILE = Text(pattern=r"(?!-)[^\n\r]{1,1024}", what="the path of a file")
_QUEUE = Text(
    pattern=r"[A-Za-z0-9_-]{1,80}",
    what="the name of a standard SQS queue (letters, digits, - and _, up to 80)",
)


@dataclass(frozen=True, slots=True)
class _S3Path:
    """`bucket[/prefix…]`, with AWS's rules for bucket names."""

    def read(self, node: Node, path: str, reading: Reading) -> Path:
        text = Text(what="a path `bucket/prefix`").read(node, path, reading)
        bucket, _, prefix = text.strip("/").partition("/")
        if not _BUCKET.fullmatch(bucket):
            message = (
                f"{bucket[:70]!r} is not a bucket name: 3 to 63 characters of a-z, 0-9, - and .,"
                " starting and ending with a letter or digit"
            )
            raise reading.error(node, path, message)
        if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
            raise reading.error(node, path, f"the prefix {prefix!r} has an empty or dotted part")
        if len(prefix.encode()) > 512:
            raise reading.error(node, path, "the prefix is longer than 512 bytes")
        return Path(bucket=bucket, prefix=prefix)

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "description": "bucket or bucket/prefix"}


_STORAGE = Block(
    into=Storage,
    short="path",
    keys={
        "storage_provider": Key(
            reader=Text(
                pattern=r"(s3|minio|onedata|webdav|rucio)(\.[A-Za-z0-9_-]{1,64})?",
                what="a storage provider: s3, minio or onedata, or one with `.id`",
            )
        ),
        "path": Key(reader=_S3Path(), required=True),
        "suffix": Key(reader=ListOf(item=_TEXT, one=True), to="suffixes"),
        "prefix": Key(reader=ListOf(item=_TEXT, one=True), to="prefixes"),
    },
)
_STORAGES = ListOf(item=_STORAGE)
_REGION = Key(reader=Text(pattern=r"[a-z]{2}(-[a-z]+)+-\d", what="the name of an AWS region"))
_PROFILE = Key(reader=_TEXT)
_PLAIN = Key(reader=Plain())

_CONTAINER = Block(
    into=Container,
    keys={
        "image": Key(reader=Text(pattern=r"[A-Za-z0-9][\w./:@-]{0,511}", what="an image")),
        "image_file": Key(reader=_FILE),
        "create_image": Key(reader=Flag()),
        "alpine": Key(reader=Flag()),
        "environment": Key(reader=Only("Variables", _VARIABLES), to="variables"),
        "timeout_threshold": Key(reader=Whole(low=0, high=899, unit="s"), to="timeout_threshold_s"),
    },
)
_DEPLOYMENT = Block(
    into=Deployment,
    keys={
        "bucket": Key(reader=Text(pattern=_BUCKET.pattern, what="a bucket name")),
        "max_payload_size": Key(reader=Whole(low=0, high=2**40)),
        "max_s3_payload_size": Key(reader=Whole(low=0, high=2**40)),
    },
)
_VPC = Block(
    into=Vpc,
    keys={
        "SubnetIds": Key(reader=ListOf(item=_TEXT), to="subnet_ids"),
        "SecurityGroupIds": Key(reader=ListOf(item=_TEXT), to="security_group_ids"),
    },
)
_FILE_SYSTEM = Block(
    into=FileSystem,
    keys={
        "Arn": Key(reader=Text(pattern=r"arn:\S+", what="an ARN"), to="arn", required=True),
        "LocalMountPath": Key(
            reader=Text(pattern=r"/mnt/[\w./-]+", what="a path below /mnt/"),
            to="local_mount_path",
            required=True,
        ),
    },
)
LAMBDA = Block(
    into=Lambda,
    keys={
        "name": Key(
            reader=Text(
                pattern=r"[A-Za-z0-9_-]{1,64}",
                what="a function name (letters, digits, - and _, up to 64)",
            ),
            required=True,
        ),
        "memory": Key(reader=Whole(low=128, high=10240, unit="MB"), to="memory_mib"),
        "timeout": Key(reader=Whole(low=1, high=900, unit="s"), to="timeout_s"),
        "runtime": Key(
            reader=Text(pattern=r"python\d\.\d{1,2}|image", what="python3.x or image")
        ),
        "architectures": Key(reader=ListOf(item=Choice(("x86_64", "arm64")), one=True)),
        "description": Key(
            reader=Text(pattern=r"(?s).{0,256}", what="a text of up to 256 characters", empty=True)
        ),
        "region": _REGION,
        "boto_profile": _PROFILE,
        "execution_mode": Key(reader=Choice(("lambda", "lambda-batch", "batch"))),
        "log_level": Key(reader=Choice(("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG"))),
        "layers": Key(reader=ListOf(item=Text(pattern=r"arn:\S+", what="a layer's ARN"))),
        "environment": Key(reader=Only("Variables", _VARIABLES), to="variables"),
        "init_script": Key(reader=_FILE),
        "run_script": Key(reader=_FILE),
        "container": Key(reader=_CONTAINER),
        "input": Key(reader=_STORAGES),
        "output": Key(reader=_STORAGES),
        "deployment": Key(reader=_DEPLOYMENT),
        "extra_payload": Key(reader=_FILE),
        "vpc": Key(reader=_VPC),
        "file_system": Key(reader=ListOf(item=_FILE_SYSTEM)),
        "supervisor": _PLAIN,
        "asynchronous": Key(reader=Flag()),
        "invocation_type": Key(reader=Choice(("RequestResponse", "Event", "DryRun"))),
        "log_type": Key(reader=Choice(("Tail", "None"))),
        "preheat": Key(reader=Flag()),
    },
)  # fmt: skip

_COMPUTE = Block(
    into=Compute,
    short="guarantee",
    keys={
        "guarantee": Key(reader=Percent(), to="guarantee_pct"),
        "limit": Key(reader=Percent(), to="limit_pct"),
    },
)
GPU = Block(
    into=Gpu,
    keys={
        "count": Key(reader=Whole(low=1, high=64)),
        "memory": Key(reader=Memory(), to="memory_mib"),
        "kinds": Key(reader=ListOf(item=Choice(("cuda", "opencl", "cpu", "vpu")), one=True)),
        "models": Key(reader=ListOf(item=_TEXT, one=True)),
        "compute": Key(reader=_COMPUTE),
        "compute_guarantee": Key(reader=Percent(), to="compute_guarantee_pct"),
        "compute_limit": Key(reader=Percent(), to="compute_limit_pct"),
        "sharing": Key(reader=Choice(("shared", "exclusive"))),
        "placement": Key(reader=Choice(("pack", "spread", "same_host"))),
        "priority": Key(reader=Whole(low=-100, high=100)),
        "tenant": Key(reader=Text(pattern=r"[A-Za-z0-9._-]{1,64}", what="the name of a tenant")),
        "warm_key": Key(reader=Text(pattern=r"[\w.:/@-]{1,128}", what="a warm key")),
        "max_wait": Key(reader=Duration(), to="max_wait_s"),
        "middleware": Key(reader=Choice(MIDDLEWARES)),
    },
)
JOB = Block(
    into=Job,
    keys={
        "input": Key(reader=ListOf(item=_STORAGE, one=True)),
        "intermediate": Key(reader=_STORAGE),
        "queue": Key(
            reader=Block(
                into=Queue,
                short="name",
                keys={
                    "name": Key(reader=_QUEUE),
                    "dead_letter": Key(reader=_QUEUE),
                    "completion": Key(reader=_QUEUE),
                },
            )
        ),
        "attempts": Key(reader=Whole(low=1, high=10), to="attempts_max"),
        "concurrency": Key(reader=Whole(low=1, high=1000), to="concurrency_max"),
        "completion": Key(reader=Choice(("result",))),
    },
)
_IAM = Block(
    into=Iam,
    keys={
        "role": Key(
            reader=Text(
                pattern=r"arn:aws[a-z-]*:iam::\d{12}:role/\S+",
                what="the ARN of a role (arn:aws:iam::<12 digits>:role/<name>)",
            )
        ),
        "boto_profile": _PROFILE,
        "region": _REGION,
    },
)


@dataclass(frozen=True, slots=True)
class _FunctionReader:
    """One element of `functions.aws`; remembers its own path."""

    block: Block

    def read(self, node: Node, path: str, reading: Reading) -> Function:
        value: Function = self.block.read(node, path, reading)
        return replace(value, path=path)

    def schema(self) -> dict[str, Any]:
        return self.block.schema()


_FUNCTION: Reader = _FunctionReader(
    Block(
        into=Function,
        keys={
            "lambda": Key(reader=LAMBDA, to="function", required=True),
            "gpu": Key(reader=GPU, bare=True),
            "job": Key(reader=JOB, bare=True),
            "iam": Key(reader=_IAM),
            "ecr": _PLAIN,
            "cloudwatch": _PLAIN,
            "api_gateway": _PLAIN,
            "s3": _PLAIN,
            "batch": _PLAIN,
        },
    )
)
DOCUMENT = Block(
    into=Document,
    keys={
        "functions": Key(
            required=True,
            reader=Block(
                into=Functions,
                keys={"aws": Key(reader=ListOf(item=_FUNCTION)), "oscar": _PLAIN},
            ),
        ),
        "storage_providers": Key(
            reader=MapOf(item=MapOf(item=Plain()), key_pattern=r"s3|minio|onedata|webdav|rucio",
                         key_what="a storage provider (s3, minio, onedata)"),
        ),
        "scar": _PLAIN,
    },
)  # fmt: skip


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a whole file, for the user's editor."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "SCAR function definition with gpu: and job:",
        **DOCUMENT.schema(),
    }


def fix_old_shapes(source: Source, root: Node) -> None:
    """Refuse older shapes found in the wild, each with the way to write it now."""
    functions = _child(root, "functions")
    if isinstance(functions, Sequence):
        message = "functions: a list is an older shape; write `functions: {aws: [{lambda: …}]}`"
        raise source.error(functions.at, message)
    if isinstance(root, Mapping):
        for entry in root.entries:
            if entry.key == "storages":
                raise source.error(entry.at, "storages: is now `storage_providers: {s3: {id: …}}`")
    if isinstance(functions, Mapping):
        for entry in functions.entries:
            if entry.key not in ("aws", "oscar") and _child(entry.value, "lambda") is not None:
                message = f"{entry.key!r} under functions: write `functions: {{aws: [{{lambda: {{name: {entry.key}, …}}}}]}}`"  # noqa: E501
                raise source.error(entry.at, message)
    aws = _child(functions, "aws")
    for item in aws.items if isinstance(aws, Sequence) else ():
        block = _child(item, "lambda")
        for entry in block.entries if isinstance(block, Mapping) else ():
            if entry.key == "image" and isinstance(entry.value, Scalar):
                message = f"image under lambda is an older shape; write `container: {{image: {entry.value.text}}}`"  # noqa: E501
                raise source.error(entry.at, message)


def _child(node: Node | None, key: str) -> Node | None:
    if not isinstance(node, Mapping):
        return None
    return next((e.value for e in node.entries if e.key == key), None)

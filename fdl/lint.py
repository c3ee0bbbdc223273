"""What is wrong or suspicious in a document that parsed: notes with severity and place.

An ERROR stops a deploy, a WARNING is shown by it, a NOTE only by `fdl validate`. Facts about files
come from outside (`FileFacts`); what only matters on AWS, or only beside it, is asked when the
`Place` is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations, product

from fdl.desired import variables_of
from fdl.model import RETIRED_RUNTIMES, Document, Function, Storage
from fdl.nodes import Location
from fdl.resources import Place

#: Lambda's quota for all names and values together.
ENVIRONMENT_BYTES_MAX = 4096
_SECRET_NAME = re.compile(r"(?i)(secret|passw|token|private_?key|api_?key|access_?key|credential)")
_SECRET_VALUE = re.compile(r"\b(AKIA|ASIA)[0-9A-Z]{16}\b|-----BEGIN [A-Z ]*PRIVATE KEY-----")
#: Lambda's own names; CreateFunction refuses some of them and overwrites the others.
_RESERVED_NAME = re.compile(r"AWS_|LAMBDA_|_HANDLER$|ORCHGPU_")
_OUR_NAME = re.compile(r"ORCHGPU_")
_ECR_IMAGE = re.compile(r"\d{12}\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com(\.cn)?/.+")


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"  #: how it is, and nothing to do about it


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One finding."""

    severity: Severity
    path: str  #: of the key it is about
    at: Location
    message: str

    def text(self, file: str) -> str:
        """`file:line:column: severity: path: message`."""
        return (
            f"{file}:{self.at.line}:{self.at.column}: {self.severity}: {self.path}: {self.message}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What the caller found where a path of the document points."""

    exists: bool = True
    folder: bool = False
    executable: bool = True
    first_line: bytes = b""  #: with its line end
    crlf: bool = False  #: some line ends in CR LF


Finding = tuple[Severity, str, str]
_E, _W = Severity.ERROR, Severity.WARNING


def lint(
    document: Document,
    *,
    files: Mapping[str, FileFacts] | None = None,
    place: Place | None = None,
) -> tuple[Note, ...]:
    """All findings, in the order of the file. Without `files` no file is judged."""
    findings = [*_document(document), *_between(document.functions.aws)]
    for function in document.functions.aws:
        findings += _plain_keys(function)
        findings += _storages(function)
        findings += _variables(function)
        findings += _code(function)
        if place is not None:
            findings += _at_place(function, place)
        if files is not None:
            findings += _files(function, files)
    notes = [
        Note(severity=severity, path=path, at=document.location(path), message=message)
        for severity, path, message in findings
    ]
    return tuple(sorted(notes, key=lambda note: note.at))


def _document(document: Document) -> Iterator[Finding]:
    if not document.functions.aws:
        yield _E, "functions", "there is no function under functions.aws"
    if document.functions.oscar is not None:
        yield _W, "functions.oscar", "OSCAR services are not deployed by this program"
    for provider, entries in document.storage_providers.items():
        for name, entry in entries.items():
            keys = entry if isinstance(entry, Mapping) else {}
            if any(_SECRET_NAME.search(key) for key in keys):
                path = f"storage_providers.{provider}.{name}"
                yield _W, path, "credentials in clear; they are not used, and better not here"


def _between(functions: tuple[Function, ...]) -> Iterator[Finding]:
    for left, right in combinations(functions, 2):
        if left.name == right.name:
            yield _E, f"{right.path}.lambda.name", f"{right.name!r} is declared twice"
        if left.lends and right.lends:
            for queue in right.queues:
                if queue in left.queues:
                    yield _E, f"{right.path}.job.queue", f"{left.name} uses the queue {queue!r} too"
        for mine, theirs in product(_triggers(right), _triggers(left)):
            if _overlap(mine[1], theirs[1]):
                message = f"{left.name} is triggered by objects there too; S3 allows one rule"
                yield _E, mine[0], message
    for function in functions:
        if function.lends:
            yield from _intermediate(function, functions)
    yield from _cycles(functions)


def _triggers(function: Function) -> list[tuple[str, Storage]]:
    job = function.job is not None and bool(function.job.input)
    path = f"{function.path}.job.input" if job else f"{function.path}.lambda.input"
    return [(f"{path}[{i}]", storage) for i, storage in enumerate(function.user_input)]


def _overlap(left: Storage, right: Storage) -> bool:
    """Whether one new object may match both."""
    prefixes = (left.path.key_prefix, right.path.key_prefix)
    suffixes = [
        a.endswith(b) or b.endswith(a)
        for a, b in product(left.suffixes or ("",), right.suffixes or ("",))
    ]
    same = left.path.bucket == right.path.bucket
    nested = prefixes[0].startswith(prefixes[1]) or prefixes[1].startswith(prefixes[0])
    return same and nested and any(suffixes)


def _intermediate(function: Function, functions: tuple[Function, ...]) -> Iterator[Finding]:
    place, path = function.intermediate, f"{function.path}.job.intermediate"
    for other in functions:
        used = {s.path.bucket for s in (*other.user_input, *other.function.output)}
        if other is not function and other.lends:
            used.add(other.intermediate.bucket)
        if place.bucket in used:
            whose = "this function" if other is function else other.name
            message = (
                f"the bucket {place.bucket!r} is used by {whose} too; envelopes need their own"
            )
            yield _E, path, message
    if place.prefix:
        yield _W, path, f"the prefix {place.prefix!r} is not used; envelopes have keys of their own"
    declared = function.job.intermediate if function.job is not None else None
    job_input = function.job is not None and bool(function.job.input)
    triggers = function.function.input if declared is not None and job_input else ()
    if declared is not None and triggers and triggers[0].path != declared.path:
        message = "with job.input this is the intermediate place, but job.intermediate differs"
        yield _E, f"{function.path}.lambda.input", message


def _cycles(functions: tuple[Function, ...]) -> Iterator[Finding]:
    """Outputs that lead back to the function's own input, directly or through others."""
    follows = {
        i: [
            j
            for j, other in enumerate(functions)
            if any(_overlap(o, s) for o, s in product(function.function.output, other.user_input))
        ]
        for i, function in enumerate(functions)
    }
    for start, function in enumerate(functions):
        seen: list[int] = []
        front = list(follows[start])
        while front:
            index = front.pop(0)
            if index not in seen:
                seen.append(index)
                front += follows[index]
        if start in seen:
            through = [
                functions[i].name for i in seen if i != start and start in _reach(follows, i)
            ]
            way = f" through {', '.join(through)}" if through else ""
            message = f"what it writes triggers {function.name} again{way}; change a prefix"
            yield _E, f"{function.path}.lambda.output", message


def _reach(follows: Mapping[int, list[int]], start: int) -> list[int]:
    seen: list[int] = []
    front = list(follows[start])
    while front:
        index = front.pop()
        if index not in seen:
            seen.append(index)
            front += follows[index]
    return seen


def _plain_keys(function: Function) -> Iterator[Finding]:
    path, declared = function.path, function.function
    if declared.execution_mode != "lambda":
        message = f"{declared.execution_mode!r} is not done here; the function runs in Lambda only"
        yield _W, f"{path}.lambda.execution_mode", message
    if function.batch is not None:
        flag = function.batch.get("enable_gpu") if isinstance(function.batch, Mapping) else None
        wants = str(flag).lower() in ("true", "yes", "on") and function.gpu is None
        hint = "; for a GPU write `gpu: {count: 1}` beside lambda" if wants else ""
        yield _W, f"{path}.batch", f"AWS Batch is not used{hint}"
    if function.api_gateway is not None:
        yield _W, f"{path}.api_gateway", "no API is created"
    if function.cloudwatch is not None:
        yield _W, f"{path}.cloudwatch", "the log retention is not set"
    if declared.runtime in RETIRED_RUNTIMES:
        message = f"{declared.runtime} is retired by AWS; a current Python is used"
        yield _W, f"{path}.lambda.runtime", message
    if declared.run_script is not None:
        message = "run_script is not stored in the function; init_script is"
        yield _W, f"{path}.lambda.run_script", message
    if declared.deployment.bucket is not None:
        message = "not used: a large package goes through the state bucket"
        yield _W, f"{path}.lambda.deployment.bucket", message
    if declared.preheat:
        yield _W, f"{path}.lambda.preheat", "the function is not warmed up"
    if declared.container.timeout_threshold_s >= declared.timeout_s:
        message = f"leaves the script no time: lambda.timeout is {declared.timeout_s} s"
        yield _E, f"{path}.lambda.container.timeout_threshold", message
    if declared.file_system and not declared.vpc.subnet_ids:
        yield _E, f"{path}.lambda.file_system", "a file system needs vpc.SubnetIds"


def _storages(function: Function) -> Iterator[Finding]:
    declared = function.function
    lists = [
        ("lambda.input", declared.input),
        ("lambda.output", declared.output),
        ("job.input", function.job.input if function.job is not None else ()),
    ]
    for name, storages in lists:
        for index, storage in enumerate(storages):
            path = f"{function.path}.{name}[{index}]"
            if storage.storage_provider not in ("s3", "s3.default"):
                message = f"{storage.storage_provider!r} is not served yet; only s3 by the role is"
                yield _E, f"{path}.storage_provider", message
            if storage.prefixes and name != "lambda.output":
                yield _E, f"{path}.prefix", "prefix filters outputs only; write it into path"
    if function.lends and len(function.user_input) != 1:
        message = f"needs exactly one input, has {len(function.user_input)}"
        yield _E, f"{function.path}.job.input", message
    if not function.lends and not function.user_input:
        yield _W, f"{function.path}.lambda", "no input: nothing triggers this function"
    if not declared.output:
        yield _W, f"{function.path}.lambda", "no output: files the script writes are dropped"


def _variables(function: Function) -> Iterator[Finding]:
    declared = function.function
    both = (
        ("lambda.environment", declared.variables, _RESERVED_NAME),
        ("lambda.container.environment", declared.container.variables, _OUR_NAME),
    )
    for block, variables, reserved in both:
        path = f"{function.path}.{block}.Variables"
        for name, value in variables.items():
            if value and (_SECRET_NAME.search(name) or _SECRET_VALUE.search(value)):
                message = "looks like a secret in clear; give the role access to a secret store"
                yield _W, f"{path}.{name}", message
            if reserved.match(name):
                yield _E, f"{path}.{name}", "this name is reserved"
    size = sum(len(k.encode()) + len(v.encode()) for k, v in variables_of(function).items())
    if size > ENVIRONMENT_BYTES_MAX:
        message = f"{size} bytes with our own; Lambda allows {ENVIRONMENT_BYTES_MAX}"
        yield _E, f"{function.path}.lambda.environment", message


def _code(function: Function) -> Iterator[Finding]:
    declared, path = function.function, f"{function.path}.lambda"
    if declared.runtime == "image" and declared.container.image is None:
        yield _E, f"{path}.runtime", "'image' needs container.image"
    if declared.init_script is None:
        what = "an image without a script" if declared.container.image is not None else "no script"
        message = f"{what}: nothing says what to run; add init_script"
        yield _E, f"{path}.init_script", message
    if declared.container.image_file is not None:
        message = "images from files are not unpacked; push it and name it in container.image"
        yield _E, f"{path}.container.image_file", message
    if declared.architectures == ("arm64",) and declared.runtime != "image":
        yield _W, f"{path}.architectures", "arm64 works as far as your script does"


def _at_place(function: Function, place: Place) -> Iterator[Finding]:
    declared, image = function.function, function.function.container.image
    if place.local:
        return
    if function.iam.role is None:
        yield _E, f"{function.path}.iam.role", "AWS needs the ARN of the function's role"
    if declared.runtime == "image" and image is not None and not _ECR_IMAGE.fullmatch(image):
        yield _E, f"{function.path}.lambda.container.image", "Lambda takes images from ECR only"
    if declared.runtime != "image" and image is not None:
        message = "a zip function cannot run in an image (no udocker here); write runtime: image"
        yield _E, f"{function.path}.lambda.container.image", message
    if function.lends and not declared.vpc.subnet_ids:
        message = "no vpc: GPU hosts with private addresses cannot be reached"
        yield _W, f"{function.path}.lambda", message


def _files(function: Function, files: Mapping[str, FileFacts]) -> Iterator[Finding]:
    script, extra = function.function.init_script, function.function.extra_payload
    path = f"{function.path}.lambda.init_script"
    if script is not None:
        facts = files.get(script, FileFacts(exists=False))
        if not facts.exists or facts.folder:
            why = "is a folder" if facts.exists else "does not exist"
            yield _E, path, f"{script!r} {why} (paths start at this file's folder)"
            return
        if facts.first_line.startswith(b"#!") and facts.first_line.endswith(b"\r\n"):
            yield _E, path, f"{script!r} has Windows line ends: its shebang names no program"
        elif facts.crlf:
            yield _W, path, f"{script!r} has Windows line ends"
        if not facts.first_line.startswith((b"#!", b"\x7fELF")):
            yield _W, path, f"{script!r} has no shebang; /bin/sh will run it"
        if not facts.executable:
            yield Severity.NOTE, path, f"{script!r} is not executable; the package makes it so"
    if extra is not None:
        facts = files.get(extra, FileFacts(exists=False))
        if not facts.exists or not facts.folder:
            message = f"{extra!r} is not a folder (paths start at this file's folder)"
            yield _E, f"{function.path}.lambda.extra_payload", message

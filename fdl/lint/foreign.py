"""Errors of `completion: object`, for functions whose code our runner does not run."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fdl.diagnostics import Finding, Severity
from fdl.graph.graph import overlap
from fdl.model import Function, Path, Storage

#: Placeholders of a key's pattern; `orchgpu.core.target` fills them in.
WORDS = ("{job}", "{key}", "{name}", "{stem}")
_BRACES = re.compile(r"\{[^{}]*\}?|\}")
_E, _W = Severity.ERROR, Severity.WARNING


def foreign(function: Function, others: tuple[Function, ...]) -> Iterator[Finding]:
    """Findings about one function's `completion` and `object`."""
    job = function.job
    if job is None:
        return
    path = f"{function.path}.job"
    if job.object is None:
        if function.foreign:
            message = "needs job.object: the one key whose change ends a job"
            yield _E, f"{path}.completion", message
        return
    if not function.foreign:
        yield _E, f"{path}.object", "has no effect without completion: object"
        return
    if job.start == "invoke":
        message = "code that our runner does not run would run twice: leave it to the event"
        yield _E, f"{path}.start", message
    yield from _code(function)
    yield from _pattern(f"{path}.object", job.object)
    place = Storage(path=Path(bucket=job.object.bucket, prefix=_fixed(job.object)))
    for other in others:
        if any(overlap(place, storage) for storage in other.user_input):
            message = f"objects there start {other.name}; S3 notifies only one: change a key"
            yield _E, f"{path}.object", message
    if not any(_below(job.object, output) for output in function.function.output):
        yield _W, f"{path}.object", "no output of the function lies there"


def _code(function: Function) -> Iterator[Finding]:
    if function.function.init_script is not None and function.image is None:
        message = "our runner runs init_script and commits a result: write completion: result"
        yield _E, f"{function.path}.job.completion", message


def _pattern(path: str, pattern: Path) -> Iterator[Finding]:
    found = _BRACES.findall(pattern.prefix)
    if not found:
        message = f"every job would end with the same object: put one of {', '.join(WORDS)} into it"
        yield _E, path, message
    for word in found:
        if word not in WORDS:
            yield _E, path, f"{word} is not one of {', '.join(WORDS)}"
    if found and "{job}" not in found:
        message = "jobs of inputs with equal names share a key; {job} in it makes keys unique"
        yield Severity.NOTE, path, message


def _fixed(pattern: Path) -> str:
    """The folders before the first word."""
    return pattern.prefix.partition("{")[0].rpartition("/")[0]


def _below(pattern: Path, output: Storage) -> bool:
    return pattern.bucket == output.path.bucket and pattern.prefix.startswith(
        output.path.key_prefix
    )

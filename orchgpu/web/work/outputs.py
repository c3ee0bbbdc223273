"""The output files of a job, and whether a browser may show one instead of storing it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from contract.result import Result
from corekit.errors import AppError, ErrorCode
from corekit.values import Value

#: A larger file is a download; the whole is read into memory either way, a few at a time.
PREVIEW_BYTES_MAX = 4 * 2**20
#: The most bytes of an output over the console; `orchgpu get` fetches larger ones.
BYTES_MAX = 256 * 2**20

#: Endings of files that a browser shows as pictures. Not SVG: it may hold scripts.
IMAGES: Mapping[str, str] = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".bmp": "image/bmp",
}
#: Endings of files that it shows as text, whatever their content.
TEXTS = frozenset(
    {
        *(".txt", ".csv", ".tsv", ".json", ".jsonl", ".log", ".md", ".yaml", ".yml", ".fasta"),
        *(".fa", ".py", ".js", ".xml", ".html", ".htm", ".svg"),
    }
)
_TEXT_TYPE = "text/plain; charset=utf-8"
_OTHER_TYPE = "application/octet-stream"


class OutputEntry(Value):
    """One output file of a job."""

    name: str
    bucket: str
    key: str
    bytes: int
    type: str
    preview: str | None  #: `text` or `image`


def outputs_of(result: Result | None) -> tuple[OutputEntry, ...]:
    """The output files of a result, in its order; none without a result."""
    files = [] if result is None else result.files
    return tuple(_entry(one) for one in files)


def _entry(file: Mapping[str, object]) -> OutputEntry:
    key, size = str(file.get("key", "")), file.get("size")
    count = size if isinstance(size, int) else 0
    kind, preview = _kind_of(key)
    return OutputEntry(
        name=PurePosixPath(key).name,
        bucket=str(file.get("bucket", "")),
        key=key,
        bytes=count,
        type=kind,
        preview=preview if count <= PREVIEW_BYTES_MAX else None,
    )


def _kind_of(key: str) -> tuple[str, str | None]:
    suffix = PurePosixPath(key).suffix.lower()
    if suffix in IMAGES:
        return IMAGES[suffix], "image"
    return (_TEXT_TYPE, "text") if suffix in TEXTS else (_OTHER_TYPE, None)


def output_at(outputs: tuple[OutputEntry, ...], number: str) -> OutputEntry:
    """The output of that number, from 0. Raises NOT_FOUND."""
    at = int(number) if number.isascii() and number.isdigit() and len(number) < 6 else -1
    if not 0 <= at < len(outputs):
        raise AppError(ErrorCode.NOT_FOUND, f"the job has no output {number!r:.20}")
    return outputs[at]

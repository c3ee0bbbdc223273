"""Locations of objects (`s3://bucket/prefix`, or the outputs of a function), and inputs of a run.

Inputs are files, folders, objects, and prefixes with everything below them.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import Value
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.files import PUT_BYTES_MAX, check_file

SCHEME = "s3://"


class At(Value):
    """A part of a bucket."""

    bucket: str
    prefix: str = ""  #: the beginning of keys

    @property
    def url(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.prefix}"

    def means(self, key: str) -> bool:
        """True for a key that is meant: in a folder all but markers, otherwise the named object."""
        if key.endswith("/"):
            return False
        prefix = self.prefix
        return prefix in ("", key) or prefix.endswith("/") or key.startswith(prefix + "/")


def parse_url(text: str) -> At:
    """`s3://bucket[/prefix]`. Raises INVALID."""
    bucket, _, prefix = text.removeprefix(SCHEME).partition("/")
    if not text.startswith(SCHEME) or not bucket:
        raise invalid(
            f"{text!r} is not a location; write s3://bucket/prefix or the name of a function"
        )
    return At(bucket=bucket, prefix=prefix)


def file_below(folder: Path, key: str) -> Path:
    """The file of an object: always below the folder, whatever the key is."""
    inside = [part for part in key.split("/") if part not in ("", ".", "..")]
    if not inside:
        raise invalid(f"the key {key!r} names no file")
    return folder.joinpath(*inside)


def refuse_same_names(names: Iterable[str]) -> None:
    """Raise INVALID for two files that would become one object."""
    for name, times in Counter(names).items():
        if times > 1:
            raise invalid(f"{times} of the files are named {name!r}: each would replace the other")


def outputs_of(cloud: JobCloud, place: str) -> list[At]:
    """The location itself, or those of a function's outputs."""
    if place.startswith(SCHEME):
        return [parse_url(place)]
    direct = cloud.direct(place)
    if direct is not None:
        places = cloud.direct_outputs(direct)
    else:
        places = [(one.bucket, one.prefix) for one in cloud.function(place).outputs]
    found = dict.fromkeys((bucket, prefix + "/" if prefix else "") for bucket, prefix in places)
    return [At(bucket=bucket, prefix=prefix) for bucket, prefix in found]


#: Inputs of one command: more are hardly intended, and `orchgpu jobs` lists no more at once.
FILES_MAX = 1000


@dataclass(frozen=True, slots=True)
class Input:
    """One input: a local file, or an object."""

    path: Path
    at: At | None = None  #: the object's location; then `path` is only its name

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.name

    @contextmanager
    def file(self, cloud: JobCloud) -> Iterator[Path]:
        """The file; an object is fetched into a temporary folder until the block ends."""
        if self.at is None:
            yield self.path
            return
        with tempfile.TemporaryDirectory(prefix="orchgpu-run-") as folder:
            fetched = Path(folder) / self.name
            cloud.download(self.at.bucket, self.at.prefix, fetched)
            yield fetched


@dataclass(frozen=True, slots=True)
class Inputs:
    """All inputs of one command."""

    found: list[Input]
    skipped: int  #: files below folders and prefixes that the function would ignore


def find_inputs(cloud: JobCloud, given: Sequence[str], suffixes: tuple[str, ...]) -> Inputs:
    """The inputs that were named, in order.

    The function must take a file or object that is named itself; below a folder or a prefix, files
    that it does not take are skipped. Raises INVALID for an impossible input, and for more than
    `FILES_MAX`; NOT_FOUND where there is none.
    """
    found: list[Input] = []
    skipped = 0
    for one in given:
        whole, below = _objects(cloud, one) if one.startswith(SCHEME) else _files(Path(one))
        taken = []
        for source in below:
            taken += [source] if _takes(source.name, suffixes) else []
            skipped += not _takes(source.name, suffixes)
            if len(found) + len(taken) > FILES_MAX:
                raise invalid(f"{one!r}: more than {FILES_MAX} files at once; name fewer")
        if whole and not taken:
            wanted = ", ".join(suffixes)
            raise invalid(f"{one}: the function takes only {wanted} and would ignore it")
        if not taken:
            raise _no_file(one, suffixes)
        found += taken
    return Inputs(found, skipped)


def _takes(name: str, suffixes: tuple[str, ...]) -> bool:
    return not suffixes or name.endswith(suffixes)


def _no_file(one: str, suffixes: tuple[str, ...]) -> AppError:
    kind = f" that ends in {' or '.join(suffixes)}" if suffixes else ""
    return AppError(ErrorCode.NOT_FOUND, f"below {one!r} there is no file{kind}")


def _files(given: Path) -> tuple[bool, Iterable[Input]]:
    if not given.is_dir():
        check_file(given)
        return True, [Input(given)]
    return False, _below(given)


def _below(folder: Path) -> Iterator[Input]:
    """Files at any depth, by path, without hidden ones."""
    for file in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
        if file.is_file() and not hidden:
            check_file(file)
            yield Input(file)


def _objects(cloud: JobCloud, given: str) -> tuple[bool, Iterable[Input]]:
    at = parse_url(given)
    found = [one for one in cloud.objects(at.bucket, at.prefix) if at.means(one.key)]
    if not found:
        raise AppError(ErrorCode.NOT_FOUND, f"there is no object {given}")
    for one in found:
        if one.size > PUT_BYTES_MAX:
            raise invalid(f"{one.key!r} has {one.size} bytes; S3 takes {PUT_BYTES_MAX}")
    whole = [one.key for one in found] == [at.prefix]
    return whole, [
        Input(Path(one.key.rpartition("/")[2]), At(bucket=at.bucket, prefix=one.key))
        for one in found
    ]

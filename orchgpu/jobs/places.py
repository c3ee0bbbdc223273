"""Locations of objects: `s3://bucket/prefix`, or the outputs of a function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from corekit.errors import invalid
from corekit.values import Value
from orchgpu.jobs.cloud import JobCloud

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

"""The names of images: always with their content's digest, so that a name means one image. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from corekit.errors import invalid

_REGISTRY = re.compile(r"[a-z0-9][\w.:/-]{0,400}@sha256:[0-9a-f]{64}")
_ARCHIVE = re.compile(
    r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,62})/(?P<key>[^#\s]{1,512})#sha256:(?P<sha256>[0-9a-f]{64})"
)


@dataclass(frozen=True, slots=True)
class Archive:
    """A tar in S3, of `podman save` or `docker save`, with exactly one image."""

    bucket: str
    key: str
    sha256: str  #: of the whole file, hex


def archive_of(reference: str) -> Archive | None:
    """The archive that a reference names; None for an image of a registry.

    Raises INVALID for a text that is neither `name@sha256:…` nor `s3://bucket/key.tar#sha256:…`.
    """
    if found := _ARCHIVE.fullmatch(reference):
        return Archive(**found.groupdict())
    if _REGISTRY.fullmatch(reference):
        return None
    raise invalid(
        f"image {reference!r}: write name@sha256:… with 64 hex digits, or"
        " s3://bucket/key.tar#sha256:… for an archive"
    )

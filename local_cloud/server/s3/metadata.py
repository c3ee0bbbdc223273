"""Attributes of an object in a request's headers and in an answer's: metadata, checksums."""

from __future__ import annotations

import re
from collections.abc import Mapping

from local_cloud.model.errors import refused
from local_cloud.model.s3.checksums import FULL_OBJECT
from local_cloud.model.s3.object_version import NULL_VERSION, Attributes, ObjectVersion

META = "x-amz-meta-"
VERSION_HEADER = "x-amz-version-id"
#: stored with an object and returned by GET and HEAD
_STORED_HEADERS = (
    "Cache-Control",
    "Content-Disposition",
    "Content-Encoding",
    "Content-Language",
    "Expires",
    "x-amz-storage-class",
    "x-amz-website-redirect-location",
)
_AWS_CHUNKED = re.compile(r"(?i)\baws-chunked\b,?")
_METADATA_BYTES_MAX = 2048  #: of names and values, in UTF-8 (S3 user guide, "object metadata")


def attributes_of(given: Mapping[str, str], checksums: Mapping[str, str]) -> Attributes:
    """The attributes in headers. Raises MetadataTooLarge."""
    headers = {name: _text(given[name]) for name in _STORED_HEADERS if name in given}
    # `aws-chunked` is how the body travels; the rest belongs to the object, as it was sent
    encoding = _AWS_CHUNKED.sub("", headers.pop("Content-Encoding", "")).strip(", ")
    if encoding:
        headers["Content-Encoding"] = encoding
    return Attributes(
        content_type=given.get("Content-Type") or "binary/octet-stream",
        metadata=_metadata(given),
        headers=headers,
        checksums=checksums,
    )


def _metadata(given: Mapping[str, str]) -> dict[str, str]:
    metadata: dict[str, str] = {}
    for header, value in given.items():
        if header.lower().startswith(META):
            name = header.lower().removeprefix(META)
            metadata[name] = (
                f"{metadata[name]},{_text(value)}" if name in metadata else _text(value)
            )
    size = sum(len(name.encode()) + len(value.encode()) for name, value in metadata.items())
    if size > _METADATA_BYTES_MAX:
        raise refused(
            "MetadataTooLarge",
            f"Your metadata has {size} bytes; at most {_METADATA_BYTES_MAX} are allowed",
        )
    return metadata


def _text(value: str) -> str:
    """A header's value; bytes that are not UTF-8 are read as latin-1, as HTTP once had it."""
    data = value.encode("utf-8", "surrogateescape")
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def version_header(version: ObjectVersion) -> dict[str, str]:
    """The version id; nothing for a version that was written without versioning."""
    return {} if version.version_id == NULL_VERSION else {VERSION_HEADER: version.version_id}


def checksum_fields(version: ObjectVersion) -> dict[str, object]:
    """The checksum's elements; empty without one."""
    values = version.attributes.checksums
    kind = version.attributes.checksum_type or FULL_OBJECT
    shown: dict[str, object] = {f"Checksum{n.upper()}": value for n, value in values.items()}
    return {**shown, "ChecksumType": kind} if shown else {}

"""Attributes of an object in a request: headers, metadata, tags; their limits."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable, Mapping

from local_cloud.model.errors import CloudError, refused
from local_cloud.model.s3 import acl
from local_cloud.model.s3.object_version import Attributes
from local_cloud.server.s3.bodies import xml

META = "x-amz-meta-"
#: stored with an object and returned by GET and HEAD
_KEPT = (
    "Cache-Control",
    "Content-Disposition",
    "Content-Encoding",
    "Content-Language",
    "Expires",
    "x-amz-storage-class",
    "x-amz-website-redirect-location",
)
_METADATA_BYTES_MAX = 2048  #: of names and values, in UTF-8 (S3 user guide, "object metadata")
OBJECT_TAGS_MAX, BUCKET_TAGS_MAX = 10, 50
_TAG_KEY_CHARS_MAX, _TAG_VALUE_CHARS_MAX = 128, 256


def attributes_of(given: Mapping[str, str], checksums: Mapping[str, str]) -> Attributes:
    """The attributes in headers, or in the fields of a form; their names in any case.

    Raises MetadataTooLarge, InvalidTag, and as `acl.of_headers`.
    """
    headers = {name: given[name] for name in _KEPT if name in given}
    encoding = _without_aws_chunked(headers.pop("Content-Encoding", ""))
    if encoding:
        headers["Content-Encoding"] = encoding
    return Attributes(
        content_type=given.get("Content-Type") or "binary/octet-stream",
        metadata=_metadata(given),
        headers={name: _text(value) for name, value in headers.items()},
        tags=_header_tags(given),
        checksums=checksums,
        acl=acl.to_text(acl.of_headers(given)),
    )


def _without_aws_chunked(encoding: str) -> str:
    """`aws-chunked` is how the body travels; the rest belongs to the object, as it was sent."""
    if "aws-chunked" not in encoding.lower():
        return encoding
    names = [name.strip() for name in encoding.split(",")]
    return ", ".join(name for name in names if name and name.lower() != "aws-chunked")


def _metadata(given: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for header, value in given.items():
        name = header.lower()
        if name.startswith(META):
            name = name.removeprefix(META)
            found[name] = f"{found[name]},{_text(value)}" if name in found else _text(value)
    size = sum(len(name.encode()) + len(value.encode()) for name, value in found.items())
    if size > _METADATA_BYTES_MAX:
        raise CloudError(
            "MetadataTooLarge",
            400,
            "Your metadata headers exceed the maximum allowed metadata size",
            details={"Size": str(size), "MaxSizeAllowed": str(_METADATA_BYTES_MAX)},
        )
    return found


def _text(value: str) -> str:
    """A header's value; bytes that are not UTF-8 are read as latin-1, as HTTP once had it."""
    data = value.encode("utf-8", "surrogateescape")
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _header_tags(given: Mapping[str, str]) -> dict[str, str]:
    text = given.get("x-amz-tagging", "")
    return checked_tags(urllib.parse.parse_qsl(text, keep_blank_values=True))


def read_tags(body: bytes, tags_max: int = OBJECT_TAGS_MAX) -> dict[str, str]:
    """The tags of a Tagging document. Raises MalformedXML, and as `checked_tags`."""
    root = xml.parse(body, "Tagging")
    pairs = [
        (xml.value(tag, "Key"), xml.value(tag, "Value")) for tag in root.iterfind("TagSet/Tag")
    ]
    return checked_tags(pairs, tags_max)


def checked_tags(
    pairs: Iterable[tuple[str, str]], tags_max: int = OBJECT_TAGS_MAX
) -> dict[str, str]:
    """Tags by key. Raises InvalidTag (a key twice, or too long), BadRequest (too many)."""
    found: dict[str, str] = {}
    for key, value in pairs:
        if key in found:
            raise refused("InvalidTag", "Cannot provide multiple Tags with the same key")
        if not 1 <= len(key) <= _TAG_KEY_CHARS_MAX:
            raise refused("InvalidTag", "The TagKey you have provided is invalid")
        if len(value) > _TAG_VALUE_CHARS_MAX:
            raise refused("InvalidTag", "The TagValue you have provided is invalid")
        found[key] = value
    if len(found) > tags_max:
        raise refused("BadRequest", f"Object tags cannot be greater than {tags_max}")
    return dict(sorted(found.items()))

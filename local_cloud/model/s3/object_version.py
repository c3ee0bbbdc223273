"""One version of one object, and the conditions a request may put on it."""

from __future__ import annotations

from collections.abc import Mapping

from corekit.values import Value, field
from local_cloud.model.errors import CloudError, refused
from local_cloud.model.s3.body import Segment

NULL_VERSION = "null"  #: the version id of everything written without versioning


class Attributes(Value):
    """The attributes that a client gives an object with its bytes."""

    content_type: str = "binary/octet-stream"
    metadata: Mapping[str, str] = field(default_factory=dict)  #: x-amz-meta-…, names in lower case
    headers: Mapping[str, str] = field(default_factory=dict)  #: Cache-Control and the like
    checksums: Mapping[str, str] = field(default_factory=dict)  #: `crc32` → base64
    checksum_type: str = ""  #: FULL_OBJECT or COMPOSITE; empty = FULL_OBJECT


class ObjectVersion(Value):
    """A version as the bucket keeps it; a delete marker has no segments and no etag."""

    key: str
    version_id: str
    etag: str  #: without quotes: md5, or md5-N of a multipart upload
    size: int
    modified_at_s: float
    sequencer: str
    marker: bool = False
    segments: tuple[Segment, ...] = ()
    part_sizes: tuple[int, ...] = ()  #: of a multipart upload
    attributes: Attributes = field(default_factory=Attributes)


class Condition(Value):
    """If-Match and If-None-Match of a write. Empty = none."""

    if_match: str = ""  #: an etag, with or without quotes
    if_none_match: bool = False  #: `*`: only if nothing is there

    def check(self, current: ObjectVersion | None) -> None:
        """Raises PreconditionFailed (412), or NoSuchKey for If-Match on nothing (404)."""
        if self.if_none_match and current is not None:
            raise precondition_failed("If-None-Match")
        if self.if_match:
            if current is None:
                raise no_such_key()
            if not etag_matches(self.if_match, current.etag):
                raise precondition_failed("If-Match")


def etag_matches(wanted: str, etag: str) -> bool:
    """`*`, or a list of etags with or without quotes."""
    names = [name.strip().removeprefix("W/").strip('"') for name in wanted.split(",")]
    return "*" in names or etag in names


def precondition_failed(which: str) -> CloudError:
    return refused("PreconditionFailed", f"A condition of the request does not hold ({which})")


def no_such_key(headers: Mapping[str, str] | None = None) -> CloudError:
    return refused("NoSuchKey", "The specified key does not exist.", headers=headers)

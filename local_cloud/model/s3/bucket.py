"""One S3 bucket: objects and their versions, conditional writes, delete markers, listing.

Sources: S3 user guide, "How S3 Versioning works" and "conditional writes"; strongly consistent.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from corekit.decode import decode, encode
from corekit.ids import IdSource
from corekit.values import Value
from local_cloud.model.errors import refused
from local_cloud.model.recorder import Recorded, Recorder, part
from local_cloud.model.s3.body import BodyStore, Content
from local_cloud.model.s3.multipart import Uploads
from local_cloud.model.s3.object_version import (
    NULL_VERSION,
    Attributes,
    Condition,
    ObjectVersion,
    no_such_key,
)

KEY_BYTES_MAX = 1024  #: of a key in UTF-8
PAGE_MAX = 1000  #: entries of one page, rolled-up prefixes included
_LAST = "\U0010ffff"  #: sorts behind every character


class Deleted(Value):
    """The result of a delete."""

    version_id: str  #: deleted version or new marker; `null` without versioning
    marker: bool  #: a marker was made, or the deleted version was one
    changed: bool  #: False when there was nothing to delete


class KeyPage(Value):
    """One page; `after` starts the next one, None at the end."""

    keys: tuple[str, ...]
    prefixes: tuple[str, ...]
    after: str | None


class VersionPage(Value):
    """One page of ListObjectVersions, newest first for each key."""

    versions: tuple[ObjectVersion, ...]
    prefixes: tuple[str, ...]
    after: tuple[str, str] | None  #: key and version id that end the page


@dataclass(slots=True, kw_only=True)
class Bucket:
    """A bucket and everything in it. Replace `versioning` and `documents` through the setters."""

    name: str
    created_at_s: float
    ids: IdSource
    bodies: BodyStore
    recorder: Recorder
    versioning: str = ""  #: empty, Enabled or Suspended
    location: str = ""  #: the LocationConstraint it was made with; empty = none
    documents: dict[str, str] = field(default_factory=dict)  #: `policy`, `lifecycle`, … as sent
    uploads: Uploads = field(init=False)
    _versions: dict[str, list[ObjectVersion]] = field(default_factory=dict)  #: oldest first
    _keys: list[str] = field(default_factory=list)  #: sorted

    def __post_init__(self) -> None:
        self.uploads = Uploads(self.name, self.ids, self.bodies, self.recorder)

    # --- writing

    def put(
        self,
        now_s: float,
        sequencer: str,
        key: str,
        content: Content,
        attributes: Attributes,
        condition: Condition,
        part_sizes: tuple[int, ...] = (),
    ) -> ObjectVersion:
        """Store a new version; atomic, the last one wins. Raises PreconditionFailed, NoSuchKey."""
        check_key(key)
        condition.check(self.current(key))
        version = ObjectVersion(
            key=key,
            version_id=self._new_version_id(),
            etag=content.md5,
            size=content.size,
            modified_at_s=now_s,
            sequencer=sequencer,
            segments=content.segments,
            part_sizes=part_sizes,
            attributes=attributes,
        )
        self._add(version)
        return version

    def _add(self, version: ObjectVersion, *, record: bool = True) -> None:
        self.bodies.retain(version.segments)
        if version.version_id == NULL_VERSION:  # there is one, wherever it stands among the others
            self._remove(version.key, NULL_VERSION)
        versions = self._versions.get(version.key)
        if versions is None:
            self._versions[version.key] = [version]
            insort(self._keys, version.key)
        else:
            versions.append(version)
        if record:
            self.recorder.put(self._path(version.key, version.version_id), encode(version))

    def _new_version_id(self) -> str:
        if self.versioning != "Enabled":
            return NULL_VERSION
        return f"{self.ids.stream('version').getrandbits(160):032x}"[:32]

    # --- deleting

    def delete(
        self, now_s: float, sequencer: str, key: str, version_id: str = "", if_match: str = ""
    ) -> Deleted:
        """Delete the current version (with versioning: by a marker) or one given version.

        Deleting what does not exist succeeds. Raises PreconditionFailed for `if_match`.
        """
        check_key(key)
        if if_match:
            Condition(if_match=if_match).check(self.current(key))
        if version_id:
            removed = self._remove(key, version_id)
            return Deleted(
                version_id=version_id,
                marker=removed is not None and removed.marker,
                changed=removed is not None,
            )
        if not self.versioning:
            gone = self._remove(key, NULL_VERSION)
            return Deleted(version_id=NULL_VERSION, marker=False, changed=gone is not None)
        marker = ObjectVersion(
            key=key,
            version_id=self._new_version_id(),
            etag="",
            size=0,
            modified_at_s=now_s,
            sequencer=sequencer,
            marker=True,
        )
        self._add(marker)
        return Deleted(version_id=marker.version_id, marker=True, changed=True)

    def _remove(self, key: str, version_id: str) -> ObjectVersion | None:
        versions = self._versions.get(key, [])
        version = next((v for v in versions if v.version_id == version_id), None)
        if version is None:
            return None
        versions.remove(version)
        if not versions:
            del self._versions[key]
            del self._keys[bisect_left(self._keys, key)]
        self.bodies.release(version.segments)
        self.recorder.drop(self._path(key, version_id))
        return version

    # --- reading

    def current(self, key: str) -> ObjectVersion | None:
        """The current version, or None when there is none or it is a delete marker."""
        versions = self._versions.get(key)
        return versions[-1] if versions and not versions[-1].marker else None

    def get(self, key: str, version_id: str = "") -> ObjectVersion:
        """The current or the given version. Raises NoSuchKey, NoSuchVersion, MethodNotAllowed."""
        if not version_id:
            current = self.current(key)
            if current is None:
                raise no_such_key(_marker_headers(self._versions.get(key, ())))
            return current
        for version in self._versions.get(key, ()):
            if version.version_id == version_id:
                if version.marker:
                    raise refused(
                        "MethodNotAllowed",
                        "The version is a delete marker.",
                        headers={**_marker_headers((version,)), "Allow": "DELETE"},
                    )
                return version
        raise refused("NoSuchVersion", "The specified version does not exist.")

    def page(
        self, *, prefix: str = "", delimiter: str = "", after: str = "", limit: int = PAGE_MAX
    ) -> KeyPage:
        """Keys that have a current version, for both forms of ListObjects."""
        return page_of_keys(
            self._keys,
            prefix=prefix,
            delimiter=delimiter,
            after=after,
            limit=limit,
            wanted=lambda key: not self._versions[key][-1].marker,
        )

    def version_page(
        self,
        *,
        prefix: str = "",
        delimiter: str = "",
        after: tuple[str, str] = ("", ""),
        limit: int = PAGE_MAX,
    ) -> VersionPage:
        """Every version and marker; `after` is the key and version id that ended the last page."""
        limit = min(limit, PAGE_MAX)
        versions = self._rest_of_key(*after) if after[1] else []
        keys = page_of_keys(
            self._keys, prefix=prefix, delimiter=delimiter, after=after[0], limit=limit
        )
        for key in keys.keys:
            versions.extend(reversed(self._versions[key]))
        end: tuple[str, str] | None = (keys.after, "") if keys.after is not None else None
        if len(versions) > limit:
            versions = versions[:limit]
            end = (versions[-1].key, versions[-1].version_id)
        return VersionPage(versions=tuple(versions), prefixes=keys.prefixes, after=end)

    def _rest_of_key(self, key: str, version_id: str) -> list[ObjectVersion]:
        newest_first = self._versions.get(key, [])[::-1]
        ids = [v.version_id for v in newest_first]
        return newest_first[ids.index(version_id) + 1 :] if version_id in ids else []

    def is_latest(self, version: ObjectVersion) -> bool:
        """Whether no version and no marker of its key is newer."""
        return self._versions[version.key][-1] is version

    @property
    def empty(self) -> bool:
        """True without any version or marker; only then may the bucket be deleted."""
        return not self._versions

    # --- the bucket as a whole

    def set_versioning(self, status: str) -> None:
        """Enabled or Suspended. Raises MalformedXML for anything else."""
        if status not in ("Enabled", "Suspended"):
            raise refused("MalformedXML", "The XML you provided was not well-formed.")
        self.versioning = status
        self.save()

    def set_document(self, kind: str, text: str | None) -> None:
        """Keep a configuration document as it was sent, or remove it."""
        if text is None:
            self.documents.pop(kind, None)
        else:
            self.documents[kind] = text
        self.save()

    def save(self) -> None:
        """Record the bucket itself, without objects."""
        self.recorder.put(
            f"bucket/{part(self.name)}",
            {
                "created_at_s": self.created_at_s,
                "versioning": self.versioning,
                "location": self.location,
                "documents": self.documents,
            },
        )

    def restore(self, value: Recorded) -> ObjectVersion:
        """Restore a recorded version; call in the order of sequencers."""
        version = decode(ObjectVersion, value)
        self._add(version, record=False)
        return version

    def _path(self, key: str, version_id: str) -> str:
        return f"object/{part(self.name)}/{part(key)}/{version_id}"


def _marker_headers(versions: Sequence[ObjectVersion]) -> dict[str, str]:
    if not versions or not versions[-1].marker:
        return {}
    return {"x-amz-delete-marker": "true", "x-amz-version-id": versions[-1].version_id}


def check_key(key: str) -> None:
    """Raises KeyTooLongError, or InvalidArgument for an empty key."""
    if len(key.encode()) > KEY_BYTES_MAX:
        raise refused("KeyTooLongError", "Your key is too long")
    if not key:
        raise refused("InvalidArgument", "The object key is empty")


# --- listing: in UTF-8 order, by prefix, rolled up at a delimiter, in pages


def page_of_keys(
    keys: Sequence[str],
    *,
    prefix: str = "",
    delimiter: str = "",
    after: str = "",
    limit: int = PAGE_MAX,
    wanted: Callable[[str], bool] = lambda _key: True,
) -> KeyPage:
    """A page of sorted `keys`: those with the prefix, behind `after`, for which `wanted` holds.

    Keys with the delimiter behind the prefix appear once, as their common prefix.
    """
    limit = min(limit, PAGE_MAX)
    shown: list[str] = []
    prefixes: list[str] = []
    last = after
    at = max(bisect_left(keys, prefix), bisect_right(keys, _behind(after, prefix, delimiter)))
    while at < len(keys) and keys[at].startswith(prefix):
        key = keys[at]
        rolled = _rolled_up(key, prefix, delimiter)
        behind = bisect_left(keys, rolled + _LAST, at) if rolled else at + 1
        if rolled and not any(wanted(keys[i]) for i in range(at, behind)):
            at = behind
            continue
        if rolled or wanted(key):
            if len(shown) + len(prefixes) >= limit:
                return KeyPage(keys=tuple(shown), prefixes=tuple(prefixes), after=last)
            (prefixes if rolled else shown).append(rolled or key)
            last = rolled or key
        at = behind
    return KeyPage(keys=tuple(shown), prefixes=tuple(prefixes), after=None)


def _rolled_up(key: str, prefix: str, delimiter: str) -> str:
    """The common prefix that stands for this key, or empty."""
    if not delimiter:
        return ""
    end = key.find(delimiter, len(prefix))
    return key[: end + len(delimiter)] if end >= 0 else ""


def _behind(after: str, prefix: str, delimiter: str) -> str:
    """A page that ended with a common prefix continues after everything below it."""
    return after + _LAST if after and _rolled_up(after, prefix, delimiter) == after else after

"""Multipart uploads of one bucket: parts by number until they become one object or are dropped."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from corekit.decode import decode, encode
from corekit.ids import IdSource
from local_cloud.model.body import BodyStore, Content, Segment
from local_cloud.model.errors import CloudError, refused
from local_cloud.model.object_version import Attributes
from local_cloud.model.recorder import Recorder, part

PARTS_MAX = 10_000
PART_BYTES_MIN = 5 * 2**20  #: every part but the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One uploaded part; uploading the number again replaces it."""

    number: int
    content: Content
    modified_at_s: float


@dataclass(slots=True, kw_only=True)
class Upload:
    """An upload in progress."""

    id: str
    key: str
    attributes: Attributes
    started_at_s: float
    parts: dict[int, Part] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """What the parts of a finished upload add up to."""

    key: str
    etag: str  #: md5 of the parts' md5s, and their number
    size: int
    segments: tuple[Segment, ...]
    part_sizes: tuple[int, ...]
    attributes: Attributes


@dataclass(slots=True)
class Uploads:
    """Every upload of one bucket."""

    bucket: str
    ids: IdSource
    bodies: BodyStore
    recorder: Recorder
    _uploads: dict[str, Upload] = field(default_factory=dict)

    def start(self, now_s: float, key: str, attributes: Attributes) -> Upload:
        """Begin an upload; nothing is visible until it is complete."""
        name = f"{self.ids.stream('upload').getrandbits(160):040x}"
        upload = Upload(id=name, key=key, attributes=attributes, started_at_s=now_s)
        self._uploads[name] = upload
        self.recorder.put(
            self._path(name),
            {"key": key, "started_at_s": now_s, "attributes": encode(attributes)},
        )
        return upload

    def get(self, name: str, key: str) -> Upload:
        """The upload of that id and key. Raises NoSuchUpload."""
        upload = self._uploads.get(name)
        if upload is None or upload.key != key:
            raise CloudError(
                "NoSuchUpload",
                404,
                "The specified upload does not exist. The upload ID may be invalid, or the upload"
                " may have been aborted or completed.",
            )
        return upload

    def put_part(self, now_s: float, upload: Upload, number: int, content: Content) -> Part:
        """Keep a part; raises InvalidArgument for a number outside 1…10,000."""
        if not 1 <= number <= PARTS_MAX:
            raise refused("InvalidArgument", "Part number must be an integer between 1 and 10000")
        made = Part(number=number, content=content, modified_at_s=now_s)
        self.bodies.retain(content.segments)
        replaced = upload.parts.get(number)
        upload.parts[number] = made
        if replaced is not None:
            self.bodies.release(replaced.content.segments)
        self.recorder.put(f"{self._path(upload.id)}/{number}", encode(made))
        return made

    def assemble(self, upload: Upload, wanted: Sequence[tuple[int, str]]) -> Assembled:
        """What completing with these (number, etag) pairs makes; changes nothing yet.

        Raises MalformedXML (none), InvalidPartOrder, InvalidPart, EntityTooSmall.
        """
        if not wanted:
            raise refused("MalformedXML", "You must specify at least one part")
        numbers = [number for number, _ in wanted]
        if any(a >= b for a, b in itertools.pairwise(numbers)):
            raise refused("InvalidPartOrder", "The list of parts was not in ascending order.")
        chosen: list[Part] = []
        for number, etag in wanted:
            made = upload.parts.get(number)
            if made is None or (etag and etag.strip('"') != made.content.md5):
                raise refused(
                    "InvalidPart",
                    f"Part {number} could not be found, or its entity tag does not match.",
                )
            chosen.append(made)
        if any(p.content.size < PART_BYTES_MIN for p in chosen[:-1]):
            raise refused(
                "EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size"
            )
        digests = b"".join(bytes.fromhex(p.content.md5) for p in chosen)
        digest = hashlib.md5(digests, usedforsecurity=False).hexdigest()
        return Assembled(
            key=upload.key,
            etag=f"{digest}-{len(chosen)}",
            size=sum(p.content.size for p in chosen),
            segments=tuple(s for p in chosen for s in p.content.segments),
            part_sizes=tuple(p.content.size for p in chosen),
            attributes=upload.attributes,
        )

    def end(self, upload: Upload) -> None:
        """Forget the upload and its parts (aborted, or complete and retained elsewhere)."""
        del self._uploads[upload.id]
        for made in upload.parts.values():
            self.bodies.release(made.content.segments)
            self.recorder.drop(f"{self._path(upload.id)}/{made.number}")
        self.recorder.drop(self._path(upload.id))

    def all(self) -> list[Upload]:
        """Every upload in progress, by key, then by age."""
        return sorted(self._uploads.values(), key=lambda u: (u.key, u.started_at_s, u.id))

    def restore(self, name: str, value: dict[str, Any]) -> None:
        """Take back a recorded upload, without its parts."""
        self._uploads[name] = Upload(
            id=name,
            key=value["key"],
            started_at_s=value["started_at_s"],
            attributes=decode(Attributes, value["attributes"]),
        )

    def restore_part(self, name: str, value: dict[str, Any]) -> None:
        """Take back a recorded part."""
        made = decode(Part, value)
        self.bodies.retain(made.content.segments)
        self._uploads[name].parts[made.number] = made

    def _path(self, name: str) -> str:
        return f"upload/{part(self.bucket)}/{name}"

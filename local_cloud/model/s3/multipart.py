"""Multipart uploads of one bucket: parts by number until they become one object or are dropped."""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from corekit.decode import decode, encode
from corekit.ids import IdSource
from corekit.values import Value, replace
from local_cloud.model.errors import refused
from local_cloud.model.recorder import Recorded, Recorder, part
from local_cloud.model.s3 import checksums
from local_cloud.model.s3.body import BodyStore, Content
from local_cloud.model.s3.object_version import Attributes

PARTS_MAX = 10_000
PART_BYTES_MIN = 5 * 2**20  #: every part but the last


class Part(Value):
    """One uploaded part; uploading the number again replaces it."""

    number: int
    content: Content
    modified_at_s: float
    checksum: str = ""  #: base64, by the upload's algorithm; empty when none was computed


class WantedPart(Value):
    """A part as the completion of an upload names it."""

    number: int
    etag: str = ""  #: with or without quotes; empty = any
    checksum: str = ""  #: base64, by the upload's algorithm; empty = any


class Upload(Value):
    """An upload in progress."""

    id: str
    key: str
    attributes: Attributes
    started_at_s: float
    algorithm: str = checksums.DEFAULT  #: of the parts' checksums and the object's
    checksum_type: str = checksums.FULL_OBJECT
    algorithm_given: bool = False  #: the client chose it; parts with another one are refused


class Assembled(Value):
    """The object that the parts of a finished upload make."""

    content: Content  #: its md5 is that of the parts' md5s, and their number
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
    _parts: dict[str, dict[int, Part]] = field(default_factory=lambda: defaultdict(dict))

    def start(
        self,
        now_s: float,
        key: str,
        attributes: Attributes,
        *,
        algorithm: str = "",
        checksum_type: str = "",
    ) -> Upload:
        """Begin an upload; nothing is visible until it is complete.

        Raises InvalidRequest for a checksum type that the algorithm does not have.
        """
        used = algorithm or checksums.DEFAULT
        upload = Upload(
            id=f"{self.ids.stream('upload').getrandbits(160):040x}",
            key=key,
            attributes=attributes,
            started_at_s=now_s,
            algorithm=used,
            checksum_type=checksums.type_of_upload(used, checksum_type),
            algorithm_given=bool(algorithm),
        )
        self._uploads[upload.id] = upload
        self.recorder.put(self._path(upload.id), encode(upload))
        return upload

    def get(self, name: str, key: str) -> Upload:
        """The upload of that id and key. Raises NoSuchUpload."""
        upload = self._uploads.get(name)
        if upload is None or upload.key != key:
            raise refused("NoSuchUpload", "The specified upload does not exist, or has ended.")
        return upload

    def put_part(
        self, now_s: float, upload: Upload, number: int, content: Content, checksum: str = ""
    ) -> Part:
        """Keep a part; raises InvalidArgument for a number outside 1…10,000."""
        if not 1 <= number <= PARTS_MAX:
            raise refused("InvalidArgument", "Part number must be an integer between 1 and 10000")
        made = Part(number=number, content=content, modified_at_s=now_s, checksum=checksum)
        self.bodies.retain(content.segments)
        replaced = self._parts[upload.id].get(number)
        self._parts[upload.id][number] = made
        if replaced is not None:
            self.bodies.release(replaced.content.segments)
        self.recorder.put(f"{self._path(upload.id)}/{number}", encode(made))
        return made

    def parts(self, upload: Upload) -> Mapping[int, Part]:
        """The parts of an upload, by number."""
        return self._parts[upload.id]

    def assemble(self, upload: Upload, wanted: Sequence[WantedPart]) -> Assembled:
        """The object that these parts would make; changes nothing.

        Raises MalformedXML (none), InvalidPartOrder, InvalidPart, EntityTooSmall.
        """
        if not wanted:
            raise refused("MalformedXML", "You must specify at least one part")
        if any(a.number >= b.number for a, b in itertools.pairwise(wanted)):
            raise refused("InvalidPartOrder", "The list of parts was not in ascending order.")
        chosen = [_chosen(self.parts(upload), part) for part in wanted]
        if any(p.content.size < PART_BYTES_MIN for p in chosen[:-1]):
            raise refused("EntityTooSmall", "Every part but the last has at least 5 MiB.")
        digests = b"".join(bytes.fromhex(p.content.md5) for p in chosen)
        digest = hashlib.md5(digests, usedforsecurity=False).hexdigest()
        sizes = tuple(p.content.size for p in chosen)
        segments = tuple(s for p in chosen for s in p.content.segments)
        attributes = upload.attributes
        if all(p.checksum for p in chosen):
            pairs = [(p.checksum, p.content.size) for p in chosen]
            value = checksums.of_parts(upload.algorithm, upload.checksum_type, pairs)
            attributes = replace(
                attributes, checksums={upload.algorithm: value}, checksum_type=upload.checksum_type
            )
        return Assembled(
            content=Content(segments=segments, size=sum(sizes), md5=f"{digest}-{len(chosen)}"),
            part_sizes=sizes,
            attributes=attributes,
        )

    def end(self, upload: Upload) -> None:
        """Remove the upload and its parts (aborted, or complete and retained by its object)."""
        del self._uploads[upload.id]
        for made in self._parts.pop(upload.id, {}).values():
            self.bodies.release(made.content.segments)
            self.recorder.drop(f"{self._path(upload.id)}/{made.number}")
        self.recorder.drop(self._path(upload.id))

    def all(self) -> list[Upload]:
        """Every upload in progress, by key, then by age."""
        return sorted(self._uploads.values(), key=lambda u: (u.key, u.started_at_s, u.id))

    def restore(self, name: str, value: Recorded) -> None:
        """Restore a recorded upload, without its parts."""
        self._uploads[name] = decode(Upload, {**value, "id": name})

    def restore_part(self, name: str, value: Recorded) -> None:
        """Restore a recorded part."""
        made = decode(Part, value)
        self.bodies.retain(made.content.segments)
        self._parts[name][made.number] = made

    def _path(self, name: str) -> str:
        return f"upload/{part(self.bucket)}/{name}"


def _chosen(parts: Mapping[int, Part], wanted: WantedPart) -> Part:
    made = parts.get(wanted.number)
    if (
        made is None
        or wanted.etag.strip('"') not in ("", made.content.md5)
        or wanted.checksum not in ("", made.checksum)
    ):
        raise refused("InvalidPart", f"Part {wanted.number} is not there, or another one.")
    return made

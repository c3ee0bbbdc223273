"""Object contents by reference: a version is a list of segments of stored bodies.

So a copy and the end of a multipart upload move no bytes. A body store counts references and
deletes a body with its last one; the simulator's is in memory, the server's a folder of files.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable

from corekit.values import Value


class Segment(Value):
    """A part of one stored body, in bytes."""

    body: str
    offset: int
    size: int


class Content(Value):
    """Bytes in a body store that no object or part refers to yet."""

    segments: tuple[Segment, ...]
    size: int
    md5: str  #: hex digest of all bytes; of the parts of an upload, their common etag


class BodyStore(ABC):
    """Counts the references to bodies; an adapter stores the bytes."""

    def __init__(self) -> None:
        self._users: dict[str, int] = {}

    def retain(self, segments: Iterable[Segment]) -> None:
        """Add a reference to these segments' bodies."""
        for segment in segments:
            self._users[segment.body] = self._users.get(segment.body, 0) + 1

    def release(self, segments: Iterable[Segment]) -> None:
        """Remove a reference; a body without references is deleted."""
        for segment in segments:
            left = self._users.get(segment.body, 0) - 1
            if left > 0:
                self._users[segment.body] = left
            else:
                self._users.pop(segment.body, None)
                self._delete(segment.body)

    @abstractmethod
    def _delete(self, body: str) -> None:
        """Delete the bytes; not an error when they are gone."""


class MemoryBodies(BodyStore):
    """A body store in memory, for the simulator and the memory adapter."""

    def __init__(self) -> None:
        super().__init__()
        self._bodies: dict[str, bytes] = {}
        self._count = 0

    def add(self, data: bytes) -> Content:
        """Store bytes; they are deleted with their last reference."""
        self._count += 1
        name = f"body-{self._count}"
        self._bodies[name] = data
        segment = Segment(body=name, offset=0, size=len(data))
        digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
        return Content(segments=(segment,), size=len(data), md5=digest)

    def read(self, segments: Iterable[Segment]) -> bytes:
        """The bytes of segments, in order."""
        return b"".join(self._bodies[s.body][s.offset : s.offset + s.size] for s in segments)

    def _delete(self, body: str) -> None:
        self._bodies.pop(body, None)


def cut(segments: Iterable[Segment], start: int, stop: int) -> tuple[Segment, ...]:
    """The segments that make up bytes `start` to `stop` (exclusive) of the whole."""
    parts: list[Segment] = []
    at = 0
    for segment in segments:
        first = max(start - at, 0)
        last = min(stop - at, segment.size)
        if first < last:
            parts.append(
                Segment(body=segment.body, offset=segment.offset + first, size=last - first)
            )
        at += segment.size
    return tuple(parts)

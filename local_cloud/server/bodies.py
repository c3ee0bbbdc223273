"""Object bodies as files, written once under a fresh name and deleted with their last user.

A name reaches the state log only after its file is complete, so there is nothing to rename; files
that no recorded object uses (a crash, an upload cut off) are removed at the next start.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from local_cloud.model.s3.body import BodyStore, Content, Segment

CHUNK_BYTES = 256 * 1024  #: of one read while an object is sent


class FileBodies(BodyStore):
    """A body store in a folder, two levels deep."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(256):
            (folder / f"{number:02x}").mkdir(exist_ok=True)

    def path(self, body: str) -> Path:
        """The file of a body."""
        return self._folder / body[:2] / body

    @contextmanager
    def new(self) -> Iterator[BodyWriter]:
        """Start a body; it is deleted if the block ends without `finish`."""
        name = secrets.token_hex(16)
        path = self.path(name)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            writer = BodyWriter(name, file)
            try:
                yield writer
            finally:
                if not writer.finished:
                    path.unlink(missing_ok=True)

    def remove_unused(self) -> None:
        """Delete files without a user; only at start, before anything is being written."""
        for folder in self._folder.iterdir():
            for file in folder.iterdir():
                if file.name not in self._users:
                    file.unlink()

    def _delete(self, body: str) -> None:
        self.path(body).unlink(missing_ok=True)

    def read(self, segments: Iterable[Segment]) -> bytes:
        """All bytes in one value: for small bodies."""
        return b"".join(chunk for chunk in self.chunks(segments))

    def chunks(self, segments: Iterable[Segment]) -> Iterator[bytes]:
        """The bytes in pieces; retain the segments for as long as this runs."""
        for segment in segments:
            with self.path(segment.body).open("rb") as file:
                file.seek(segment.offset)
                left = segment.size
                while left > 0:
                    data = file.read(min(CHUNK_BYTES, left))
                    if not data:
                        raise OSError(f"body {segment.body} is shorter than was recorded")
                    left -= len(data)
                    yield data


class BodyWriter:
    """One body being written."""

    def __init__(self, name: str, file: IO[bytes]) -> None:
        self._name = name
        self._file = file
        self._size = 0
        self.finished = False

    def write(self, data: bytes) -> None:
        """Append."""
        self._size += len(data)
        self._file.write(data)

    def finish(self, md5: str) -> Content:
        """The body is complete, with this hash; it is the caller's to retain or release."""
        self._file.flush()
        self.finished = True
        segment = Segment(body=self._name, offset=0, size=self._size)
        return Content(segments=(segment,), size=self._size, md5=md5)

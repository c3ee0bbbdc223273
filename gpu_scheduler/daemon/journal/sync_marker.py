"""The note beside the journal: which line was synced last. It makes a missing end known.

The journal alone cannot tell a last line that was torn by a crash from one that was synced and
damaged later, nor an emptied file from a new one. The note can: it is written after every sync of
the journal and before anything of that group is answered, so it never names a line that was not
synced, and after a `kill -9` or a clean stop it covers every answered entry.

It is one `pwrite` of 40 bytes into a file that has its blocks already, without a sync of its own
(2 µs per group instead of a second sync); the note itself is synced `SYNC_LAG_S` later (the daemon
calls `Journal.tend`), and when the journal is closed. So a power failure leaves it little more than
that behind, and only an end that the disk loses in that time, against its own sync, would then pass
for a torn one. There are two slots in sectors of their own, written in turns: a torn write of
one leaves the other.
"""

from __future__ import annotations

import errno
import logging
import os
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.daemon.journal.format import Mark

logger = logging.getLogger(__name__)

NAME = "journal.synced"
#: The note is synced this often while it changes; an fdatasync takes milliseconds on slow disks.
SYNC_LAG_S = 1.0
_SLOT_BYTES = 512  #: a sector: the unit that a disk writes whole
_SLOTS = 2
#: No room for a note on a file system that copies on write: the journal is durable all the same.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class FoundMarker:
    """What is there of a note."""

    there: bool  #: the file exists
    mark: Mark | None  #: None: no slot of it can be read


def read_marker(folder: Path) -> FoundMarker:
    """The newest of the slots that check. Raises OSError."""
    try:
        data = (folder / NAME).read_bytes()
    except FileNotFoundError:
        return FoundMarker(False, None)
    slots = (data[at : at + _SLOT_BYTES] for at in range(0, _SLOTS * _SLOT_BYTES, _SLOT_BYTES))
    marks = [mark for slot in slots if (mark := _decoded(slot)) is not None]
    return FoundMarker(True, max(marks, default=None))


class Note:
    """The note of an open journal. One writer at a time; `sync` may run in another thread."""

    def __init__(self, folder: Path, fd: int) -> None:
        self._path = folder / NAME
        self._fd = fd
        self._synced_s = time.monotonic()
        self._behind = False  #: written since the last sync
        self._silent = False  #: a failure was told

    @classmethod
    def open(cls, folder: Path) -> Note:
        """The note that is there. Raises OSError."""
        return cls(folder, os.open(folder / NAME, os.O_RDWR | os.O_CLOEXEC))

    def write(self, mark: Mark) -> None:
        """Raises OSError; without room the note stays behind, and that is told once."""
        try:
            os.pwrite(self._fd, _encoded(mark), mark.number % _SLOTS * _SLOT_BYTES)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            if not self._silent:
                logger.warning("%s is not kept up to date: %s", self._path, error.strerror)
            self._silent = True
        self._behind = True

    @property
    def is_due(self) -> bool:
        """Time for `sync`."""
        return self._behind and time.monotonic() - self._synced_s >= SYNC_LAG_S

    def sync(self) -> None:
        """The note itself becomes durable; a failure only leaves it behind, and is told."""
        self._behind, self._synced_s = False, time.monotonic()
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            logger.warning("%s was not synced: %s", self._path, error.strerror)

    def close(self) -> None:
        if self._behind:
            self.sync()
        os.close(self._fd)


def write_marker(folder: Path, mark: Mark) -> None:
    """A new note in the place of any other, at once and durably. Raises OSError."""
    new = folder / f"{NAME}.new"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, _encoded(mark).ljust(_SLOT_BYTES, b"\0") * _SLOTS)
        os.fsync(fd)
    finally:
        os.close(fd)
    new.replace(folder / NAME)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """The names in it become durable. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _encoded(mark: Mark) -> bytes:
    rest = b"%020d %s" % mark
    return b"%08x %s\n" % (zlib.crc32(rest), rest)


def _decoded(slot: bytes) -> Mark | None:
    rest = slot[9:38]
    if len(rest) < 29 or slot[:9] != b"%08x " % zlib.crc32(rest):
        return None
    number, _, crc = rest.partition(b" ")
    return Mark(int(number), crc) if number.isdigit() else None

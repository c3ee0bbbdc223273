"""The sync marker beside the journal: which line was synced last. It shows that an end is missing.

The journal alone cannot distinguish a line that a crash tore from one that was synced and
damaged later, nor an emptied file from a new one. The marker can: it is written after every sync of
the journal and before the group is answered, so it never names a line that was not synced, and
after a `kill -9` or a clean stop it covers every answered entry.

It is one `pwrite` of 40 bytes into a file whose blocks are allocated, without a sync of its own;
the marker is synced `SYNC_LAG_S` later (the daemon calls `Journal.upkeep`), and when
the journal is closed. A power failure therefore leaves it little more than that behind, and only an
end that the disk loses in that time, against its own sync, would pass for a torn one. There are two
slots in sectors of their own, written alternately: a torn write of one leaves the other.
"""

from __future__ import annotations

import errno
import logging
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from corekit.aio.files import replace_file
from gpu_scheduler.daemon.journal.format import Mark

logger = logging.getLogger(__name__)

NAME = "journal.synced"
#: Interval of syncs while the marker changes; an fdatasync takes milliseconds on slow disks.
SYNC_LAG_S = 1.0
_SLOT_BYTES = 512  #: a sector: the unit that a disk writes whole
_SLOTS = 2
#: A copy-on-write file system may have no room for the marker; the journal is durable without it.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class FoundMarker:
    """A marker as it was read."""

    exists: bool
    mark: Mark | None  #: None: no slot is readable


def read_marker(folder: Path) -> FoundMarker:
    """The newest slot whose checksum holds. Raises OSError."""
    try:
        data = (folder / NAME).read_bytes()
    except FileNotFoundError:
        return FoundMarker(False, None)
    slots = (data[at : at + _SLOT_BYTES] for at in range(0, _SLOTS * _SLOT_BYTES, _SLOT_BYTES))
    marks = [mark for slot in slots if (mark := _decoded(slot)) is not None]
    return FoundMarker(True, max(marks, default=None))


class SyncMarker:
    """The marker of an open journal. One writer at a time; `sync` may run in another thread."""

    def __init__(self, folder: Path, fd: int, now_s: Callable[[], float]) -> None:
        self._path = folder / NAME
        self._fd = fd
        self._now_s = now_s
        self._synced_s = now_s()
        self._behind = False  #: written since the last sync
        self._warned = False  #: of a failure

    @classmethod
    def open(cls, folder: Path, now_s: Callable[[], float] = time.monotonic) -> SyncMarker:
        """Open the existing marker. Raises OSError."""
        return cls(folder, os.open(folder / NAME, os.O_RDWR | os.O_CLOEXEC), now_s)

    def write(self, mark: Mark) -> None:
        """Write the next slot. Raises OSError, except without room: then it warns once."""
        try:
            os.pwrite(self._fd, _encoded(mark), mark.number % _SLOTS * _SLOT_BYTES)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            if not self._warned:
                logger.warning("%s is not up to date: %s", self._path, error.strerror)
            self._warned = True
        self._behind = True

    @property
    def is_due(self) -> bool:
        """Whether `sync` should run now."""
        return self._behind and self._now_s() - self._synced_s >= SYNC_LAG_S

    def sync(self) -> None:
        """Make the marker itself durable; a failure is logged and leaves it behind."""
        self._behind, self._synced_s = False, self._now_s()
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            logger.warning("%s was not synced: %s", self._path, error.strerror)

    def close(self) -> None:
        if self._behind:
            self.sync()
        os.close(self._fd)


def write_marker(folder: Path, mark: Mark) -> None:
    """Write a new marker in the place of any other, durably. Raises OSError."""
    replace_file(folder / NAME, _encoded(mark).ljust(_SLOT_BYTES, b"\0") * _SLOTS)


def _encoded(mark: Mark) -> bytes:
    rest = b"%020d %s" % mark
    return b"%08x %s\n" % (zlib.crc32(rest), rest)


def _decoded(slot: bytes) -> Mark | None:
    rest = slot[9:38]
    if len(rest) < 29 or slot[:9] != b"%08x " % zlib.crc32(rest):
        return None
    number, _, crc = rest.partition(b" ")
    return Mark(int(number), crc) if number.isdigit() else None

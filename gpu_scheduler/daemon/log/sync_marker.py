"""The sync marker beside the file: which record was synced last. It shows that an end is missing.

The file alone cannot distinguish a record that a crash tore from one that was synced and damaged
later, nor an emptied file from a new one. The marker can: it is written after every sync of the
file and before the put is answered, so it never names a record that was not synced, and after a
`kill -9` or a clean stop it covers every answered one.

It is one `pwrite` of 47 bytes into a file whose blocks are allocated, without a sync of its own;
the marker is synced `SYNC_LAG_S` later (the daemon calls `Journal.upkeep`), and when the log is
closed. A power failure therefore leaves it little more than that behind, and only an end that the
disk loses in that time, against its own sync, would pass for a torn one. There are two slots in
sectors of their own, written alternately: a torn write of one leaves the other.
"""

from __future__ import annotations

import errno
import logging
import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from corekit.aio.files import replace_file

logger = logging.getLogger(__name__)

NAME = "journal.synced"
#: Interval of syncs while the marker changes; an fdatasync takes milliseconds on slow disks.
SYNC_LAG_S = 1.0
_SLOT_BYTES = 512  #: a sector: the unit that a disk writes whole
_SLOTS = 2
#: A copy-on-write file system may have no room for the marker; the file is durable without it.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Mark(NamedTuple):
    """A record that was synced."""

    rewritten: int  #: times that the file was replaced before
    seq: int
    crc: bytes  #: its checksum, 8 hex digits


def read_marker(folder: Path) -> bytes | None:
    """The bytes of the marker; None: there is none. Raises OSError."""
    try:
        return (folder / NAME).read_bytes()
    except FileNotFoundError:
        return None


def mark_in(marker: bytes) -> Mark | None:
    """The newest slot whose checksum holds; None: no slot is readable."""
    slots = (marker[at : at + _SLOT_BYTES] for at in range(0, _SLOTS * _SLOT_BYTES, _SLOT_BYTES))
    return max((mark for slot in slots if (mark := _decoded(slot)) is not None), default=None)


class SyncMarker:
    """The marker of an open file. One writer at a time; `sync` may run in another thread."""

    def __init__(self, folder: Path, fd: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._path = folder / NAME
        self._fd = fd
        self._now_s = now_s
        self._synced_s = now_s()
        self._slot = 0  #: of the newest mark
        self._behind = False  #: written since the last sync
        self._warned = False  #: of a failure

    @classmethod
    def open(cls, folder: Path) -> SyncMarker:
        """Open the marker, which is made when there is none. Raises OSError."""
        if not (folder / NAME).exists():
            write_marker(folder, Mark(0, 0, b"0" * 8))
        return cls(folder, os.open(folder / NAME, os.O_RDWR | os.O_CLOEXEC))

    def read(self) -> bytes:
        """Its bytes."""
        return os.pread(self._fd, _SLOTS * _SLOT_BYTES, 0)

    def write(self, mark: Mark, before: bytes = b"") -> bytes:
        """Write the older slot; the bytes of the marker after it, of those before.

        Raises OSError, except without room: then it warns once.
        """
        self._slot = (self._slot + 1) % _SLOTS
        at, text = self._slot * _SLOT_BYTES, _encoded(mark)
        try:
            os.pwrite(self._fd, text, at)
            before = before[:at] + text + before[at + len(text) :]
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            if not self._warned:
                logger.warning("%s is not up to date: %s", self._path, error.strerror)
            self._warned = True
        self._behind = True
        return before

    def follow(self, marker: bytes) -> None:
        """Note the bytes that another writer left: the next mark goes into the older slot."""
        newest = mark_in(marker)
        self._slot = 1 if newest is not None and _decoded(marker[_SLOT_BYTES:]) == newest else 0

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
    rest = b"%08d %020d %s" % mark
    return b"%08x %s\n" % (zlib.crc32(rest), rest)


def _decoded(slot: bytes) -> Mark | None:
    rest = slot[9:47]
    if len(rest) < 38 or slot[:9] != b"%08x " % zlib.crc32(rest):
        return None
    return Mark(int(rest[:8]), int(rest[9:29]), rest[30:])

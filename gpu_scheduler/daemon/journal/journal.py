"""The journal of ssgmd: append with one sync per group, compaction, a reserve for releases.

The lines are chained (format.py) and the last synced one is marked (sync_marker.py), so a line that
is missing, doubled, swapped or changed is noticed at the next start.

Space is allocated ahead (`RESERVE_BYTES`), so a full disk is noticed while there is room to write:
`has_room` becomes False, the endpoints refuse new grants with EXHAUSTED, and releases, finishes and
ends of leases are written into the reserve.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol

from corekit.aio.driver import DURABLE
from corekit.aio.files import sync_folder
from corekit.aio.newer import warn_ignored
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.daemon.build import BUILD
from gpu_scheduler.daemon.journal.format import (
    Mark,
    Scanned,
    body_of,
    encode_group,
    encode_header,
)
from gpu_scheduler.daemon.journal.port import JournalFigures
from gpu_scheduler.daemon.journal.reader import Entries, read_journal
from gpu_scheduler.daemon.journal.sync_marker import SyncMarker, write_marker
from gpu_scheduler.protocol.changes import Entry, Part, encode_entry, encode_parts

logger = logging.getLogger(__name__)

NAME = "journal"
LOCK_NAME = "lock"
#: Allocated behind the end at all times: some thousand releases of about 500 bytes each.
RESERVE_BYTES = 2 * 2**20
#: Allocated at once; one call per few thousand entries.
CHUNK_BYTES = 4 * 2**20
#: A journal is compacted above this size (read back in about a second) and above `COMPACT_RATIO`
#: times its last snapshot.
COMPACT_BYTES_MIN = 8 * 2**20
COMPACT_RATIO = 4
#: Shortest time between two tries to allocate space on a full disk.
FULL_RETRY_S = 1.0

#: Syncs that are usually faster than this run in the event loop: a thread and back would cost more
#: (0.3-0.9 ms on two busy cores). A slow disk never blocks the loop.
INLINE_S_MAX = 0.001


class Disk(Protocol):
    """The operating system's calls that fail on a full or broken disk."""

    def allocate(self, fd: int, offset: int, length: int) -> None: ...
    def write(self, fd: int, data: bytes, offset: int) -> None: ...
    def sync(self, fd: int) -> None: ...
    def replace(self, source: Path, target: Path) -> None: ...
    def sync_folder(self, folder: Path) -> None: ...


class RealDisk:
    """The operating system's calls; each raises OSError."""

    def allocate(self, fd: int, offset: int, length: int) -> None:
        os.posix_fallocate(fd, offset, length)

    def write(self, fd: int, data: bytes, offset: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(fd, view, offset)
            view, offset = view[written:], offset + written

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)

    def sync_folder(self, folder: Path) -> None:
        sync_folder(folder)


class Line(NamedTuple):
    """One group as it is written, and its position in the chain."""

    data: bytes
    mark: Mark


class Journal:
    """Open with `Journal.open`; give `snapshot` before the first append; `close` at the end."""

    def __init__(self, folder: Path, lock_fd: int, disk: Disk) -> None:
        self.path = folder / NAME
        self.figures = JournalFigures()
        self.snapshot: Callable[[], Iterable[Part]] | None = None
        self.compact_bytes_min = COMPACT_BYTES_MIN
        self._disk = disk
        self._lock_fd = lock_fd
        self._fd = -1
        self._marker: SyncMarker | None = None  #: None until recovery
        self._last = Mark(0, b"")  #: of the newest line, written or about to be
        self._has_newer = False  #: what a compaction would lose of a newer version's entries
        self._end = 0  #: bytes that are valid and synced
        self._allocated = 0
        self._snapshot_bytes = 0
        self._full = False
        self._full_asked_s = 0.0
        self._usual_s = 0.0  #: duration of an append, moving average
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._compactor = ThreadPoolExecutor(1, thread_name_prefix="compaction")
        self._compacting: Future[tuple[int, int]] | None = None
        self._tail: list[Line] = []  #: since the snapshot that is being written

    @classmethod
    def open(cls, folder: Path, disk: Disk | None = None) -> tuple[Journal, tuple[Entry, ...]]:
        """`locked` and `recover` in one: the journal and its entries."""
        journal = cls.locked(folder, disk)
        try:
            return journal, journal.recover()
        except BaseException:
            journal.close()
            raise

    @classmethod
    def locked(cls, folder: Path, disk: Disk | None = None) -> Journal:
        """The journal of a folder, not read yet; call `recover` next, and `close` in the end.

        Raises CONFLICT when another ssgmd has the folder.
        """
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cls(folder, lock_folder(folder), disk or RealDisk())

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def remedy(self) -> str:
        return remedy_of(self.path)

    @property
    def size(self) -> int:
        """Bytes in use."""
        return self._end

    @property
    def has_room(self) -> bool:
        """False while the reserve cannot be allocated: grants must be refused."""
        if self._full and time.monotonic() - self._full_asked_s > FULL_RETRY_S:
            self._reserve(0)
        return not self._full

    def append(self, changes: Sequence[Entry]) -> Awaitable[None]:
        """`corekit.aio.driver.Journal`. Raises EXHAUSTED when even the reserve is used up,
        INTERNAL when the disk fails."""
        self.figures.entries += len(changes)
        body = body_of([encode_entry(entry) for entry in changes])
        line = Line(*encode_group(body, self._last))
        self._last = line.mark
        if self._compacting is not None:
            self._tail.append(line)
            if self._compacting.done():
                return self._in_thread(self._switch, self._compacting)
        elif self.snapshot is not None and self._end > self._compact_above():
            parts = self.snapshot()  # holds `changes`: they are applied already
            self._compacting = self._compactor.submit(self._write_snapshot, parts, line.mark)
        if self._usual_s < INLINE_S_MAX:
            self._append(line)
            return DURABLE
        return self._in_thread(self._append, line)

    async def _in_thread(self, work: Callable[..., None], *arguments: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def close(self) -> None:
        """Wait for the last sync, free the space allocated ahead, unlock the folder."""
        self._thread.shutdown(wait=True)
        self._compactor.shutdown(wait=True)
        if self._compacting is not None and self._compacting.exception() is None:
            os.close(self._compacting.result()[0])
            self._new.unlink(missing_ok=True)
        if self._fd >= 0:
            if self._allocated > self._end:  # False for a journal that could not be recovered
                os.ftruncate(self._fd, self._end)
            os.close(self._fd)
            self._fd = -1
        if self._marker is not None:
            self._marker.close()
            self._marker = None
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    # --- recovery

    def recover(self) -> tuple[Entry, ...]:
        """Read all entries, in order, and drop a torn tail. Callable from any thread.

        Raises INTERNAL when the journal is damaged or only
        another version can read it, EXHAUSTED when the disk has no room to start.
        """
        scanned = read_journal(self.path)
        decoder = Entries(self.name, scanned.wrote)
        entries = decoder.all_of(scanned.groups)
        self._has_newer = decoder.compaction_loses
        warn_ignored(logger, decoder.ignored)
        if scanned.torn:
            text = "%d bytes of a torn last entry are dropped; it was never answered"
            logger.warning(text, scanned.torn, extra={"event": "torn_tail"})
        try:
            self._begin(scanned)
        except OSError as error:
            raise _unwritten(self.path, error) from error
        return entries

    def _begin(self, scanned: Scanned) -> None:
        """Open for writing behind the last whole line; a new journal gets a first one."""
        if scanned.version == 0:
            header, self._last = encode_header(BUILD)
            # before the journal: one without a marker is damaged
            write_marker(self.path.parent, self._last)
        elif scanned.last is not None:
            self._last = scanned.last
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._marker = SyncMarker.open(self.path.parent)
        os.ftruncate(self._fd, scanned.end)
        self._end = self._allocated = scanned.end
        if scanned.version == 0:
            self._append(Line(header, self._last))
        else:
            self._marker.write(self._last)  # the last line may be whole, but not marked yet

    # --- the journal's thread

    def _append(self, line: Line) -> None:
        started_s = time.monotonic()
        self._reserve(len(line.data))
        try:
            self._disk.write(self._fd, line.data, self._end)
            self._disk.sync(self._fd)
            self._mark_synced(line.mark)
        except OSError as error:
            raise _unwritten(self.path, error) from error
        self._end += len(line.data)
        took_s = time.monotonic() - started_s
        self._usual_s += (took_s - self._usual_s) * 0.1
        self.figures.syncs += 1
        self.figures.sync_s += took_s
        self.figures.bytes += len(line.data)

    def _mark_synced(self, mark: Mark) -> None:
        """Mark a synced line before it is answered; the marker itself is synced later."""
        assert self._marker is not None, "recovered"
        self._marker.write(mark)
        self.upkeep()

    def upkeep(self) -> None:
        """Sync a marker that was written a while ago; to be called about once a second."""
        if self._marker is not None and self._marker.is_due:
            self._thread.submit(self._marker.sync)

    def _reserve(self, length: int) -> None:
        wanted = self._end + length + RESERVE_BYTES
        if wanted <= self._allocated:
            self._full = False
            return
        if self._full and time.monotonic() - self._full_asked_s <= FULL_RETRY_S:
            return
        self._full_asked_s = time.monotonic()
        grown = max(wanted, self._allocated + CHUNK_BYTES)
        try:
            self._disk.allocate(self._fd, self._allocated, grown - self._allocated)
        except OSError as error:
            if not self._full:
                text = "no room for the journal: %s; grants are refused. %s"
                logger.error(text, error.strerror, _remedy(error), extra={"event": "no_room"})
            self._full = True
            return
        self._allocated, self._full = grown, False

    # --- compaction

    @property
    def _new(self) -> Path:
        return self.path.with_suffix(".new")

    def _compact_above(self) -> int:
        return max(self.compact_bytes_min, COMPACT_RATIO * self._snapshot_bytes)

    def _write_snapshot(self, parts: Iterable[Part], replaced: Mark) -> tuple[int, int]:
        """Write the snapshot that replaces all lines up to one; its descriptor and length.

        Runs in a thread of its own while lines are appended.
        """
        header, before = encode_header(BUILD, replaced)
        snapshot, _ = encode_group(body_of([encode_parts(parts)]), before)
        lines = header + snapshot
        fd = os.open(self._new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            self._disk.write(fd, lines, 0)
            self._disk.sync(fd)
        except OSError:
            os.close(fd)
            self._new.unlink(missing_ok=True)
            raise
        return fd, len(lines)

    def _switch(self, written: Future[tuple[int, int]]) -> None:
        """Append the lines since the snapshot to the new file and rename it to the journal.

        The newest line is in neither file yet; when this fails it is appended to the old journal.
        """
        tail, self._tail, self._compacting = self._tail, [], None
        lines = b"".join(line.data for line in tail)
        try:
            fd, length = written.result()
        except OSError as error:
            self._stay(error, tail[-1])
            return
        try:
            self._disk.write(fd, lines, length)
            self._disk.sync(fd)
            self._keep_newer()
            self._disk.replace(self._new, self.path)
        except OSError as error:
            os.close(fd)
            self._new.unlink(missing_ok=True)
            self._stay(error, tail[-1])
            return
        self._disk.sync_folder(self.path.parent)  # a failure ends the daemon
        self._mark_synced(tail[-1].mark)
        os.close(self._fd)
        self._fd, self._end, self._snapshot_bytes = fd, length + len(lines), length
        self._allocated = self._end
        self.figures.compactions += 1
        self._reserve(0)

    def _keep_newer(self) -> None:
        """Keep the old file where a newer version finds in it what this one cannot carry on."""
        if self._has_newer:
            kept = free_name(self.path, "newer")
            os.link(self.path, kept)
            self._has_newer = False
            text = "the journal that a newer version wrote is kept as %s"
            logger.warning(text, kept, extra={"event": "newer_version"})

    def _stay(self, error: OSError, line: Line) -> None:
        logger.error("the journal was not compacted: %s", error.strerror)
        # next try after the journal has grown by a chunk
        self._snapshot_bytes = (self._end + CHUNK_BYTES) // COMPACT_RATIO
        self._append(line)


#: Errors that free space remedies.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _unwritten(path: Path, error: OSError) -> AppError:
    """The error that ends the daemon: its next run recovers what is durable."""
    code = ErrorCode.EXHAUSTED if error.errno in _FULL else ErrorCode.INTERNAL
    text = f"the journal {path} cannot be written: {error.strerror or error}. {_remedy(error)}"
    return AppError(code, text)


def _remedy(error: OSError) -> str:
    """The advice to an operator about an error of the disk."""
    match error.errno:
        case errno.ENOSPC:
            return "Free some space on its disk"
        case errno.EDQUOT:
            return "Free some space, or raise the quota of ssgmd's user"
        case errno.EFBIG:
            return "Raise the limit on the size of ssgmd's files (ulimit -f)"
        case errno.EROFS:
            return "Its file system is read-only: see the kernel's log, and remount it"
        case errno.EIO:
            return "Its disk fails: see the kernel's log, and move the state folder"
        case _:
            return "See the kernel's log, and check the disk of the state folder"


def remedy_of(path: Path) -> str:
    """The command that repairs a journal file."""
    return f"ssgmd --state {path.parent} journal repair"


def log_remedy_of(address: str) -> str:
    """The command that repairs a journal in a log."""
    return f"ssgmd --log '{address}' journal repair"


def free_name(path: Path, word: str) -> Path:
    """The first unused name beside the journal: `journal.WORD-1`, …"""
    number = 1
    while (kept := path.with_name(f"{path.name}.{word}-{number}")).exists():
        number += 1
    return kept


def lock_folder(folder: Path) -> int:
    """Lock a state folder until the descriptor is closed. Raises CONFLICT while a daemon runs."""
    path = folder / LOCK_NAME
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        text = f"another ssgmd runs on {folder}; stop it, or give this one another --state"
        raise AppError(ErrorCode.CONFLICT, text) from None
    return fd

"""The journal of ssgmd: append, one sync per group, compaction, room kept for ends.

The lines are chained (journal_format.py), and a note beside them knows the last one that was synced
(journal_note.py): whatever is missing, doubled, swapped or changed is noticed at the next start.

Space is allocated ahead (`RESERVE_BYTES`), so that a full disk is noticed while there is still room
to write: then `has_room` turns False, the doors refuse new grants with EXHAUSTED, and releases,
finishes and ends of leases go on inside the reserve.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from corekit.aio.driver import DURABLE
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.daemon.build import BUILD
from gpu_scheduler.daemon.journal.format import (
    VERSION,
    Mark,
    Scanned,
    body_of,
    encode_group,
    encode_header,
)
from gpu_scheduler.daemon.journal.reader import (
    Entries,
    as_snapshot,
    read_journal,
    rewritten,
    warn_of_passed,
)
from gpu_scheduler.daemon.journal.sync_marker import Note, sync_folder, write_marker
from gpu_scheduler.protocol.changes import Entry, Part, encode_entry, encode_parts

logger = logging.getLogger(__name__)

NAME = "journal"
LOCK_NAME = "lock"
#: Kept allocated behind the end: some thousand releases of about 500 bytes each.
RESERVE_BYTES = 2 * 2**20
#: Allocated at once; one call per few thousand entries.
CHUNK_BYTES = 4 * 2**20
#: A journal is compacted above this size (read back in about a second) and above `COMPACT_RATIO`
#: times its last snapshot.
COMPACT_BYTES_MIN = 8 * 2**20
COMPACT_RATIO = 4
#: A disk that was full is asked again this often at most.
FULL_RETRY_S = 1.0

#: On a disk that syncs faster than this the loop waits for it: the hop to a thread and back costs
#: more (0.3-0.9 ms on two busy cores) than it saves. A slow disk never holds the loop.
INLINE_S_MAX = 0.001


class Disk(Protocol):
    """The calls that can find a disk full; tests order their failures."""

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
    """One group as it is written, and its place in the chain."""

    data: bytes
    mark: Mark


@dataclass(slots=True)
class JournalFigures:
    """For /metrics."""

    syncs: int = 0
    sync_s: float = 0.0  #: spent in write + sync, summed
    entries: int = 0
    compactions: int = 0


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
        self._marker: Note | None = None  #: of what is synced, once recovered
        self._last = Mark(0, b"")  #: of the newest line, written or about to be
        self._has_newer = False  #: words of a newer version, which a compaction would lose
        self._end = 0  #: bytes that are valid and synced
        self._allocated = 0
        self._snapshot_bytes = 0
        self._full = False
        self._full_asked_s = 0.0
        self._usual_s = 0.0  #: how long an append took of late, moving average
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
        """The folder's journal, not read yet; `recover` comes next, whatever happens `close`.

        Raises CONFLICT when another ssgmd has the folder.
        """
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cls(folder, lock_folder(folder), disk or RealDisk())

    @property
    def size(self) -> int:
        """Bytes in use."""
        return self._end

    @property
    def has_room(self) -> bool:
        """False while the reserve cannot be kept: grants must be refused."""
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

    async def _in_thread(self, work: Callable[..., None], *arguments: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def close(self) -> None:
        """Wait for the last sync, give the space allocated ahead back, unlock."""
        self._thread.shutdown(wait=True)
        self._compactor.shutdown(wait=True)
        if self._compacting is not None and self._compacting.exception() is None:
            os.close(self._compacting.result()[0])
            self._new.unlink(missing_ok=True)
        if self._fd >= 0:
            if self._allocated > self._end:  # never true for a journal that was refused
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
        """Read everything, drop a torn tail; the entries in their order. Any thread may do it.

        A journal of the version before is rewritten in this one. Raises INTERNAL when the journal
        is damaged or only another version can read it, EXHAUSTED when there is no room to start.
        """
        scanned = read_journal(self.path)
        decoder = Entries(self.path, scanned.wrote)
        entries = decoder.all_of(scanned.groups)
        self._has_newer = bool(decoder.passed)
        warn_of_passed(self.path, decoder.passed)
        if scanned.torn:
            text = "%d bytes of an entry that was never answered are dropped"
            logger.warning(text, scanned.torn, extra={"event": "torn_tail"})
        try:
            self._begin(scanned)
        except OSError as error:
            raise _unwritten(self.path, error) from error
        return entries

    def _begin(self, scanned: Scanned) -> None:
        """Open for writing behind the last whole line; new and old journals get their first."""
        is_old = 0 < scanned.version < VERSION
        if is_old:
            self._upgrade(scanned)
        elif scanned.version == 0:
            header, self._last = encode_header(BUILD)
            write_marker(self.path.parent, self._last)  # first: a journal without a note is damaged
        elif scanned.last is not None:
            self._last = scanned.last
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._marker = Note.open(self.path.parent)
        if is_old:
            self._end = self._allocated = os.fstat(self._fd).st_size
            self._marker.write(self._last)
            return
        os.ftruncate(self._fd, scanned.end)
        self._end = self._allocated = scanned.end
        if scanned.version == 0:
            self._append(Line(header, self._last))
        else:
            self._marker.write(self._last)  # a line may be whole that was not noted any more

    def _upgrade(self, scanned: Scanned) -> None:
        """The same entries in this version's lines.

        A journal of format 2 becomes a snapshot of its lines: the note is good for it before and
        after, wherever this ends. One of format 1 does not look at the note.
        """
        if scanned.last is None:
            lines, self._last = rewritten(scanned.groups)
        else:
            lines, self._last = as_snapshot(scanned.groups, scanned.last), scanned.last
        fd = os.open(self._new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            self._disk.write(fd, lines, 0)
            self._disk.sync(fd)
        finally:
            os.close(fd)
        if scanned.last is None:
            write_marker(self.path.parent, self._last)
        self._disk.replace(self._new, self.path)
        self._disk.sync_folder(self.path.parent)
        text = "the journal is rewritten in format %d"
        logger.info(text, VERSION, extra={"event": "journal_upgraded"})

    # --- the journal's thread

    def _append(self, line: Line) -> None:
        started_s = time.monotonic()
        self._reserve(len(line.data))
        try:
            self._disk.write(self._fd, line.data, self._end)
            self._disk.sync(self._fd)
            self._noted(line.mark)
        except OSError as error:
            raise _unwritten(self.path, error) from error
        self._end += len(line.data)
        took_s = time.monotonic() - started_s
        self._usual_s += (took_s - self._usual_s) * 0.1
        self.figures.syncs += 1
        self.figures.sync_s += took_s

    def _noted(self, mark: Mark) -> None:
        """What is synced is noted before it is answered; the note's own sync may come later."""
        assert self._marker is not None, "recovered"
        self._marker.write(mark)
        self.tend()

    def tend(self) -> None:
        """Sync a note that is behind for long enough; to be called now and then."""
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
        """In its own thread, while appends go on: a new file; its descriptor and length.

        It stands for everything up to the line `replaced`; the next line goes on from that one.
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
        """The new file, with what came since its snapshot, takes the journal's place.

        The newest line is in no file yet; without room the old journal gets it and goes on.
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
        self._disk.sync_folder(self.path.parent)  # failing, it ends the daemon
        self._noted(tail[-1].mark)
        os.close(self._fd)
        self._fd, self._end, self._snapshot_bytes = fd, length + len(lines), length
        self._allocated = self._end
        self.figures.compactions += 1
        self._reserve(0)

    def _keep_newer(self) -> None:
        """A snapshot has only what this version knows: the old file stays, for who knows more."""
        if self._has_newer:
            kept = free_name(self.path, "newer")
            os.link(self.path, kept)
            self._has_newer = False
            text = "the journal as a newer version wrote it is kept as %s"
            logger.warning(text, kept, extra={"event": "newer_version"})

    def _stay(self, error: OSError, line: Line) -> None:
        logger.error("the journal was not compacted: %s", error.strerror)
        # not again before it has grown by a chunk
        self._snapshot_bytes = (self._end + CHUNK_BYTES) // COMPACT_RATIO
        self._append(line)


#: The disk, or a quota of it, is full: a matter of room. Anything else is a matter of the disk.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _unwritten(path: Path, error: OSError) -> AppError:
    """What was to be durable is not: the daemon ends, and its next run goes on from what is."""
    code = ErrorCode.EXHAUSTED if error.errno in _FULL else ErrorCode.INTERNAL
    text = f"the journal {path} cannot be written: {error.strerror or error}. {_remedy(error)}"
    return AppError(code, text)


def _remedy(error: OSError) -> str:
    """What an operator can do about it."""
    match error.errno:
        case errno.ENOSPC:
            return "Free some space on its disk"
        case errno.EDQUOT:
            return "Free some space, or raise the quota of ssgmd's user"
        case errno.EFBIG:
            return "Raise the limit on the size of ssgmd's files (ulimit -f)"
        case errno.EROFS:
            return "Its file system is read-only: look into the kernel's log why, and remount it"
        case errno.EIO:
            return "Its disk fails: look into the kernel's log, and move the state folder"
        case _:
            return "Look into the kernel's log, and check the disk of the state folder"


def free_name(path: Path, word: str) -> Path:
    """A name beside the journal under which nothing lies yet: `journal.WORD-1`, …"""
    number = 1
    while (kept := path.with_name(f"{path.name}.{word}-{number}")).exists():
        number += 1
    return kept


def lock_folder(folder: Path) -> int:
    """The lock of a state folder: hold the descriptor. Raises CONFLICT while a daemon has it."""
    path = folder / LOCK_NAME
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        text = f"another ssgmd runs on {folder}; stop it, or give this one another --state"
        raise AppError(ErrorCode.CONFLICT, text) from None
    return fd

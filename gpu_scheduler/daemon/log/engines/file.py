"""A log in the state folder: the file `journal`, with one sync per put, and its sync marker.

    file:///FOLDER

Space is allocated ahead (`RESERVE_BYTES`), so a full disk is noticed while there is room to write:
`has_room` becomes False, new grants are refused, and releases, finishes and ends of leases are
written into the reserve.

A snapshot becomes the first record of a new file, with the items behind it; a rename puts the new
file in the place of the old one. The marker has their count, so that every opening follows.
Openings of several processes exclude each other for the length of a put, by a lock of the folder.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from corekit.aio.files import sync_folder
from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.daemon.log.port import LogAddress, LogLimits, Snapshot
from gpu_scheduler.daemon.log.records import (
    ITEM,
    SNAPSHOT,
    Contents,
    Place,
    encode_record,
    scan,
)
from gpu_scheduler.daemon.log.registry import only_options
from gpu_scheduler.daemon.log.sync_marker import Mark, SyncMarker, read_marker

logger = logging.getLogger(__name__)

NAME = "journal"
#: Allocated behind the end at all times: some thousand releases of about 500 bytes each.
RESERVE_BYTES = 2 * 2**20
#: Allocated at once; one call per few thousand entries.
CHUNK_BYTES = 4 * 2**20
LIMITS = LogLimits(item_bytes_max=4 * 2**20, snapshot_after=2**62)
#: Read at once.
WINDOW_BYTES = 2**20
#: Shortest time between two tries to allocate space on a full disk.
FULL_RETRY_S = 1.0
LOCK_NAME = "lock"


class Disk:
    """The operating system's calls that fail on a full or broken disk; each raises OSError."""

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


class FileLog:
    """`gpu_scheduler.daemon.log.port.LocalLog` in a folder, made at the first put."""

    limits = LIMITS

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self._folder = folder
        self._path = folder / NAME
        self._disk = disk or Disk()
        self._fd = -1  #: of the file that was read; -1: there is none
        self._folder_fd = -1  #: from the first put on
        self._marker: SyncMarker | None = None  #: likewise
        self._seen: bytes | None = None  #: the marker, when the file was read
        self._contents: Contents | None = None
        self._allocated = 0
        self._full = False
        self._full_asked_s = 0.0
        self._is_alone = False  #: asked to be; the next put looks once more
        self._own: Contents | None = None  #: the contents while no other opening writes

    # --- reading

    def read(self, from_seq: int) -> Iterator[tuple[int, bytes]]:
        contents, start, window = self._current(), 0, b""
        while (place := contents.items.get(from_seq)) is not None:
            if not start <= place.start < place.end <= start + len(window):
                start = place.start
                window = self._bytes(start, max(place.end, start + WINDOW_BYTES))
            yield from_seq, window[place.start - start : place.end - start]
            from_seq += 1
            if contents is not self._contents:  # it was replaced meanwhile
                contents, window = self._current(), b""
        if contents.damage is not None and from_seq <= contents.damage.seq:
            raise contents.damage

    def last_seq(self, after: int) -> int:
        return max(after, self._current().last)

    def newest_snapshot(self) -> Snapshot | None:
        contents = self._current()
        place = contents.snapshot
        return None if place is None else Snapshot(contents.snapshot_seq, self._data(place))

    def newest_snapshot_seq(self) -> int:
        return self._current().snapshot_seq

    def _data(self, place: Place) -> bytes:
        return self._bytes(place.start, place.end)

    def _bytes(self, start: int, end: int) -> bytes:
        parts: list[bytes] = []
        while start < end and (part := os.pread(self._fd, end - start, start)):
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def torn_bytes(self) -> int:
        return self._current().torn

    def _current(self) -> Contents:
        """The contents now. The marker is read first: it names what the file holds then."""
        marker = read_marker(self._folder) if self._marker is None else self._marker.read()
        if self._contents is None or marker is None or marker != self._seen:
            contents = self._load(marker)
            # Another opening may write meanwhile, and what is read across its put does not check.
            # A second reading begins after that put, so damage in the same place is real.
            while (damage := contents.damage) is not None:
                contents = self._load(read_marker(self._folder))
                if contents.damage is not None and contents.damage.why == damage.why:
                    break
        assert self._contents is not None, "loaded"
        return self._contents

    def _load(self, marker: bytes | None) -> Contents:
        self._close_file()
        self._seen, data, self._own = marker, b"", None
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._fd = -1
        else:
            data = self._bytes(0, os.fstat(self._fd).st_size)
        self._allocated = 0
        self._contents = scan(data, marker, str(self._path))
        return self._contents

    # --- writing

    def put_if_absent(self, seq: int, data: bytes) -> bool:
        if len(data) > LIMITS.item_bytes_max:
            raise invalid(f"an item has at most {LIMITS.item_bytes_max} bytes, got {len(data)}")
        with self._errors():
            if self._own is not None:
                return self._put(self._own, seq, data)
            self._lock()
            try:
                contents = self._current()
                if self._is_alone:
                    self._own = contents
                return self._put(contents, seq, data)
            finally:
                fcntl.flock(self._folder_fd, fcntl.LOCK_UN)

    def be_alone(self) -> None:
        # Half of a put's time would go to the lock and to the marker, which never change then.
        self._is_alone = True

    def _put(self, contents: Contents, seq: int, data: bytes) -> bool:
        if seq <= contents.snapshot_seq or seq in contents.items:
            return False
        self._append(contents, seq, data)
        return True

    def _lock(self) -> None:
        """Exclude other openings until the lock of the folder is given back."""
        if self._marker is None:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._folder_fd < 0:
                self._folder_fd = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._folder_fd, fcntl.LOCK_EX)
            # before the file: one without a marker is damaged
            self._marker = SyncMarker.open(self._folder)
        else:
            fcntl.flock(self._folder_fd, fcntl.LOCK_EX)

    def _append(self, contents: Contents, seq: int, data: bytes) -> None:
        record, crc = encode_record(ITEM, seq, data)
        if self._allocated == 0:
            self._begin(contents)
        self._reserve(contents.end + len(record))
        self._disk.write(self._fd, record, contents.end)
        self._disk.sync(self._fd)
        end = contents.end + len(record)
        contents.items[seq] = Place(end - 1 - len(data), end - 1, crc)
        contents.end, contents.last = end, max(contents.last, seq)
        self._mark(Mark(contents.rewritten, seq, crc))

    def _begin(self, contents: Contents) -> None:
        """Open for writing, and drop what a crash tore."""
        assert self._marker is not None, "locked"
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._marker.follow(self._seen or b"")
        if contents.damage is not None:  # only a repair writes then, and replaces all of it
            self._disk.write(self._fd, b"\n", contents.end)
            contents.end += 1
        elif contents.torn:
            os.ftruncate(self._fd, contents.end)
            contents.torn = 0
        self._allocated = contents.end

    def _mark(self, mark: Mark) -> None:
        """Mark a synced record before it is answered; the marker itself is synced later."""
        assert self._marker is not None, "locked"
        self._seen = self._marker.write(mark, self._seen or b"")

    def upkeep(self) -> None:
        if self._marker is not None and self._marker.is_due:
            self._marker.sync()

    # --- room

    @property
    def has_room(self) -> bool:
        if self._full and self._contents is not None:
            self._reserve(self._contents.end)
        return not self._full

    def _reserve(self, end: int) -> None:
        wanted = end + RESERVE_BYTES
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

    # --- replacing the file

    def trim(self, to_seq: int, keep: Collection[int] = ()) -> None:
        contents, kept = self._current(), frozenset(keep)
        if all(seq > to_seq or seq in kept for seq in contents.items):
            return
        snapshot = self.newest_snapshot()
        with self._errors():
            begun = self._begin_file(snapshot)
            self._switch(begun, lambda seq: seq > to_seq or seq in kept)

    def put_snapshot(self, seq: int, data: bytes) -> None:
        self.write_snapshot(seq, data)()

    def write_snapshot(self, seq: int, data: bytes) -> Callable[[], None]:
        with self._errors():
            return partial(self._take, self._begin_file(Snapshot(seq, data)))

    def _take(self, written: Contents) -> None:
        with self._errors():
            if written.snapshot_seq >= self.newest_snapshot_seq():
                self._switch(written, lambda item: item > written.snapshot_seq)
            else:
                self._new.unlink(missing_ok=True)

    @property
    def _new(self) -> Path:
        return self._path.with_suffix(".new")

    def _begin_file(self, snapshot: Snapshot | None) -> Contents:
        """Write and sync the first record of a new file, which has no reader yet."""
        contents, first = Contents(), b""
        if snapshot is not None:
            first, crc = encode_record(SNAPSHOT, *snapshot)
            end = len(first) - 1
            contents.snapshot_seq = contents.last = snapshot.seq
            contents.snapshot = Place(end - len(snapshot.data), end, crc)
            contents.end = len(first)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(self._new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            self._disk.write(fd, first, 0)
            self._disk.sync(fd)
        except OSError:
            self._new.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        return contents

    def _switch(self, new: Contents, is_kept: Callable[[int], bool]) -> None:
        """Append the items to the new file, and put it in the place of the old one.

        Its contents are known: a scan of it would hold up the interpreter.
        """
        self._lock()
        try:
            old = self._own or self._current()
            fd = os.open(self._new, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._append_kept(fd, old, new, is_kept)
                self._disk.replace(self._new, self._path)
                self._disk.sync_folder(self._folder)
            except OSError:
                os.close(fd)
                raise
            # until it is marked, the older marker is good for the new file too
            assert self._marker is not None, "locked"
            self._marker.follow(self._seen or b"")
            place = new.items.get(new.last, new.snapshot)
            self._close_file()
            self._fd, self._allocated, self._contents = fd, new.end, new
            self._own = new if self._is_alone else None
            self._mark(Mark(new.rewritten, new.last, b"0" * 8 if place is None else place.crc))
        finally:
            self._new.unlink(missing_ok=True)
            fcntl.flock(self._folder_fd, fcntl.LOCK_UN)

    def _append_kept(
        self, fd: int, old: Contents, new: Contents, is_kept: Callable[[int], bool]
    ) -> None:
        records: list[bytes] = []
        begin = new.end
        for seq, place in old.items.items():
            if is_kept(seq):
                data = self._data(place)
                record, crc = encode_record(ITEM, seq, data)
                records.append(record)
                new.end += len(record)
                new.items[seq] = Place(new.end - 1 - len(data), new.end - 1, crc)
        new.last = max(new.items, default=new.last)
        new.rewritten = old.rewritten + 1
        self._disk.write(fd, b"".join(records), begin)
        self._disk.sync(fd)

    # --- the end

    def interrupt(self) -> None:
        """Nothing: the kernel breaks off no call of a disk."""

    def close(self) -> None:
        """Free the space allocated ahead."""
        if self._allocated and self._marker is not None and self._contents is not None:
            fcntl.flock(self._folder_fd, fcntl.LOCK_EX)
            if self._marker.read() == self._seen:  # no other opening has written
                os.ftruncate(self._fd, self._contents.end)
        self._close_file()
        self._contents = self._own = None
        if self._marker is not None:
            self._marker.close()
            self._marker = None
        if self._folder_fd >= 0:
            os.close(self._folder_fd)
            self._folder_fd = -1

    def _close_file(self) -> None:
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd, self._allocated = -1, 0

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """An error of the disk ends the daemon: its next run recovers what is durable."""
        try:
            yield
        except OSError as error:
            code = ErrorCode.EXHAUSTED if error.errno in _FULL else ErrorCode.INTERNAL
            text = f"the journal {self._path} cannot be written: {error.strerror or error}. "
            raise AppError(code, text + _remedy(error)) from error


#: Errors that free space remedies.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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


def lock_folder(folder: Path) -> int:
    """Lock a state folder until the descriptor is closed. Raises CONFLICT while a daemon runs."""
    fd = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        text = f"another ssgmd runs on {folder}; stop it, or give this one another --state"
        raise AppError(ErrorCode.CONFLICT, text) from None
    return fd


class FileEngine:
    """Engine of `file://`."""

    summary = "file:///FOLDER"

    def open(self, address: LogAddress, call_s: float) -> FileLog:
        del call_s  # a slow disk is waited for
        only_options(address, ())
        if address.host:
            raise invalid(f"--log {address.text}: expected {self.summary}")
        return FileLog(Path("/", address.path))


ENGINE = FileEngine()

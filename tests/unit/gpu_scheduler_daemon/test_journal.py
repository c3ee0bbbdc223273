"""The journal: appended entries are read back, whatever a crash left of the last line."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.ids import HostId, IdSource
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.core.state.state import UNKNOWN_MAX
from gpu_scheduler.daemon.journal.format import body_of
from gpu_scheduler.daemon.journal.journal import Journal
from gpu_scheduler.daemon.log.engines.file import NAME, Disk
from gpu_scheduler.protocol.changes import (
    Entry,
    HostDrained,
)
from tests.unit.gpu_scheduler_daemon.journals import (
    compact,
    lines_of,
    opened,
    reset_marker,
    written_as,
)


def entry(name: str) -> Entry:
    return Entry(parts=(HostDrained(host=HostId(name), drained=True),))


def written(folder: Path, *groups: list[str], disk: Disk | None = None) -> None:
    journal, _ = opened(folder, disk)

    async def append() -> None:
        for group in groups:
            await journal.append([entry(name) for name in group])

    try:
        asyncio.run(append())
    finally:
        journal.close()


def read(folder: Path) -> list[str]:
    journal, entries = opened(folder)
    journal.close()
    return [str(part.host) for e in entries for part in e.parts if isinstance(part, HostDrained)]


def test_a_journal_cut_at_any_byte_keeps_every_whole_group(tmp_path: Path) -> None:
    written(tmp_path, ["a", "b"], ["c"], ["d"])
    whole = (tmp_path / NAME).read_bytes()
    ends = [sum(map(len, lines_of(whole)[:count])) for count in range(1, 5)]
    groups = [["a", "b"], ["c"], ["d"]]
    for cut in range(len(whole) + 1):
        (tmp_path / NAME).write_bytes(whole)
        reset_marker(tmp_path)
        (tmp_path / NAME).write_bytes(whole[:cut])
        done = sum(end <= cut for end in ends[1:])
        assert read(tmp_path) == [name for group in groups[:done] for name in group], cut


def test_a_torn_tail_is_overwritten_by_the_next_append(tmp_path: Path) -> None:
    written(tmp_path, ["a"], ["b"])
    data = (tmp_path / NAME).read_bytes()
    reset_marker(tmp_path)
    (tmp_path / NAME).write_bytes(data[:-5])
    written(tmp_path, ["c"])
    assert read(tmp_path) == ["a", "c"]


def test_blocks_that_never_reached_the_disk_are_a_torn_tail(tmp_path: Path) -> None:
    written(tmp_path, ["a"], ["b"])
    data = (tmp_path / NAME).read_bytes()
    start = len(data) - len(lines_of(data)[-1])
    holed = data[: start + 12] + bytes(10) + data[start + 22 :] + bytes(4096)
    reset_marker(tmp_path)
    (tmp_path / NAME).write_bytes(holed)
    assert read(tmp_path) == ["a"]


def test_corruption_names_the_file_the_byte_and_the_way_out(tmp_path: Path) -> None:
    written(tmp_path, ["a"], ["b"])
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes().replace(b'"a"', b'"x"'))
    with pytest.raises(AppError) as caught:
        opened(tmp_path)
    assert caught.value.code is ErrorCode.INTERNAL
    assert str(path) in caught.value.message
    assert "journal repair" in caught.value.message
    assert len(lines_of(path.read_bytes())) == 3, "nothing was changed"


def test_the_last_line_damaged_but_whole_is_corruption_too(tmp_path: Path) -> None:
    written(tmp_path, ["a"], ["b"])
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes().replace(b'"b"', b'"x"'))
    with pytest.raises(AppError, match="damaged"):
        opened(tmp_path)


def test_a_line_that_checks_but_is_of_another_version_is_refused(tmp_path: Path) -> None:
    for body in (b"{}", b"7", b'[[["Nonsense",{}]]]'):
        written_as(tmp_path / body.hex(), body)
        with pytest.raises(AppError, match="that this version cannot read") as caught:
            opened(tmp_path / body.hex())
        assert caught.value.code is ErrorCode.INTERNAL


class HeldDisk(Disk):
    """A disk that delays the sync of a new file, and fails to rename it on demand."""

    def __init__(self, *, fails: bool = False) -> None:
        self.let = threading.Event()
        self.journal_fd: int | None = None
        self.fails = fails

    def sync(self, fd: int) -> None:
        self.journal_fd = fd if self.journal_fd is None else self.journal_fd
        if fd != self.journal_fd:
            self.let.wait(60)
        super().sync(fd)

    def replace(self, source: Path, target: Path) -> None:
        if self.fails:
            raise OSError(errno.EIO, "Input/output error")
        super().replace(source, target)


async def compacted(journal: Journal, disk: HeldDisk) -> list[str]:
    """Names of the entries that were appended while a snapshot was written, and after."""
    names: list[str] = []
    for n in range(40):  # none of them waits for the snapshot
        await journal.append([entry(f"n{n}")])
        if n >= 20:
            names.append(f"n{n}")
        if n == 19:
            journal.compact_bytes_min = 0
            journal.snapshot = lambda: entry("snapshot").parts
    disk.let.set()
    async with asyncio.timeout(60):
        while not (journal.figures.compactions or (disk.fails and len(names) > 60)):
            names.append(f"n{len(names) + 20}")
            await journal.append([entry(names[-1])])
            journal.compact_bytes_min = 2**40  # once is enough
            await asyncio.sleep(0)
    return names


def test_appends_go_on_while_a_snapshot_is_written_and_none_is_lost(tmp_path: Path) -> None:
    disk = HeldDisk()
    journal, _ = opened(tmp_path, disk)
    before = asyncio.run(compacted(journal, disk))
    journal.close()
    assert read(tmp_path) == ["snapshot", *before[1:]], "n20 was part of the snapshot"
    assert not list(tmp_path.glob("*.new"))


def test_a_journal_that_cannot_be_compacted_goes_on_as_it_is(tmp_path: Path) -> None:
    disk = HeldDisk(fails=True)
    journal, _ = opened(tmp_path, disk)
    names = asyncio.run(compacted(journal, disk))
    journal.close()
    assert read(tmp_path) == [*(f"n{n}" for n in range(20)), *names]
    assert not list(tmp_path.glob("*.new"))


def test_a_compaction_under_way_is_finished_at_the_end(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    journal.compact_bytes_min = 0
    journal.snapshot = lambda: entry("snapshot").parts

    async def append() -> None:
        await journal.append([entry("a")])

    asyncio.run(append())
    journal.close()
    assert read(tmp_path) == ["snapshot"]
    assert not list(tmp_path.glob("*.new"))


class SmallDisk(Disk):
    """A disk that is full beyond `room` bytes."""

    def __init__(self, room: int) -> None:
        self.room = room

    def allocate(self, fd: int, offset: int, length: int) -> None:
        if offset + length > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().allocate(fd, offset, length)

    def write(self, fd: int, data: bytes, offset: int) -> None:
        if offset + len(data) > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(fd, data, offset)


def test_a_full_disk_is_noticed_while_the_reserve_is_left(tmp_path: Path) -> None:
    disk = SmallDisk(room=6 * 2**20)
    journal, _ = opened(tmp_path, disk)
    assert journal.has_room
    disk.room = 4096

    async def fill() -> int:
        done = 0
        block = [entry("x" * 200) for _ in range(50)]
        disk.room = 6 * 2**20
        while journal.has_room:
            await journal.append(block)
            done += 1
        await journal.append([entry("a release")])  # inside the reserve
        return done

    assert asyncio.run(fill()) > 0
    journal.close()
    assert read(tmp_path)[-1] == "a release"


def test_a_disk_without_any_room_is_exhausted(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="Free some space") as caught:
        written(tmp_path, ["a"], disk=SmallDisk(room=10))
    assert caught.value.code is ErrorCode.EXHAUSTED


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (errno.ENOSPC, ErrorCode.EXHAUSTED, "Free some space on its disk"),
        (errno.EDQUOT, ErrorCode.EXHAUSTED, "raise the quota"),
        (errno.EFBIG, ErrorCode.EXHAUSTED, "ulimit -f"),
        (errno.EROFS, ErrorCode.INTERNAL, "read-only"),
        (errno.EIO, ErrorCode.INTERNAL, "Its disk fails"),
        (errno.EBADF, ErrorCode.INTERNAL, "check the disk"),
    ],
)
def test_an_error_of_the_disk_names_its_remedy(
    tmp_path: Path, number: int, code: ErrorCode, said: str
) -> None:
    class BrokenDisk(Disk):
        def sync(self, fd: int) -> None:
            raise OSError(number, "strange words")

    with pytest.raises(AppError) as caught:
        written(tmp_path, ["a"], disk=BrokenDisk())
    assert caught.value.code is code
    assert said in caught.value.message
    assert "strange words" in caught.value.message


def test_a_compaction_keeps_the_file_whose_keys_it_would_lose(tmp_path: Path) -> None:
    """The snapshot has the keys of this version only; the old file is kept once."""
    text = b'[["host_drained",{"host":"a","drained":true,"since":7}]]'
    data = written_as(tmp_path, body_of([text])).read_bytes()
    for _ in range(2):
        disk = HeldDisk()
        journal, _ = opened(tmp_path, disk)
        asyncio.run(compacted(journal, disk))
        journal.close()
    assert (tmp_path / f"{NAME}.newer-1").read_bytes().startswith(data)
    assert not (tmp_path / f"{NAME}.newer-2").exists()


def recompacted_twice(folder: Path, text: bytes) -> list[str]:
    """Two runs of a daemon, each with a compaction; the files that are kept beside the journal."""
    written_as(folder, body_of([text]))
    for _ in range(2):
        journal, entries = opened(folder)
        machine = SchedulerMachine(Budget(), IdSource("seed"))
        for one in entries:
            machine.apply(one)
        asyncio.run(compact(journal, machine.parts))
        journal.close()
    return sorted(path.name for path in folder.glob(f"{NAME}.newer-*"))


def test_a_change_that_the_snapshot_keeps_needs_no_copy_of_the_journal(tmp_path: Path) -> None:
    text = b'[["LeasePainted",{"lease":"x","ignorable":true}]]'
    assert recompacted_twice(tmp_path, text) == []
    assert b"LeasePainted" in (tmp_path / NAME).read_bytes()


def test_more_unknown_changes_than_are_kept_leave_one_copy_of_the_journal(tmp_path: Path) -> None:
    change = b'["LeasePainted",{"lease":"x","ignorable":true}]'
    text = b"[" + b",".join([change] * (UNKNOWN_MAX + 1)) + b"]"
    assert recompacted_twice(tmp_path, text) == [f"{NAME}.newer-1"]
    assert (tmp_path / NAME).read_bytes().count(b"LeasePainted") == UNKNOWN_MAX

"""The journal over a log, on every engine: entries come back, one run at a time continues it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.ids import IdSource
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.journal.journal import (
    Journal,
    JournalSettings,
)
from gpu_scheduler.daemon.journal.reader import LogReader
from gpu_scheduler.daemon.log.item import encode_items
from gpu_scheduler.daemon.log.port import Log, LogDamage
from gpu_scheduler.daemon.log.registry import open_log, parse_log_address
from gpu_scheduler.daemon.log.writer import LogSuperseded, RetryLimits
from gpu_scheduler.protocol.changes import Entry, encode_parts
from tests.contract.log_journals import append, compact, entry, names
from tests.log_engines import CALL_S, EngineUnderTest, WrappedLog
from tests.unit.gpu_scheduler_daemon.journals import history


def state_of(entries: Sequence[Entry]) -> bytes:
    machine = SchedulerMachine(Budget(), IdSource("seed"))
    for one in entries:
        machine.apply(one)
    return encode_parts(machine.parts())


def test_entries_come_back_in_their_order(
    engine: EngineUnderTest, opened: Callable[..., Journal]
) -> None:
    address = engine.fresh()
    one = opened(address)
    assert one.is_empty
    assert one.recover() == ()
    append(one, [entry("a"), entry("b")], [entry("c")], [])
    one.close()
    two = opened(address)
    assert not two.is_empty
    assert names(two.recover()) == ["a", "b", "c"]
    append(two, [entry("d")])
    assert names(opened(address).recover()) == ["a", "b", "c", "d"]
    assert two.figures.engine == two.settings.address.scheme
    assert two.figures.syncs == 1


def test_the_run_that_is_overtaken_ends_at_its_next_append(
    engine: EngineUnderTest, opened: Callable[..., Journal]
) -> None:
    address = engine.fresh()
    one, two = opened(address), opened(address)
    one.recover()
    append(one, [entry("a")])
    assert names(two.recover()) == ["a"]
    append(two, [entry("b")])
    with pytest.raises(LogSuperseded) as ended:
        append(one, [entry("c")])
    assert ended.value.exit_status == 10
    with pytest.raises(LogSuperseded):
        append(one, [entry("d")])
    append(two, [entry("e")])
    assert names(opened(address).recover()) == ["a", "b", "e"]


def test_of_two_first_runs_one_continues(
    engine: EngineUnderTest, opened: Callable[..., Journal]
) -> None:
    address = engine.fresh()
    one, two = opened(address), opened(address)
    one.recover()
    two.recover()  # it has read the header of the first
    append(two, [entry("b")])
    with pytest.raises(LogSuperseded):
        append(one, [entry("a")])


def test_a_group_larger_than_an_item_is_cut_between_entries(
    engine: EngineUnderTest, opened: Callable[..., Journal]
) -> None:
    address = engine.fresh()
    journal = opened(address)
    journal.recover()
    size = engine.open(address).limits.item_bytes_max // 3
    group = [entry(str(number), size) for number in range(7)]
    append(journal, group)
    assert opened(address).recover() == tuple(group)
    items = list(engine.open(address).read(2))
    assert len(items) == 4
    assert all(data[17:19] == b"0 " for _, data in items)  # whole lines


def test_an_entry_larger_than_an_item_is_committed_by_its_last_piece(
    engine: EngineUnderTest, opened: Callable[..., Journal]
) -> None:
    address = engine.fresh()
    journal = opened(address)
    journal.recover()
    size = engine.open(address).limits.item_bytes_max
    large = entry("large", 2 * size)
    append(journal, [entry("a")], [entry("b"), large, entry("c")])
    assert opened(address).recover() == (entry("a"), entry("b"), large, entry("c"))
    reader = LogReader(engine.open(address), address)
    reader.begin()
    assert reader.seq == 7  # header, a, b, three pieces, c


def test_pieces_that_were_never_committed_are_dropped(
    engine: EngineUnderTest, opened: Callable[..., Journal]
) -> None:
    address = engine.fresh()
    journal = opened(address)
    journal.recover()
    append(journal, [entry("a")])
    log = engine.open(address)
    pieces = encode_items(b"x" * 300, journal.settings.run, 128)
    for seq, piece in enumerate(pieces[:-1], 3):
        assert log.put_if_absent(seq, piece)
    two = opened(address)
    assert names(two.recover()) == ["a"]
    append(two, [entry("b")])
    reader = LogReader(log, address)
    assert len(reader.begin()) == 2
    assert reader.dropped == len(pieces) - 1
    assert names(opened(address).recover()) == ["a", "b"]


def test_a_snapshot_shortens_the_log_and_loses_nothing(
    engine: EngineUnderTest, opened: Callable[..., Journal]
) -> None:
    address = engine.fresh()
    journal = opened(address)
    machine = SchedulerMachine(Budget(), IdSource("seed"))
    assert journal.recover() == ()
    for one in history():
        machine.apply(one)
        append(journal, [one])
    for round_ in range(3):  # the third one trims what precedes the second
        compact(journal, machine)
        assert journal.figures.compactions == round_ + 1
    log = engine.open(address)
    assert log.newest_snapshot_seq() > 0
    assert list(log.read(2)) == []
    assert not log.put_if_absent(1, b"")  # the first item of the run stays
    again = opened(address)
    recovered = again.recover()
    assert state_of(recovered) == encode_parts(machine.parts())
    append(again, [entry("z")])
    assert names(opened(address).recover())[-1:] == ["z"]
    with pytest.raises(LogSuperseded):
        append(journal, [entry("late")])


def test_a_reader_follows_and_begins_again_after_a_trim(
    engine: EngineUnderTest, opened: Callable[..., Journal]
) -> None:
    from gpu_scheduler.daemon.journal.reader import LogTrimmed

    address = engine.fresh()
    journal = opened(address)
    journal.recover()
    machine = SchedulerMachine(Budget(), IdSource("seed"))
    reader = LogReader(engine.open(address), address)
    assert reader.begin() == []
    append(journal, [entry("a")])
    assert [line.run for line in reader.poll()] == [journal.settings.run]
    assert reader.poll() == []
    compact(journal, machine)
    compact(journal, machine)
    with pytest.raises(LogTrimmed):
        reader.poll()
    reader.begin()
    append(journal, [entry("b")])
    assert len(reader.poll()) == 1


def test_a_snapshot_is_not_stored_for_a_line_that_was_lost(
    engine: EngineUnderTest, opened: Callable[..., Journal]
) -> None:
    address = engine.fresh()
    one, two = opened(address), opened(address)
    one.recover()
    append(one, [entry("a")])
    two.recover()
    append(two, [entry("b")])
    one.snapshot, one.compact_bytes_min = SchedulerMachine(Budget(), IdSource("x")).parts, 0
    with pytest.raises(LogSuperseded):
        append(one, [entry("c")])
    assert one._compacting is not None
    assert one._compacting.result(60) is None
    assert engine.open(address).newest_snapshot_seq() == 0


def test_a_failed_snapshot_leaves_the_journal_in_use(
    engine: EngineUnderTest, opened: Callable[..., Journal]
) -> None:
    class NoSnapshots(WrappedLog):
        def put_snapshot(self, seq: int, data: bytes) -> None:
            raise AppError(ErrorCode.EXHAUSTED, "no room for snapshots")

    address = engine.fresh()
    journal = opened(address, lambda where, call_s: NoSnapshots(open_log(where, call_s)))
    journal.recover()
    journal.snapshot = SchedulerMachine(Budget(), IdSource("x")).parts
    journal.compact_bytes_min = 0
    append(journal, [entry("a")], [entry("b")], [entry("c")])
    assert journal.figures.compactions == 0
    assert names(opened(address).recover()) == ["a", "b", "c"]


def test_a_log_without_an_answer_ends_the_journal(
    engine: EngineUnderTest, opened: Callable[..., Journal]
) -> None:
    class NeverAnswers(WrappedLog):
        def put_if_absent(self, seq: int, data: bytes) -> bool:
            if seq > 2:
                raise AppError(ErrorCode.UNAVAILABLE, "no answer")
            return super().put_if_absent(seq, data)

    address = engine.fresh()
    settings = JournalSettings(
        address=parse_log_address(address),
        state=Path("/nonexistent"),
        call_s=CALL_S,
        retry=RetryLimits(within_s=0.05, first_s=0.01, most_s=0.01),
    )
    journal = Journal(settings, lambda where, call_s: NeverAnswers(open_log(where, call_s)))
    try:
        journal.recover()
        append(journal, [entry("a")])
        for name in ("b", "c"):
            with pytest.raises(AppError, match="no answer"):
                append(journal, [entry(name)])
        assert journal.figures.retries > 0
    finally:
        journal.close()
    assert names(opened(address).recover()) == ["a"]


class Hangs(WrappedLog):
    """Its puts hang from the third item on, until they are interrupted."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.begun, self.broken = threading.Event(), threading.Event()

    def put_if_absent(self, seq: int, data: bytes) -> bool:
        if seq > 2:
            self.begun.set()
            assert self.broken.wait(60)
            raise AppError(ErrorCode.UNAVAILABLE, "broken off")
        return super().put_if_absent(seq, data)

    def interrupt(self) -> None:
        self.broken.set()


def test_a_put_that_hangs_stops_grants_and_then_the_journal(
    engine: EngineUnderTest, tmp_path: Path
) -> None:
    parsed = parse_log_address(engine.fresh())
    hanging, now = Hangs(open_log(parsed, CALL_S)), [0.0]
    limits = RetryLimits(within_s=0.01, first_s=0.01, most_s=0.01)
    settings = JournalSettings(address=parsed, state=tmp_path, call_s=0.4, retry=limits)
    journal = Journal(settings, lambda where, call_s: hanging, lambda: now[0])

    async def hang() -> None:
        durable = asyncio.ensure_future(journal.append([entry("b")]))
        assert await asyncio.to_thread(hanging.begun.wait, 60)
        room = [journal.has_room]
        now[0] = 1.5
        assert [*room, journal.has_room] == [True, False]
        with pytest.raises(AppError, match="has not answered") as ended:
            await durable
        assert ended.value.code is ErrorCode.TIMEOUT

    try:
        journal.recover()
        append(journal, [entry("a")])
        assert journal.has_room
        asyncio.run(hang())
    finally:
        journal.close()


@pytest.mark.parametrize(
    ("seq", "item", "why"),
    [
        (3, b"anything else", "not an item"),
        (3, b"0123456789abcdef 0 00000000 x 3 []\n", "does not check"),
        (3, b"0123456789abcdef 1 half", None),
    ],
)
def test_a_foreign_item_is_damage(
    engine: EngineUnderTest,
    opened: Callable[..., Journal],
    seq: int,
    item: bytes,
    why: str | None,
) -> None:
    address = engine.fresh()
    journal = opened(address)
    journal.recover()
    append(journal, [entry("a")])
    assert engine.open(address).put_if_absent(seq, item)
    if why is None:
        assert names(opened(address).recover()) == ["a"]
        return
    with pytest.raises(LogDamage, match=why) as damage:
        opened(address).recover()
    assert damage.value.seq == seq

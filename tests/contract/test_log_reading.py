"""Reading a log that lost items, or fails now and then, on every engine; when snapshots come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.ids import IdSource
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.journal.journal import (
    SNAPSHOT_EVERY_S,
    SNAPSHOT_ITEMS_MIN,
    Journal,
    JournalSettings,
)
from gpu_scheduler.daemon.journal.reader import LogReader
from gpu_scheduler.daemon.journal.repair import repair
from gpu_scheduler.daemon.log.port import Log, LogDamage
from gpu_scheduler.daemon.log.registry import open_log, parse_log_address
from tests.contract.log_journals import append, compact, entry
from tests.log_engines import CALL_S, EngineUnderTest, WrappedLog
from tests.unit.gpu_scheduler_daemon.journals import history


def lose(log: Log, *seqs: int) -> None:
    """Remove items, as a lifecycle rule or a hand does."""
    for seq in seqs:
        log.trim(seq, keep=range(1, seq))


#: Of the five items of `history()`.
HOLES = {"first": (1,), "in the middle": (4,), "several": (2, 3), "all but the last": range(1, 5)}


@pytest.mark.parametrize("hole", HOLES.values(), ids=HOLES.keys())
def test_a_hole_is_damage_and_nothing_is_written(
    engine: EngineUnderTest, opened: Callable[..., Journal], hole: Sequence[int], tmp_path: Path
) -> None:
    address = engine.fresh()
    journal = opened(address)
    journal.recover()
    append(journal, *([one] for one in history()))
    log = engine.open(address)
    lose(log, *hole)
    with pytest.raises(LogDamage, match="is missing, and there are items up to 5") as damage:
        opened(address).recover()
    assert damage.value.seq == hole[0]
    assert log.put_if_absent(hole[0], b"still absent")
    lose(log, hole[0])
    assert not opened(address).is_empty
    repaired = repair(log, address, tmp_path / "repaired")
    assert repaired.lost_lines == 5 - hole[-1]
    assert opened(address).recover()


def test_a_hole_behind_the_snapshot_and_a_lost_snapshot_are_damage(
    engine: EngineUnderTest, opened: Callable[..., Journal]
) -> None:
    address = engine.fresh()
    journal, machine = opened(address), SchedulerMachine(Budget(), IdSource("seed"))
    journal.recover()
    append(journal, [entry("a")])
    compact(journal, machine)
    append(journal, [entry("b")], [entry("c")])
    log = engine.open(address)
    snapshot = log.newest_snapshot()
    assert snapshot is not None
    log.trim(snapshot.seq + 1, keep=range(1, snapshot.seq + 1))
    log.put_snapshot(*snapshot)
    with pytest.raises(LogDamage) as damage:
        opened(address).recover()
    assert damage.value.seq == snapshot.seq + 1


def test_a_standby_takes_over_no_log_with_a_hole(
    engine: EngineUnderTest, opened: Callable[..., Journal]
) -> None:
    """The item after the last one that it read is lost, before it read it."""
    address = engine.fresh()
    journal, standby = opened(address), opened(address)
    journal.recover()
    append(journal, [entry("a")])
    reader = standby.reader()
    reader.begin()
    append(journal, [entry("b")], [entry("c")])
    log = engine.open(address)
    lose(log, 3)
    assert reader.poll() == []  # as if the leader were silent
    with pytest.raises(LogDamage, match="is missing"):
        standby.continue_behind(reader, ())
    assert log.put_if_absent(3, b"still absent")


class Flaky(WrappedLog):
    """Every fourth item is refused once; a read goes on behind it only in the next call."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.refused: set[int] = set()
        self.reads: list[int] = []

    def read(self, from_seq: int) -> Iterator[tuple[int, bytes]]:
        self.reads.append(from_seq)
        for seq, data in super().read(from_seq):
            if seq % 4 == 0 and seq not in self.refused:
                self.refused.add(seq)
                raise AppError(ErrorCode.UNAVAILABLE, "500: internal error")
            yield seq, data


def test_a_reader_of_a_log_that_fails_now_and_then_keeps_what_it_read(
    engine: EngineUnderTest, opened: Callable[..., Journal]
) -> None:
    address = engine.fresh()
    journal = opened(address)
    journal.recover()
    append(journal, *([entry(str(number))] for number in range(19)))  # 20 items
    flaky = Flaky(engine.open(address))
    reader, lines = LogReader(flaky, address), []
    for _ in range(5):
        with pytest.raises(AppError, match="500"):
            reader.begin()
    lines += reader.begin()
    assert len(lines) == 19
    assert flaky.reads == [1, 4, 8, 12, 16, 20]
    append(journal, *([entry(str(number))] for number in range(10)))
    for _ in range(2):
        with pytest.raises(AppError, match="500"):
            reader.poll()
    lines += reader.poll()
    assert [line.seq for line in lines] == list(range(2, 31))
    slow = opened(address, lambda where, call_s: Flaky(open_log(where, call_s)))
    assert len(slow.recover()) == 29


def compacts(journal: Journal) -> bool:
    """Whether the newest append began a snapshot, which is stored then."""
    compacting = journal._compacting
    assert compacting is None or compacting.result(60) is not None
    return compacting is not None


def test_a_snapshot_comes_after_bytes_and_after_a_time(
    engine: EngineUnderTest, opened: Callable[..., Journal], tmp_path: Path
) -> None:
    now_s = [0.0]
    parsed = parse_log_address(engine.fresh())
    settings = JournalSettings(address=parsed, state=tmp_path, call_s=CALL_S)
    journal = Journal(settings, now_s=lambda: now_s[0])
    try:
        journal.recover()
        journal.snapshot = SchedulerMachine(Budget(), IdSource("x")).parts
        if engine.name != "file":  # which is read at once
            append(journal, [entry("a")])
            now_s[0] = SNAPSHOT_EVERY_S + 1.0
            append(journal, *([entry("b")] for _ in range(SNAPSHOT_ITEMS_MIN - 2)))
            assert not compacts(journal)
            append(journal, [entry("c")])
            assert compacts(journal)
            append(journal, [entry("d")])
            assert (journal.figures.compactions, compacts(journal)) == (1, False)
        append(journal, [entry("e", size=journal.compact_bytes_min)])
        assert compacts(journal)
    finally:
        journal.close()

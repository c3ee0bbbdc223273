"""The contract of `gpu_scheduler.daemon.log.port.Log`, on every engine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.daemon.log.port import Log
from gpu_scheduler.daemon.log.writer import LogSuperseded, LogWriter, RetryLimits
from simulator.failover.memory_log import MemoryLog
from tests.log_engines import ENGINES, EngineUnderTest, WrappedLog

WRITERS, SEQS = 8, 60


@dataclass
class MemoryEngine(EngineUnderTest):
    """The log of the simulator."""

    logs: dict[str, Log] = field(default_factory=dict)

    def open(self, address: str) -> Log:
        return self.logs.setdefault(address, MemoryLog())


@pytest.fixture(scope="module", params=["memory", *ENGINES])
def running_engine(request: pytest.FixtureRequest) -> Iterator[EngineUnderTest]:
    if request.param == "memory":
        yield MemoryEngine("memory", str)
        return
    with ENGINES[request.param]() as engine:
        yield engine


@pytest.fixture
def log(engine: EngineUnderTest) -> Log:
    return engine.open(engine.fresh())


def test_a_new_log_is_empty(log: Log) -> None:
    assert list(log.read(1)) == []
    assert log.newest_snapshot() is None
    assert log.newest_snapshot_seq() == 0


def test_the_first_writer_of_a_number_owns_it(log: Log) -> None:
    assert log.put_if_absent(1, b"one")
    assert not log.put_if_absent(1, b"two")
    assert not log.put_if_absent(1, b"one")
    assert list(log.read(1)) == [(1, b"one")]


def test_items_are_read_in_their_order_up_to_a_gap(log: Log) -> None:
    for seq in (3, 1, 2, 5):
        assert log.put_if_absent(seq, str(seq).encode())
    assert [seq for seq, _ in log.read(1)] == [1, 2, 3]
    assert [seq for seq, _ in log.read(3)] == [3]
    assert list(log.read(4)) == []
    assert list(log.read(6)) == []


def test_the_last_number_is_found_behind_a_gap(log: Log) -> None:
    assert (log.last_seq(0), log.last_seq(7)) == (0, 7)
    for seq in (1, 2, 3, 9):
        assert log.put_if_absent(seq, b"x")
    assert [log.last_seq(after) for after in (0, 3, 8, 9, 12)] == [9, 9, 9, 9, 12]


def test_more_items_than_a_page(log: Log) -> None:
    count = 70
    for seq in range(1, count + 1):
        assert log.put_if_absent(seq, b"%d" % seq)
    assert list(log.read(1)) == [(seq, b"%d" % seq) for seq in range(1, count + 1)]


def test_the_largest_item_is_stored_and_a_larger_one_refused(log: Log) -> None:
    most = log.limits.item_bytes_max
    data = bytes(range(256)) * (most // 256) + b"\0" * (most % 256)
    assert log.put_if_absent(1, data)
    assert list(log.read(1)) == [(1, data)]
    with pytest.raises(AppError) as refused:
        log.put_if_absent(2, data + b"x")
    assert refused.value.code is ErrorCode.INVALID
    assert list(log.read(2)) == []


def test_another_opening_sees_what_is_written(engine: EngineUnderTest) -> None:
    address = engine.fresh()
    one, other = engine.open(address), engine.open(address)
    assert one.put_if_absent(1, b"a")
    assert not other.put_if_absent(1, b"b")
    assert list(other.read(1)) == [(1, b"a")]
    other.put_snapshot(1, b"s")
    assert one.newest_snapshot_seq() == 1


def test_logs_of_one_engine_are_separate(engine: EngineUnderTest) -> None:
    one, other = engine.open(engine.fresh()), engine.open(engine.fresh())
    assert one.put_if_absent(1, b"a")
    one.put_snapshot(1, b"s")
    assert other.put_if_absent(1, b"b")
    assert other.newest_snapshot_seq() == 0


def test_trim_keeps_what_it_is_asked_to_keep(log: Log) -> None:
    for seq in range(1, 61):
        assert log.put_if_absent(seq, b"x")
    log.trim(50, keep=(1, 27, 50))
    assert [seq for seq, _ in log.read(51)] == list(range(51, 61))
    for seq in (1, 27, 50):
        assert not log.put_if_absent(seq, b"late")
    assert list(log.read(2)) == []
    log.trim(50, keep=(1, 27, 50))  # repeating it is harmless
    assert list(log.read(27)) == [(27, b"x")]


def test_trim_of_nothing_changes_nothing(log: Log) -> None:
    log.put_if_absent(1, b"a")
    log.trim(0)
    assert list(log.read(1)) == [(1, b"a")]


def test_a_snapshot_of_any_size_comes_back_whole(log: Log) -> None:
    for size in (0, 1, 300_000, 2_500_000):
        data = bytes(seed % 251 for seed in range(997)) * (size // 997 + 1)
        log.put_snapshot(size + 1, data[:size])
        found = log.newest_snapshot()
        assert found is not None
        assert found == (size + 1, data[:size])
        assert log.newest_snapshot_seq() == size + 1


def test_the_newest_snapshot_is_that_of_the_highest_number(log: Log) -> None:
    log.put_snapshot(10, b"ten")
    log.put_snapshot(100, b"hundred")
    log.put_snapshot(9, b"nine, from a run that was slow")
    assert log.newest_snapshot() == (100, b"hundred")
    assert log.newest_snapshot_seq() == 100


def test_a_snapshot_may_be_stored_again(log: Log) -> None:
    log.put_snapshot(7, b"a" * 1_000_000)
    log.put_snapshot(7, b"a" * 1_000_000)
    assert log.newest_snapshot() == (7, b"a" * 1_000_000)


def test_trim_removes_snapshots_before_it(log: Log) -> None:
    for seq in (5, 10, 15):
        log.put_snapshot(seq, b"%d" % seq)
    log.trim(10)
    assert log.newest_snapshot() == (15, b"15")
    log.trim(15)
    assert log.newest_snapshot() == (15, b"15")


def test_eight_writers_have_one_winner_for_each_number(engine: EngineUnderTest) -> None:
    """Writers race for every number; all begin each number together."""
    address = engine.fresh()
    logs = [engine.open(address) for _ in range(WRITERS)]
    begin = threading.Barrier(WRITERS)

    def race(number: int) -> list[int]:
        won = []
        for seq in range(1, SEQS + 1):
            begin.wait(60)
            if logs[number].put_if_absent(seq, b"%d of %d" % (number, seq)):
                won.append(seq)
        return won

    with ThreadPoolExecutor(WRITERS) as pool:
        wins = list(pool.map(race, range(WRITERS)))
    assert sorted(seq for won in wins for seq in won) == list(range(1, SEQS + 1))
    owner = {seq: number for number, won in enumerate(wins) for seq in won}
    found = list(logs[0].read(1))
    assert found == [(seq, b"%d of %d" % (owner[seq], seq)) for seq in range(1, SEQS + 1)]


def test_a_reader_beside_writer_and_trim_sees_whole_items_without_gaps(
    engine: EngineUnderTest,
) -> None:
    """The reader follows; what it reads is a consecutive part of the log, however it is trimmed."""
    address = engine.fresh()
    writer, trimmer, reader = (engine.open(address) for _ in range(3))
    last, stop = 80, threading.Event()

    def text(seq: int) -> bytes:
        return (b"%d " % seq) * 200

    def write() -> None:
        for seq in range(1, last + 1):
            assert writer.put_if_absent(seq, text(seq))
            if seq % 20 == 0:
                trimmer.put_snapshot(seq, text(seq))
                trimmer.trim(seq - 10)
        stop.set()

    seen: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write)
        done = False
        while not done:
            done = stop.is_set() or written.done()
            for seq, data in reader.read((seen[-1] if seen else 0) + 1):
                assert data == text(seq)
                assert not seen or seq == seen[-1] + 1
                seen.append(seq)
            snapshot = reader.newest_snapshot()
            if snapshot is not None:
                assert snapshot.data == text(snapshot.seq)
                if not seen or snapshot.seq > seen[-1]:
                    seen = [snapshot.seq]  # it was overtaken by a trim
        written.result()
    assert seen[-1] == last


def test_a_reader_sees_a_log_begin(engine: EngineUnderTest) -> None:
    """A log that begins while it is read is empty or has its first item; it is not damaged."""
    for _ in range(20):
        address = engine.fresh()
        writer, reader = engine.open(address), engine.open(address)
        with ThreadPoolExecutor(1) as pool:
            written = pool.submit(writer.put_if_absent, 1, b"first")
            while not (seen := list(reader.read(1))):
                pass
            assert written.result()
        assert seen == [(1, b"first")]


class LosesAnswers(WrappedLog):
    """Its puts time out after, or before, they have happened."""

    def __init__(self, log: Log, happened: list[bool]) -> None:
        super().__init__(log)
        self._happened = happened

    def put_if_absent(self, seq: int, data: bytes) -> bool:
        if not self._happened:
            return self.log.put_if_absent(seq, data)
        if self._happened.pop():
            self.log.put_if_absent(seq, data)
        raise AppError(ErrorCode.TIMEOUT, "no answer in time")


def writer_on(log: Log) -> LogWriter:
    return LogWriter(log, "the log", RetryLimits(), sleep=lambda _: None, now_s=lambda: 0.0)


@settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.lists(st.booleans(), max_size=3), min_size=1, max_size=5))
def test_a_put_without_an_answer_is_read_back(
    engine: EngineUnderTest, lost: list[list[bool]]
) -> None:
    log = engine.open(engine.fresh())
    answers: list[bool] = []
    writer = writer_on(LosesAnswers(log, answers))
    for seq, happened in enumerate(lost, 1):
        answers[:] = happened
        writer.put(seq, b"run %d" % seq)
    assert list(log.read(1)) == [(seq, b"run %d" % seq) for seq in range(1, len(lost) + 1)]
    assert writer.figures.retries == sum(map(len, lost))


def test_a_put_without_an_answer_that_another_run_overtook_is_lost(log: Log) -> None:
    writer = writer_on(LosesAnswers(log, [False]))
    other = writer_on(log)
    other.put(1, b"theirs")
    with pytest.raises(LogSuperseded):
        writer.put(1, b"ours")
    with pytest.raises(LogSuperseded):  # and it stays lost
        writer.put(2, b"ours")
    assert list(log.read(1)) == [(1, b"theirs")]


def test_a_run_that_slept_through_a_trim_wins_no_number_of_the_past(log: Log) -> None:
    """The first put of a run that had read up to 2, when another one has gone on to 10."""
    other = writer_on(log)
    for seq in range(1, 11):
        other.put(seq, b"theirs %d" % seq)
    log.put_snapshot(10, b"s")
    log.trim(10, keep=(1,))
    with pytest.raises(LogSuperseded):
        writer_on(log).put(3, b"ours")


def test_a_closed_log_is_closed_twice(engine: EngineUnderTest) -> None:
    log = engine.open(engine.fresh())
    log.put_if_absent(1, b"a")
    log.close()
    log.close()

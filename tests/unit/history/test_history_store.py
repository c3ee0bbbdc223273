"""Store and reader of the history."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from corekit.errors import AppError
from corekit.ids import LeaseId
from corekit.values import replace
from gpu_scheduler.model import EndedAttempt, EndReason, Step
from orchgpu.history.reader import HistoryReader, Window
from orchgpu.history.store import Batch, Bounds, Presence, Store
from tests.history_records import UPLOADED_S, ended_record, job_lease

T = UPLOADED_S
WINDOW = Window(since_s=T, until_s=T + 100)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "history.sqlite") as opened:
        yield opened


def seen(device: str, at_s: float, *, present: bool = True, removed: bool = False) -> Presence:
    host = device.partition("/")[0]
    return Presence(device=device, host=host, present=present, at_s=at_s, removed=removed)


def dump(store: Store) -> list[str]:
    db = sqlite3.connect(store.path)
    try:
        return list(db.iterdump())
    finally:
        db.close()


def test_a_batch_that_is_written_again_changes_nothing(store: Store) -> None:
    records = [ended_record(f"j{n}", T + 20 + n) for n in range(3)]
    batch = Batch(records=records, presences=[seen("h/0", T)], position="1.ab.3")
    store.write(batch)
    once = dump(store)
    store.write(batch)
    assert dump(store) == once
    assert store.position == "1.ab.3"


def test_a_batch_is_written_as_a_whole(store: Store) -> None:
    bad = replace(ended_record("bad", T), block={"function": "\udc00"})
    with pytest.raises((AppError, UnicodeEncodeError)):
        store.write(Batch(records=[ended_record("j", T), bad], position="1.ab.9"))
    assert store.position is None
    with HistoryReader(store.path) as reader:
        assert reader.jobs().total == 0


def test_jobs_are_found_in_pages_and_by_conditions(store: Store) -> None:
    records = [ended_record(f"j{n}", T + n) for n in range(5)]
    failed = replace(records[2], outcome="FAILED", reason="EXIT_NONZERO")
    store.write(Batch(records=[*records, failed]))
    with HistoryReader(store.path) as reader:
        first = reader.jobs(limit=2)
        second = reader.jobs(limit=2, after=first.next)
        third = reader.jobs(limit=2, after=second.next)
        pages = [[one.job for one in page.items] for page in (first, second, third)]
        assert (pages, third.next) == ([["j4", "j3"], ["j2", "j1"], ["j0"]], None)
        assert (first.total, third.total) == (5, 5)
        assert [one.job for one in reader.jobs(state="FAILED").items] == ["j2"]
        assert [one.job for one in reader.jobs(text="j3.fa", since_s=T + 3).items] == ["j3"]
        assert reader.jobs(function="g").items == reader.jobs(tenant="u").items == ()
        assert reader.states(WINDOW) == {"FAILED": 1, "SUCCEEDED": 4}
        with pytest.raises(AppError, match="cursor"):
            reader.jobs(after="nonsense")


def test_a_job_has_its_times_and_its_device(store: Store) -> None:
    store.write(Batch(records=[ended_record("j", T + 20)]))
    with HistoryReader(store.path) as reader:
        (job,) = reader.jobs().items
    assert (job.bucket, job.key, job.bytes, job.device) == ("in", "j.fa", 7, "h/0 cuda L4")
    times = (job.uploaded_s, job.received_s, job.reserved_s, job.running_s, job.ended_s)
    assert times == (T, T + 10, T + 15, T + 16, T + 20)


def test_the_leases_of_a_device_are_spans_within_the_window(store: Store) -> None:
    cold = job_lease("a", T - 10, T + 10, loading_s=2.0)
    live = job_lease("b", T + 50, None, device="h/1")
    store.write(
        Batch(
            records=[
                ended_record("a", T + 10, leases=(cold,)),
                ended_record("b", T + 60, step=Step.RUNNING, outcome=None, leases=(live,)),
            ],
            presences=[seen("h/0", T), seen("h/1", T), seen("g/0", T)],
        )
    )
    with HistoryReader(store.path) as reader:
        devices, total = reader.most_used(WINDOW, 10)
        spans = {
            one.device: [(s.start_s, s.end_s, s.job, s.cold) for s in one.spans] for one in devices
        }
        assert (total, spans) == (
            3,
            {
                "g/0": [],
                "h/0": [(T, T + 10, "a", True)],
                "h/1": [(T + 50, T + 100, "b", None)],
            },
        )
        assert [one.device for one in reader.most_used(WINDOW, 1)[0]] == ["h/1"]


def test_series_have_throughput_latencies_starts_and_utilisation(store: Store) -> None:
    first = ended_record("a", T + 20, leases=(job_lease("a", T + 15, T + 20, loading_s=1.0),))
    second = ended_record("b", T + 25, leases=(job_lease("b", T + 20, T + 25),))
    failed = ended_record("c", T + 60, outcome="FAILED", reason="KILLED", leases=())
    presences = [seen("h/0", T), seen("h/1", T + 50)]
    store.write(Batch(records=[first, second, failed], presences=presences))
    with HistoryReader(store.path) as reader:
        series = reader.series(WINDOW, step_s=50.0)
    assert (series.time_s, series.step_s) == ((T, T + 50), 50.0)
    assert (series.rfast, series.failed) == ((2 / 50, 0.0), (0, 1))
    assert (series.rlat[0], series.dlat[0], series.elat[0]) == (20.0, 16.0, 5.0)
    assert (series.rlat[1], series.elat[1]) == (None, None)
    assert (series.cold_starts, series.warm_starts) == ((1, 0), (1, 0))
    assert series.utilisation == (10 / 50, 0.0)


def steps_of_sqlite(path: Path) -> int:
    """Instructions that SQLite performs for a view of the window's devices and measures."""
    steps = [0]

    def step() -> int:
        steps[0] += 1
        return 0

    with HistoryReader(path) as reader:
        reader._db.set_progress_handler(step, 1)
        reader.most_used(WINDOW, 10)
        reader.series(WINDOW)
    return steps[0]


def test_a_window_costs_the_same_whatever_is_older(store: Store) -> None:
    store.write(Batch(records=[ended_record(f"j{n}", T + 20 + n) for n in range(9)]))
    steps = []
    for older in range(2):
        first = T - 5000 - 1000 * older
        old = [ended_record(f"old-{older}-{n}", first + n) for n in range(500)]
        store.write(Batch(records=old))
        steps.append(steps_of_sqlite(store.path))
    assert steps[1] < 1.1 * steps[0]


def test_a_removed_device_is_no_longer_part_of_the_utilisation(store: Store) -> None:
    lease = job_lease("a", T, T + 50)
    removed = seen("h/1", T + 50, present=False, removed=True)
    store.write(
        Batch(
            records=[ended_record("a", T + 50, leases=(lease,))],
            presences=[seen("h/0", T), seen("h/1", T), removed],
        )
    )
    with HistoryReader(store.path) as reader:
        series = reader.series(WINDOW, step_s=50.0)
    assert series.utilisation == (0.5, 0.0)
    assert [one.device for one in store.latest_presences()] == ["h/0"]


def test_devices_that_are_not_in_the_inventory_any_more_are_removed(store: Store) -> None:
    store.write(Batch(presences=[seen("h/0", T), seen("h/1", T)]))
    lost = seen("h/1", T + 5, present=False)
    store.write(Batch(inventory=[lost, seen("g/0", T + 5)]))
    latest = {one.device: one.present for one in store.latest_presences()}
    assert latest == {"g/0": True, "h/1": False}


def test_uses_divide_a_device_among_those_who_share_it(store: Store) -> None:
    both = [
        ended_record("a", T + 20, leases=(job_lease("a", T + 10, T + 20, loading_s=3.0),)),
        ended_record("b", T + 20, tenant="u", leases=(job_lease("b", T + 10, T + 20),)),
    ]
    store.write(Batch(records=both))
    with HistoryReader(store.path) as reader:
        mine, theirs = reader.uses(WINDOW)
    assert (mine.tenant, mine.device_s, mine.held_s) == ("t", 5.0, 10.0)
    assert (theirs.tenant, theirs.device_s, theirs.cold_starts) == ("u", 5.0, 0)
    assert (mine.jobs, mine.succeeded, mine.cold_starts, mine.warm_starts) == (1, 1, 1, 0)
    assert (mine.wait_p50_s, mine.loading_p50_s) == (5.0, 3.0)


def test_a_lease_granted_ahead_holds_its_device_from_its_booking(store: Store) -> None:
    live = job_lease("a", T + 10, None, ahead=True, active_s=None)
    store.write(Batch(records=[ended_record("a", T + 12, step=Step.STAGED, leases=(live,))]))
    booked = replace(live, booked_s=T + 14)
    store.write(Batch(records=[ended_record("a", T + 14, step=Step.STAGED, leases=(booked,))]))
    withdrawn = replace(live, ended_s=T + 20, reason=EndReason.WITHDRAWN)
    ran = job_lease("b", T + 10, T + 20, ahead=True, booked_s=T + 14)
    for record in (
        ended_record("a", T + 20, leases=(withdrawn,)),
        ended_record("b", T + 20, tenant="u", leases=(ran,)),
    ):
        store.write(Batch(records=[record]))
    with HistoryReader(store.path) as reader:
        uses = {one.tenant: one for one in reader.uses(WINDOW)}
    assert (uses["t"].device_s, uses["t"].held_s) == (0.0, 10.0), "its function waited"
    assert (uses["u"].device_s, uses["u"].held_s) == (6.0, 10.0)


def test_failures_are_counted_by_reason(store: Store) -> None:
    earlier = EndedAttempt(
        n=1, ended_s=T + 5, outcome=None, reason="KILLED", lease=LeaseId("l"), times={}
    )
    store.write(
        Batch(
            records=[
                ended_record("a", T + 20, attempt=2, attempts=(earlier,)),
                ended_record("b", T + 20, outcome="FAILED", reason="KILLED"),
                ended_record("c", T + 20, step=Step.RECEIVED, outcome=None, reason="TIMEOUT"),
                ended_record("d", T + 20, step=Step.RECEIVED, outcome=None, reason="WITHDRAWN"),
            ]
        )
    )
    with HistoryReader(store.path) as reader:
        found = [(one.reason, one.attempts, one.jobs) for one in reader.failures(WINDOW)]
    assert found == [("KILLED", 2, 2), ("TIMEOUT", 1, 1)]


def test_old_jobs_leave_the_history_with_all_that_belongs_to_them(tmp_path: Path) -> None:
    with Store(tmp_path / "h", Bounds(age_s=60.0)) as store:
        store.write(Batch(records=[ended_record("a", T), ended_record("b", T + 50)]))
        assert store.prune(now_s=T + 70) == 1
        with HistoryReader(store.path) as reader:
            assert [one.job for one in reader.jobs().items] == ["b"]
        text = "\n".join(dump(store))
    assert "lease-a" not in text
    assert "lease-b" in text


def test_a_history_that_is_too_large_loses_its_oldest_jobs(tmp_path: Path) -> None:
    with Store(tmp_path / "h", Bounds(size_bytes=200_000)) as store:
        store.write(Batch(records=[ended_record(f"j{n:04}", T + n) for n in range(1000)]))
        before = store.size_bytes
        assert before > 200_000
        removed = store.prune(now_s=T)
        assert (store.size_bytes <= 200_000, 0 < removed < 1000) == (True, True)
        with HistoryReader(store.path) as reader:
            assert reader.jobs(limit=1).items[0].job == "j0999"


def test_one_process_writes_a_history(store: Store) -> None:
    with pytest.raises(AppError, match="another process writes"):
        Store(store.path)


def test_a_reader_reads_while_the_writer_writes(store: Store) -> None:
    store.write(Batch(records=[ended_record("a", T)]))
    with HistoryReader(store.path) as reader:
        assert reader.jobs().total == 1
        store.write(Batch(records=[ended_record("b", T)]))
        assert reader.jobs().total == 2


def _jobs_read_by_group(path: Path) -> int:
    """The number of jobs that a process of the file's group reads; 99 for an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads: it only reads
        pid = os.fork()
    if pid == 0:
        total = 99
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(path.stat().st_gid)
                os.setuid(65534)
            with HistoryReader(path) as reader:
                total = reader.jobs().total
        finally:
            os._exit(total)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_history_is_read_without_the_right_to_write() -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "h"
        with Store(path) as store:
            store.write(Batch(records=[ended_record("a", T)]))
            path.parent.chmod(0o555)
            assert _jobs_read_by_group(path) == 1
            path.parent.chmod(0o755)
        path.parent.chmod(0o555)
        assert _jobs_read_by_group(path) == 1
        path.parent.chmod(0o755)


def test_a_missing_or_foreign_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="no history"):
        HistoryReader(tmp_path / "none")
    (tmp_path / "text").write_text("some words, and more of them than a header has" * 9)
    with pytest.raises(AppError, match="not a database"):
        HistoryReader(tmp_path / "text")
    with pytest.raises(AppError, match="not a database"):
        Store(tmp_path / "text")
    with Store(tmp_path / "h") as store:
        store._db.execute("UPDATE facts SET value = '99' WHERE name = 'version'")
    with pytest.raises(AppError, match="form 99"):
        HistoryReader(tmp_path / "h")

"""Hosts by pool in the history: their number, their cost, and requests and leases beside them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from corekit.ids import JobId
from corekit.values import replace
from gpu_scheduler.model import Step
from orchgpu.history.hosts import HostUse
from orchgpu.history.reader import HistoryReader, Window
from orchgpu.history.store import Batch, Bounds, PoolSize, Store
from tests.history_records import UPLOADED_S, ended_record, job_lease

T = UPLOADED_S
WINDOW = Window(since_s=T, until_s=T + 3600)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "history.sqlite") as opened:
        yield opened


def size(hosts: int | None, at_s: float, pool: str = "a", usd_per_h: float = 2.0) -> PoolSize:
    return PoolSize(pool=pool, hosts=hosts, usd_per_h=usd_per_h, at_s=T + at_s)


def rows(store: Store) -> Sequence[tuple[object, ...]]:
    db = sqlite3.connect(store.path)
    try:
        return db.execute(
            "SELECT pool, since_s - ?, until_s - ?, hosts FROM pools", (T, T)
        ).fetchall()
    finally:
        db.close()


def hosts(store: Store, window: Window = WINDOW, step_s: float = 1800.0) -> HostUse | None:
    with HistoryReader(store.path) as reader:
        return reader.hosts(window, step_s)


def test_each_number_of_hosts_has_its_time_and_a_batch_may_be_written_again(store: Store) -> None:
    batch = Batch(pools=[size(1, 0), size(1, 5), size(3, 10), size(None, 20)])
    for _ in range(2):
        store.write(batch)
        assert rows(store) == [("a", 0.0, 10.0, 1), ("a", 10.0, 20.0, 3)]


def test_pools_that_a_new_state_lacks_are_not_known_any_more(store: Store) -> None:
    store.write(Batch(pools=[size(1, 0), size(2, 0, "b")]))
    store.write(Batch(pools=[size(2, 30, "b")], inventory=(), at_s=T + 30))
    assert rows(store) == [("a", 0.0, 30.0, 1), ("b", 0.0, None, 2)]


def test_the_cost_is_that_of_the_hosts_in_the_window(store: Store) -> None:
    assert hosts(store) is None
    changes = [size(2, -100), size(1, 1800), size(4, 0, "b", 1.0), size(0, 900, "b", 1.0)]
    store.write(Batch(pools=changes))
    found = hosts(store)
    assert found is not None
    pools = [(one.pool, one.hosts_max, one.host_s, one.usd) for one in found.pools]
    assert pools == [("a", 2, 5400.0, 3.0), ("b", 4, 3600.0, 1.0)]
    assert found.usd == 4.0
    assert found.hosts == (4.0, 1.0)


def test_waiting_requests_and_leases_are_means_of_each_step(store: Store) -> None:
    job = ended_record("j", T + 900, leases=(job_lease("j", T + 450, T + 900),))
    times = {**job.times, Step.WAITING: T, Step.RESERVED: T + 450}
    waits = replace(
        job, holder=JobId("w"), step=Step.WAITING, leases=(), times={Step.WAITING: T + 1800}
    )
    store.write(Batch(records=[replace(job, times=times), waits], pools=[size(1, 0)]))
    found = hosts(store)
    assert found is not None
    assert found.leases == (0.25, 0.0)
    assert found.waiting == (0.25, 1.0)


def test_old_numbers_leave_and_a_file_of_an_older_version_has_none(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    with Store(path, Bounds(age_s=100.0)) as store:
        store.write(Batch(pools=[size(1, 0), size(2, 10)]))
        store.prune(T + 200)
        assert rows(store) == [("a", 10.0, None, 2)]
    db = sqlite3.connect(path)
    db.execute("DROP TABLE pools")
    db.close()
    with HistoryReader(path) as reader:
        assert reader.hosts(WINDOW, 1800.0) is None

"""Several schedulers over one log: seeds of `simulator.failover`, and that it notices mistakes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from gpu_scheduler.core import actions as do
from gpu_scheduler.daemon.log.port import LogDamage, Snapshot
from gpu_scheduler.protocol.changes import Entry
from gpu_scheduler.protocol.host import HostHello
from simulator.failover.memory_log import MemoryLog
from simulator.failover.node import Node
from simulator.failover.world import HostModel, simulate
from simulator.faults.checkers import Violation


def run_seeds(first: int, end: int) -> None:
    for seed in range(first, end):
        simulate(seed)


@pytest.mark.parametrize("first", range(1, 100, 25))
def test_no_interleaving_grants_twice_or_loses_a_lease(first: int) -> None:
    verdicts = [simulate(seed) for seed in range(first, first + 25)]
    assert sum(verdict.overtaken for verdict in verdicts) > 25, "leaders are overtaken"
    assert sum(verdict.grants for verdict in verdicts) > 25
    assert sum(verdict.compactions for verdict in verdicts) > 25


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_five_thousand_interleavings() -> None:
    run_seeds(100, 6000)


def test_the_same_seed_gives_the_same_run() -> None:
    assert simulate(7) == simulate(7)


def test_a_log_that_accepts_two_writers_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def overwrite(log: MemoryLog, seq: int, data: bytes) -> bool:
        log.items[seq] = data
        return True

    monkeypatch.setattr(MemoryLog, "put_if_absent", overwrite)
    with pytest.raises((Violation, LogDamage)):
        run_seeds(1, 50)


def test_a_first_item_that_nobody_compares_with_the_snapshot_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MemoryLog, "newest_snapshot_seq", lambda log: 0)
    monkeypatch.setattr(MemoryLog, "newest_snapshot", newest_snapshot)
    with pytest.raises(Violation):
        run_seeds(1, 200)


def newest_snapshot(log: MemoryLog) -> Snapshot | None:
    return max((Snapshot(*one) for one in log.snapshots.items()), default=None)


def test_a_trim_that_removes_the_first_items_of_runs_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trim = MemoryLog.trim

    def forgetful(log: MemoryLog, to_seq: int, keep: Collection[int] = ()) -> None:
        trim(log, to_seq)

    monkeypatch.setattr(MemoryLog, "trim", forgetful)
    with pytest.raises((Violation, LogDamage)):
        run_seeds(1, 200)


def test_an_action_before_its_change_is_durable_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    append = Node._append

    def early(node: Node, changes: Sequence[Entry], actions: Sequence[do.Action]) -> None:
        append(node, changes, ())
        node._actions.extend(actions)

    monkeypatch.setattr(Node, "_append", early)
    with pytest.raises(Violation):
        run_seeds(1, 50)


def test_a_host_that_forgets_epochs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    hello, apply = HostModel.hello, HostModel.apply

    def forgetful_hello(host: HostModel, node: Node) -> HostHello:
        host.epoch, host.run = 0, ""
        return hello(host, node)

    def forgetful_apply(host: HostModel) -> None:
        host.epoch, host.run = 0, ""
        apply(host)

    monkeypatch.setattr(HostModel, "hello", forgetful_hello)
    monkeypatch.setattr(HostModel, "apply", forgetful_apply)
    with pytest.raises(Violation, match="installed again"):
        run_seeds(50, 200)

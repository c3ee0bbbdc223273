"""Loads for leases granted ahead: when they begin, in which memory, and what ends them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from corekit.ids import DeviceId, LeaseId
from corekit.values import replace
from gpu_scheduler.model import EndReason
from gpu_scheduler.protocol.host import Install, WarmLimits
from remote_gpu.host.leases.steps import LeaseStep
from remote_gpu.host.leases.table import LeasePhase, LeaseTable
from remote_gpu.host.warm.ahead import LEARNED_MAX, Learned
from remote_gpu.host.warm.table import WarmWorker
from tests.installs import install_of, share_of

D0, D1 = DeviceId("d0"), DeviceId("d1")
MEMORY = {D0: 1000, D1: 1000}
L2 = LeaseId("l2")


def install(number: int, memory_mib: int = 400, device: str = D0, **fields: Any) -> Install:
    share = share_of(device, memory_mib=memory_mib, exclusive=fields.pop("exclusive", False))
    return install_of(number, share, **({"workload": "w"} | fields))


def worker(workload: str = "w", memory_mib: int = 300, **fields: Any) -> WarmWorker:
    values: dict[str, Any] = {
        "id": f"of-{workload}",
        "tenant": "t",
        "workload": workload,
        "memory_mib": {D0: memory_mib},
        "loading_s": 2.0,
        "idle_since_s": 0.0,
        "models": ("m",),
        "used": (("onnx", '{"model":"data:x"}'),),
    } | fields
    return WarmWorker(**values)


def table(*learned: WarmWorker, runs: Install | None = None) -> LeaseTable:
    """The device is that of l1, a lease of another workload, with an open session."""
    leases = LeaseTable(MEMORY, 30.0)
    for one in learned or (worker(),):
        leases.loads.learned.kept(one)
    leases.install(runs or install(1, workload="first"), 0)
    leases.open("l1", "n", 60, 0)
    return leases


def seen(steps: list[LeaseStep]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(step.kind.value, step.lease, step.warm) for step in steps]


LOADS = [("load", "l2", ("ahead-2",))]


def test_what_a_workload_loaded_is_loaded_for_its_next_lease() -> None:
    leases = table()
    assert seen(leases.install(install(2, ahead=True), 0)) == LOADS
    found = leases.warm.find("ahead-2")
    assert found is not None
    assert found.used == worker().used
    assert found.memory_mib == {D0: 330}, "a tenth more than the last worker had"
    assert leases.warm.residents() == {}, "nothing is published before it is there"


@pytest.mark.parametrize(
    ("learned", "runs", "ahead"),
    [
        (worker("other"), install(1, workload="v"), install(2, ahead=True)),
        (worker(tenant="u"), install(1, workload="v"), install(2, ahead=True)),
        (worker(models=("n",)), install(1, workload="v"), install(2, ahead=True)),
        (worker(used=()), install(1, workload="v"), install(2, ahead=True)),
        (worker(loading_s=0.0), install(1, workload="v"), install(2, ahead=True)),
        (worker(), install(1, workload="v"), install(2, workload=None, ahead=True)),
        (worker(), install(1, workload="v"), install(2, 299, ahead=True)),
        (worker(), install(1, 671, workload="v"), install(2, ahead=True)),
        (worker(), install(1, exclusive=True, workload="v"), install(2, ahead=True)),
    ],
    ids=[
        "another workload",
        "another tenant",
        "another model of device",
        "unknown what",
        "nothing to load",
        "no workload",
        "its share is smaller",
        "the present lease has the memory",
        "the present lease is exclusive",
    ],
)
def test_nothing_is_loaded(learned: WarmWorker, runs: Install, ahead: Install) -> None:
    assert table(learned, runs=runs).install(ahead, 0) == []


def test_the_last_mebibyte_counts() -> None:
    leases = table(runs=install(1, 670, workload="v"))
    assert seen(leases.install(install(2, ahead=True), 0)) == LOADS


@pytest.mark.parametrize(
    "limits",
    [
        WarmLimits(workers_max=0),
        WarmLimits(memory_pct_max=0),
        WarmLimits(none_on=(D0,)),
        WarmLimits(loads_max=0),
    ],
)
def test_where_no_worker_may_stay_none_loads(limits: WarmLimits) -> None:
    leases = table()
    leases.warm.limits = limits
    assert leases.install(install(2, ahead=True), 0) == []


def test_a_load_ends_where_no_worker_may_stay_any_more() -> None:
    leases = table()
    leases.install(install(2, ahead=True), 0)
    leases.warm.limits = WarmLimits(workers_max=0)
    assert seen(leases.limit_warm(0)) == [("evict", "", ("ahead-2",))]


def loaded(leases: LeaseTable, memory_mib: int = 300) -> list[LeaseStep]:
    found = leases.warm.find("ahead-2")
    assert found is not None
    done = dataclasses.replace(found, memory_mib={D0: memory_mib}, loads_for=None, idle_since_s=5)
    return leases.warm_loaded(done, L2, 5)


def test_the_lease_gets_the_worker_that_has_loaded() -> None:
    leases = table()
    leases.install(install(2, ahead=True), 0)
    assert loaded(leases) == []
    assert [one.id for one in leases.warm.residents()[D0]] == ["ahead-2"]
    leases.give_back(LeaseId("l1"))
    leases.gone(LeaseId("l1"))
    assert seen(leases.install(install(2, residents=("ahead-2",)), 6)) == [
        ("placed", "l2", ("ahead-2",))
    ]


def test_the_lease_gets_the_worker_that_still_loads_and_may_lose_it_again() -> None:
    leases = table(runs=install(1, 600, workload="v"))
    leases.install(install(2, ahead=True), 0)
    leases.give_back(LeaseId("l1"))
    leases.gone(LeaseId("l1"))
    assert seen(leases.install(install(2), 1)) == [("placed", "l2", ("ahead-2",))]
    assert seen(leases.install(install(3, 600, workload="v"), 1)) == [("placed", "l3", ())], (
        "the memory of the worker is within the share of l2"
    )
    assert seen(leases.install(install(2, ahead=True), 2)) == [("unplaced", "l2", ("ahead-2",))]
    assert leases.warm.loading_of(L2) == ("ahead-2",)
    assert seen(leases.install(install(2), 3)) == [("placed", "l2", ("ahead-2",))]
    assert loaded_in_lease(leases) == []
    assert seen(leases.install(install(2, ahead=True), 6)) == [("unplaced", "l2", ("ahead-2",))]
    assert [one.id for one in leases.warm.residents()[D0]] == ["ahead-2"]


def loaded_in_lease(leases: LeaseTable) -> list[LeaseStep]:
    entry = leases.find("l2")
    assert entry is not None
    assert entry.warm is not None
    return leases.warm_loaded(dataclasses.replace(entry.warm, loads_for=None), L2, 5)


def test_a_lease_that_needs_the_memory_ends_the_load() -> None:
    leases = table()
    leases.install(install(2, ahead=True), 0)
    assert seen(leases.install(install(3, 500, workload="v"), 1)) == [("evict", "l3", ("ahead-2",))]
    assert seen(leases.warm_gone("ahead-2")) == [("placed", "l3", ())], (
        "each lease has one load: it does not begin again and again"
    )


def test_a_withdrawn_lease_ends_its_load_and_leaves_what_has_loaded() -> None:
    leases = table()
    leases.install(install(2, ahead=True), 0)
    assert seen(leases.end(L2, EndReason.WITHDRAWN)) == [
        ("closed", "l2", ()),
        ("cut", "l2", ()),
        ("evict", "", ("ahead-2",)),
    ]
    leases = table()
    leases.install(install(2, ahead=True), 0)
    loaded(leases)
    assert seen(leases.end(L2, EndReason.WITHDRAWN)) == [("closed", "l2", ()), ("cut", "l2", ())]
    assert leases.warm.ids() == ("ahead-2",)


def test_one_load_at_a_time_on_a_device_in_the_order_of_the_leases() -> None:
    leases = table(worker("w", 200), worker("v", 200), runs=install(1, 400, workload="first"))
    assert seen(leases.install(install(2, ahead=True), 0)) == LOADS
    assert leases.install(install(3, workload="v", ahead=True), 0) == []
    other = install(4, device=D1, workload="v", ahead=True)
    assert seen(leases.install(other, 0)) == [("load", "l4", ("ahead-4",))]
    assert seen(loaded(leases, 200)) == [("load", "l3", ("ahead-3",))]


def test_two_loads_at_a_time_where_they_are_allowed() -> None:
    leases = table(worker("w", 200), worker("v", 200), runs=install(1, 400, workload="first"))
    leases.warm.limits = WarmLimits(loads_max=2)
    assert seen(leases.install(install(2, ahead=True), 0)) == LOADS
    steps = leases.install(install(3, workload="v", ahead=True), 0)
    assert seen(steps) == [("load", "l3", ("ahead-3",))]


def test_nothing_loads_while_a_lease_waits_for_memory() -> None:
    leases = table()
    leases.install(install(2, 700, workload="v"), 0)
    assert leases.install(install(3, ahead=True), 0) == []
    leases.give_back(LeaseId("l1"))
    assert seen(leases.gone(LeaseId("l1"))) == [("cut", "l1", ()), ("placed", "l2", ())]


def test_a_worker_that_is_warm_already_is_enough() -> None:
    leases = table(runs=install(1, 300, workload="first"))
    leases.warm.keep(worker(id="idle"))
    assert leases.install(install(2, ahead=True), 0) == []
    assert leases.install(install(3, ahead=True), 0) == [], "l2 leaves it to l3"


def test_a_lease_of_the_workload_that_runs_leaves_its_worker() -> None:
    leases = table(runs=install(1))
    assert leases.install(install(2, ahead=True), 0) == []
    other = install(3, device=D1, ahead=True)
    assert seen(leases.install(other, 0)) == [("load", "l3", ("ahead-3",))], "not on another device"


@pytest.mark.parametrize(("loading_s", "evicts"), [(1.0, True), (4.0, True), (4.1, False)])
def test_an_idle_worker_makes_room_unless_it_is_much_dearer(loading_s: float, evicts: bool) -> None:
    leases = table()
    leases.warm.keep(worker("v", 500, id="idle", loading_s=loading_s))
    steps = leases.install(install(2, ahead=True), 0)
    assert seen(steps) == ([("evict", "", ("idle",))] if evicts else [])
    if evicts:
        assert seen(leases.warm_gone("idle")) == LOADS


def test_a_worker_that_another_lease_ahead_will_get_makes_no_room() -> None:
    leases = table(worker(loading_s=9.0))
    leases.warm.keep(worker("v", 500, id="idle", loading_s=1.0))
    leases.install(install(2, 500, workload="v", ahead=True), 0)
    assert leases.install(install(3, ahead=True), 0) == []


def test_the_limits_leave_what_a_lease_ahead_will_get() -> None:
    """Otherwise the worker that a lease leaves would evict the one that the next lease needs."""
    leases = table()
    leases.warm.limits = WarmLimits(workers_max=1, idle_s_max=3.0)
    leases.warm.keep(worker(id="next", loading_s=0.5))
    leases.install(install(2, ahead=True), 0)
    assert leases.warm_kept(worker("first", id="left", idle_since_s=4.0), 4.0) == []
    leases.end(L2, EndReason.WITHDRAWN)
    assert seen(leases.limit_warm(5.0)) == [("evict", "", ("next",))]


def test_without_loads_ahead_all_workers_count() -> None:
    leases = table()
    leases.warm.limits = WarmLimits(workers_max=1, loads_max=0)
    leases.warm.keep(worker(id="next", loading_s=0.5))
    leases.install(install(2, ahead=True), 0)
    steps = leases.warm_kept(worker("first", 200, id="left", idle_since_s=4.0), 4.0)
    assert seen(steps) == [("evict", "", ("next",))]


def test_a_booked_lease_keeps_its_worker_until_it_is_placed() -> None:
    leases = table(runs=install(1, 700, workload="first"))
    leases.warm.limits = WarmLimits(workers_max=1)
    leases.warm.keep(worker(id="next", loading_s=0.5))
    leases.install(install(2, ahead=True), 0)
    leases.give_back(LeaseId("l1"))
    assert leases.install(install(2), 1) == []
    assert leases.warm_kept(worker("first", 100, id="left"), 1.0) == []
    assert seen(leases.gone(LeaseId("l1"))) == [("cut", "l1", ()), ("placed", "l2", ("next",))]


def test_a_machine_without_memory_ends_loads_first() -> None:
    leases = table()
    leases.warm.keep(worker("v", 1, id="cheap", loading_s=0.1))
    leases.install(install(2, ahead=True), 0)
    assert leases.warm.to_free(10) == ("ahead-2",)
    assert leases.warm.to_free(331) == ("ahead-2", "cheap")


def test_a_lease_whose_load_failed_begins_without_a_worker() -> None:
    leases = table()
    leases.install(install(2, ahead=True), 0)
    leases.give_back(LeaseId("l1"))
    leases.gone(LeaseId("l1"))
    leases.install(install(2), 1)
    leases.warm_lost(L2)
    assert seen(leases.install(install(2, ahead=True), 2)) == [("unplaced", "l2", ())]
    entry = leases.find("l2")
    assert entry is not None
    assert entry.phase is LeasePhase.QUEUED


def test_what_failed_is_tried_again_only_after_it_was_seen_again() -> None:
    leases = table()
    leases.loads.learned.forget(worker())
    assert leases.install(install(2, ahead=True), 0) == []
    leases.loads.learned.kept(worker())
    assert seen(leases.install(install(3, ahead=True), 0)) == LOADS, "in the order of the leases"


def test_the_workloads_that_were_not_seen_for_longest_are_forgotten() -> None:
    learned = Learned()
    learned.kept(worker("oldest"))
    learned.kept(worker("older"))
    for number in range(LEARNED_MAX - 1):
        learned.kept(worker(f"w{number}"))
        learned.kept(worker("older"))
    assert len(learned) == LEARNED_MAX
    assert learned.worker_for(install(1, workload="oldest")) is None
    assert learned.worker_for(install(1, workload="older")) is not None


def test_a_load_on_another_device_of_the_same_model_has_its_card_limits() -> None:
    found = Learned()
    found.kept(worker())
    other = found.worker_for(replace(install(2), shares=(share_of(D1, memory_mib=310),)))
    assert other is not None
    assert other.memory_mib == {D1: 310}, "not more than its share"
    assert other.suits(replace(install(2), shares=(share_of(D1, memory_mib=310),)))

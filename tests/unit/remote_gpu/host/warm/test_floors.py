"""Warm floors of a host: when workers load, what makes room for them, and what they outlive."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.ids import DeviceId
from corekit.values import replace
from gpu_scheduler.floors import HostFloor
from gpu_scheduler.protocol.host import Install, WarmLimits
from remote_gpu.host.leases.table import LeaseTable
from remote_gpu.host.warm.ahead import Changes
from remote_gpu.host.warm.floors import LOAD_S_ASSUMED, PAUSE_S, PAUSE_S_MAX
from remote_gpu.host.warm.table import WORKERS_MAX, WarmWorker
from tests.installs import install_of, share_of

D0 = DeviceId("d0")
MEMORY = {D0: 1000}
USED = (("onnx", '{"model": "m"}'),)


def floor(workload: str = "w", workers_min: int = 1, memory_mib: int = 400, **f: Any) -> HostFloor:
    share = share_of(D0, memory_mib=memory_mib, exclusive=f.pop("exclusive", False))
    about: dict[str, Any] = {"tenant": "t", "loads": USED} | f
    return HostFloor(workload=workload, share=share, workers_min=workers_min, **about)


def worker(name: str = "one", workload: str = "w", memory_mib: int = 300, **f: Any) -> WarmWorker:
    values: dict[str, Any] = {
        "id": name,
        "tenant": "t",
        "workload": workload,
        "memory_mib": {D0: memory_mib},
        "loading_s": 2.0,
        "idle_since_s": 0.0,
        "models": ("m",),
        "used": USED,
    }
    return WarmWorker(**(values | f))


def table(*floors: HostFloor, idle: tuple[WarmWorker, ...] = ()) -> LeaseTable:
    leases = LeaseTable(MEMORY, 30.0)
    leases.floors.set(floors, 0.0)
    for one in idle:
        leases.warm.keep(one)
    return leases


def changes(leases: LeaseTable, now_s: float = 0.0) -> Changes:
    queued = [entry.install for entry in leases if entry.waits]
    holders = [entry.install for entry in leases if entry.occupying]
    return leases.floors.changes(queued, holders, leases.memory_mib, now_s)


def begin(leases: LeaseTable, now_s: float = 0.0) -> list[str]:
    """The workloads that begin to load."""
    found = changes(leases, now_s)
    for one in found.load:
        leases.warm.keep(one)
    return [one.workload for one in found.load]


def install(number: int, memory_mib: int = 400, **fields: Any) -> Install:
    share = share_of(D0, memory_mib=memory_mib, exclusive=fields.pop("exclusive", False))
    return install_of(number, share, **({"workload": "other"} | fields))


def test_a_floor_loads_what_it_declares_in_the_share_of_a_lease() -> None:
    leases = table(floor())
    (load,) = changes(leases).load
    assert (load.used, load.memory_mib, load.loading_s) == (USED, {D0: 400}, LOAD_S_ASSUMED)
    made = leases.floors.install_of(load)
    assert (made.lease, made.tenant, made.workload) == (load.loads_for, "t", "w")
    leases.warm.keep(load)
    assert changes(leases) == Changes(), "it loads"
    assert leases.warm.loaded(replace_load(load))
    assert changes(leases) == Changes(), "it is there"
    assert leases.warm.candidate(install(1, workload="w")) is not None


def replace_load(load: WarmWorker) -> WarmWorker:
    return worker(load.id, load.workload)


def test_without_a_declaration_the_last_worker_has_shown_what_to_load() -> None:
    leases = table(floor(loads=()))
    assert changes(leases) == Changes(), "nothing is known"
    leases.loads.learned.kept(worker())
    (load,) = changes(leases).load
    assert (load.used, load.memory_mib, load.loading_s) == (USED, {D0: 330}, 2.0)


@pytest.mark.parametrize(
    ("leases", "workloads"),
    [
        ((), ["w"]),
        ((install(1, 600),), ["w"]),
        ((install(1, 601),), []),
        ((install(1, exclusive=True),), []),
        ((install(1, workload="w"),), []),
        ((install(1, workload="w", tenant="u"),), ["w"]),
        ((install(1, 500), install(2, 700)), []),
    ],
    ids=["free", "room", "none", "exclusive", "its own lease", "another tenant's", "one waits"],
)
def test_a_load_is_beside_all_leases(leases: tuple[Install, ...], workloads: list[str]) -> None:
    here = table(floor())
    for one in leases:
        here.install(one, 0)
    assert begin(here) == workloads


def test_an_exclusive_floor_loads_on_a_device_without_leases() -> None:
    here = table(floor(exclusive=True))
    here.install(install(1, 100), 0)
    assert begin(here) == []
    assert begin(table(floor(exclusive=True))) == ["w"]


def test_loads_of_one_device_follow_each_other() -> None:
    here = table(floor("a", 2, 200), floor("b", 1, 200))
    assert [begin(here) for _ in range(2)] == [["a"], []]
    here.warm.limits = WarmLimits(loads_max=2)
    assert [begin(here) for _ in range(2)] == [["a"], []]
    here.warm.limits = WarmLimits(loads_max=3)
    assert begin(here) == ["b"]


def test_floors_displace_workers_of_no_floor_and_never_each_other() -> None:
    other = worker("of-other", "other", 700, loading_s=900.0)
    here = table(floor("a", 1, 400), idle=(other,))
    assert changes(here).evict == ("of-other",)
    here = table(floor("a", 1, 400), floor("b", 1, 700), idle=(worker("of-b", "b", 700),))
    assert changes(here) == Changes()


def test_a_floor_outlives_the_limits_but_no_drain() -> None:
    here = table(floor(), idle=(worker(), worker("spare", idle_since_s=-5.0)))
    here.warm.limits = WarmLimits(idle_s_max=10.0, memory_pct_max=1)
    assert here.warm.beyond_limits(MEMORY, 1e6) == ("spare",)
    here.warm.limits = WarmLimits(workers_max=0)
    assert set(here.warm.beyond_limits(MEMORY, 0.0)) == {"one", "spare"}
    assert begin(here) == []
    here.warm.limits = WarmLimits(none_on=(D0,))
    assert set(here.warm.beyond_limits(MEMORY, 0.0)) == {"one", "spare"}


def test_a_lease_takes_a_floors_memory_last() -> None:
    cheap, dear = worker("cheap", memory_mib=300), worker("dear", "other", 300, loading_s=60.0)
    here = table(floor(), idle=(cheap, dear))
    assert here.warm.room(install(1), {D0: 400}, None).evict == ("dear",)
    assert set(here.warm.room(install(1), {D0: 0}, None).evict) == {"cheap", "dear"}
    assert here.warm.to_free(1) == ("dear",)


def test_pauses_after_failures_grow_and_end() -> None:
    here, now_s = table(floor()), 0.0
    (load,) = changes(here).load
    for pause_s in (PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S):
        here.floors.failed(load, now_s)
        assert begin(here, now_s + pause_s - 0.1) == []
        assert changes(here, now_s + pause_s).load
        now_s += pause_s
    for _ in range(30):
        here.floors.failed(load, now_s)
    assert begin(here, now_s + PAUSE_S_MAX - 0.1) == []
    now_s += 2 * PAUSE_S_MAX + 1
    here.floors.failed(load, now_s)
    assert changes(here, now_s + PAUSE_S).load


def test_floors_are_replaced_as_a_whole() -> None:
    here = table(floor("a"), idle=(worker("of-a", "a"),))
    assert here.warm.kept() == {"of-a"}
    here.floors.set((floor("b"),), 0.0)
    assert here.warm.kept() == set()
    assert begin(here) == ["b"]
    assert here.warm.idle(), "a worker of no floor any more stays as others do"


def test_programs_are_no_workers_of_a_floor() -> None:
    here = table(floor(), idle=(worker(program=True),))
    assert here.warm.kept() == set()
    assert begin(here) == ["w"]


def test_a_device_that_is_not_lent_loads_nothing() -> None:
    here = table(replace(floor(), share=share_of("gone")))
    assert begin(here) == []


def test_workers_that_are_kept_no_longer_are_idle_from_then_on() -> None:
    here = table(floor(), idle=(worker(), worker("spare", idle_since_s=-5.0)))
    here.warm.limits = WarmLimits(idle_s_max=60.0)
    assert here.floors.set((), 100.0) == {"one"}, "a new scheduler has no floors for now"
    assert here.warm.beyond_limits(MEMORY, 159.0) == ("spare",)
    assert here.floors.set((floor(),), 102.0) == set()
    assert here.warm.kept() == {"one"}
    assert here.floors.set((), 200.0) == {"one"}
    assert set(here.warm.beyond_limits(MEMORY, 260.0)) == {"one", "spare"}


@pytest.mark.parametrize(
    ("used", "counts"),
    [
        (USED, True),
        ((("onnx", '{"threads": 2, "model":"m"}'), ("sort", "{}")), True),
        ((("onnx", '{"model": "of before"}'),), False),
        ((("sort", '{"model": "m"}'),), False),
        ((), False),
    ],
)
def test_only_workers_with_what_a_floor_declares_count(
    used: tuple[tuple[str, str], ...], counts: bool
) -> None:
    here = table(floor(), idle=(worker(used=used),))
    assert here.warm.kept() == ({"one"} if counts else set())
    assert begin(here) == ([] if counts else ["w"])


def test_a_worker_that_no_lease_of_its_floor_can_have_does_not_count() -> None:
    assert begin(table(floor(memory_mib=299), idle=(worker(memory_mib=300),))) == ["w"]


def test_what_the_host_evicts_itself_loads_again_after_a_pause() -> None:
    here = table(floor(), idle=(worker(), worker("spare", "other")))
    here.floors.displaced(["one", "spare", "unknown"], 10.0)
    here.evict_warm(["one"], "the machine lacks memory")
    here.warm.gone("one")
    assert begin(here, 10.0 + PAUSE_S - 0.1) == []
    assert begin(here, 10.0 + PAUSE_S) == ["w"]


def test_more_workers_than_a_host_may_have_are_not_loaded_again_and_again() -> None:
    number = WORKERS_MAX + 1
    idle = tuple(worker(f"w{n}", memory_mib=1) for n in range(number))
    here = table(floor(workers_min=number), idle=idle)
    (step,) = here.limit_warm(10.0)
    assert len(step.warm) == 1
    here.warm.gone(step.warm[0])
    assert begin(here, 10.0) == []

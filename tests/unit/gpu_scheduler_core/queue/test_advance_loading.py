"""Leases granted ahead by the time that their host loads for them, while another lease runs.

Jobs of workload `w` execute for 10 s, load for 6 s when they are cold, and start in 2 s.
"""

from __future__ import annotations

from typing import Any

import pytest

from corekit.ids import DeviceId, HostId, JobId
from corekit.values import replace
from gpu_scheduler.model import DeviceResidents, Request, Resident, Sharing
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.warm import workload_key
from tests.advance_world import EXECUTION_S, START_S, TERMS, asked, finished, lease_of, started
from tests.scheduler_world import World, device

LOADING_S = 6.0
#: One lease at a time; the device has 1000 MiB.
REQUEST = Request(memory_mib=400, compute_guarantee_pct=100, workload="w", advance=TERMS)
OTHER = Request(memory_mib=400, compute_guarantee_pct=100, workload="other", advance=TERMS)


def resident(memory_mib: int = 300) -> Resident:
    key = workload_key("default", "w")
    return Resident(id="w1", workload=key, memory_mib=memory_mib, loading_s=LOADING_S)


def residents(world: World, *added: Resident, removed: tuple[str, ...] = ()) -> None:
    changes = (DeviceResidents(device=DeviceId("d"), added=added, removed=removed),)
    world.handle(host_ops.Report, host=HostId("h"), reply_to="h", residents=changes)


def cold_job(world: World, job: str, request: Request) -> None:
    lease = started(world, job, request)
    world.advance(EXECUTION_S + LOADING_S)
    world.told("h", lease, "freed", loading_s=LOADING_S, succeeded=True)
    finished(world, lease, job, 0.0)


def learned(shown_mib: int = 300, loads_ahead: bool = True, **parameters: Any) -> World:
    """A world that has learned the times of both workloads, of which none is loaded now."""
    world = World(**parameters)
    world.host("h", device("d"), advance=True, loads_ahead=loads_ahead)
    world.alive["s1"] = None
    for number in range(3):
        cold_job(world, f"past{number}", REQUEST)
        cold_job(world, f"other{number}", OTHER)
    residents(world, resident(shown_mib))
    residents(world, removed=("w1",))
    return world


def granted_before_end_s(world: World, running: Request = OTHER) -> float:
    """How long before the expected end of a lease the next one is granted ahead of it."""
    first = started(world, "first", running)
    asked(world, "second", REQUEST)
    world.advance(EXECUTION_S)
    assert lease_of(world, "second").after == (first.id,)
    opened_s = world.record("first").leases[-1].active_s
    assert opened_s is not None
    return opened_s + EXECUTION_S - world.record("second").leases[0].granted_s


def test_it_is_granted_earlier_where_its_host_loads_meanwhile() -> None:
    assert granted_before_end_s(learned()) == pytest.approx(LOADING_S, abs=0.1)


@pytest.mark.parametrize(
    ("world", "why"),
    [
        (lambda: learned(loads_ahead=False), "an older host"),
        (lambda: learned(shown_mib=601), "no room beside the present lease"),
        (lambda: learned(warm_workers_max=0), "no worker may stay"),
        (lambda: learned(warm_loads_max=0), "switched off"),
        (lambda: learned(warm_memory_pct_max=0), "no memory for workers"),
    ],
)
def test_it_is_granted_by_its_start_alone(world: Any, why: str) -> None:
    assert granted_before_end_s(world()) == pytest.approx(START_S, abs=0.1), why


def test_the_last_mebibyte_counts() -> None:
    assert granted_before_end_s(learned(shown_mib=600)) == pytest.approx(LOADING_S, abs=0.1)


def test_a_warm_worker_needs_no_time() -> None:
    world = learned()
    residents(world, resident())
    assert granted_before_end_s(world) == pytest.approx(START_S, abs=0.1)


def test_beside_an_exclusive_lease_nothing_is_loaded() -> None:
    world = learned()
    alone = Request(sharing=Sharing.EXCLUSIVE, workload="other", advance=TERMS)
    assert granted_before_end_s(world, alone) == pytest.approx(START_S, abs=0.1)


def test_a_host_that_restarted_knows_no_workload() -> None:
    world = learned()
    terms: dict[str, Any] = {"advance": True, "loads_ahead": True}
    del world.hosts["h"]
    world.advance(world.budget.host_stale_s + 1)
    world.host("h", device("d"), incarnation="two", **terms)
    assert isinstance(world.answer(), host_ops.HostWelcome)
    assert granted_before_end_s(world) == pytest.approx(START_S, abs=0.1)


def test_a_host_that_reconnects_knows_what_it_knew() -> None:
    world = learned()
    world.host("h", device("d"), advance=True, loads_ahead=True)
    assert granted_before_end_s(world) == pytest.approx(LOADING_S, abs=0.1)


def test_the_terms_bound_the_wait() -> None:
    assert granted_before_end_s(learned(advance_s_max=4.0)) == pytest.approx(4.0, abs=0.1)


def test_a_record_says_what_was_loaded_ahead() -> None:
    world = learned()
    lease = started(world, "first", REQUEST)
    world.advance(EXECUTION_S)
    world.told("h", lease, "freed", loading_s=0.0, loaded_ahead_s=5.5, succeeded=True)
    world.told("h", lease, "closed", loading_s=0.0, loaded_ahead_s=5.5)
    kept = world.record("first").leases[-1]
    assert (kept.loading_s, kept.loaded_ahead_s) == (0.0, 5.5)
    assert world.replayed().state.records[JobId("first")].leases[-1] == kept


def test_a_workload_that_runs_now_leaves_its_worker() -> None:
    assert granted_before_end_s(learned(), REQUEST) == pytest.approx(START_S, abs=0.1)


def test_a_booking_evicts_nothing_that_fits_beside_its_share() -> None:
    """Its share counted twice when the evictions were chosen after the booking."""
    world = learned()
    key = workload_key("default", "beside")
    residents(world, resident(), replace(resident(), id="w2", workload=key))
    running = started(world, "first", OTHER)
    asked(world, "second", REQUEST)
    world.advance(EXECUTION_S - START_S)
    world.renew(lease_of(world, "second"))
    world.staged(lease_of(world, "second"))
    finished(world, running, "first", START_S)
    [push] = world.pushed(host_ops.InstallPush)
    assert (push.install.residents, push.install.evict) == (("w1",), ())

"""Simulated workers that load for leases granted ahead, and what that changes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpu_scheduler.model import Advance
from simulator.invariants import check
from simulator.workloads.engine import Engine
from simulator.workloads.measures import figures
from simulator.workloads.model import Arrival, HostSpec, Run, Timing, Workload

EXECUTION_S, LOADING_S = 5.0, 3.0
NAMES = "abcd"  #: the device has room for a lease and for two warm workers


def workload(name: str) -> Workload:
    return Workload(
        name=name,
        memory_mib=400,
        warm_mib=300,
        execution={"*": Timing(median_s=EXECUTION_S)},
        loading={"*": Timing(median_s=LOADING_S)},
        start=Timing(median_s=0.5),
        advance=Advance(wait_s=30.0, late_pct=10.0),
    )


def ended(names: Sequence[str], **parameters: str) -> Engine:
    """Jobs of these workloads, all requested at once and served in their order."""
    workloads = {name: workload(name) for name in NAMES}
    host = HostSpec(name="g", memory_mib=1000)
    run = Run(hosts=(host,), workloads=workloads, load=(), parameters=parameters)
    engine = Engine(run, 1, "fifo")
    for name in names:
        arrival = Arrival(at_s=0.0, workload=name, execution_s=EXECUTION_S)
        engine.ask(workloads[name].request(), arrival, workloads[name])
    engine.advance(None)
    assert check(engine.machine.state) == []
    assert {job.outcome for job in engine.jobs} == {"done"}
    return engine


def test_workloads_in_turns_begin_warm_once_their_times_are_known() -> None:
    """The fifth job waits behind one of which nothing was learned, and so is not granted ahead."""
    engine = ended(NAMES * 4)
    later = engine.jobs[len(NAMES) + 1 :]
    assert [job.loading_s for job in later] == [0.0] * len(later)
    assert all(job.loaded_ahead_s == LOADING_S for job in later)
    assert figures(engine)["withdrawn"] == 0


def test_without_loads_ahead_each_of_them_begins_cold() -> None:
    engine = ended(NAMES * 4, warm_loads_max="0")
    assert [job.loading_s for job in engine.jobs] == [LOADING_S] * len(engine.jobs)


def test_the_device_is_busier_with_them() -> None:
    with_, without = (figures(ended(NAMES * 8, warm_loads_max=most)) for most in "10")
    assert without["busy_pct_of_held"] == pytest.approx(61.9, abs=0.1)
    assert with_["busy_pct_of_held"] > 90
    assert with_["makespan_s"] < 0.75 * without["makespan_s"]


def test_a_worker_that_a_lease_ahead_will_get_outlives_the_limit() -> None:
    """Only one may stay idle; the one that the next lease needs is not counted."""
    engine = ended("ab" * 6, warm_workers_max="1")
    assert [job.cold for job in engine.jobs][4:] == [0] * 8
    assert not any(job.loaded_ahead_s for job in engine.jobs[4:])


def test_a_workload_after_itself_loads_nothing() -> None:
    engine = ended("a" * 6)
    assert [job.cold for job in engine.jobs] == [1, 0, 0, 0, 0, 0]
    assert not any(job.loaded_ahead_s for job in engine.jobs)
    assert figures(engine)["function_wait_s"] == pytest.approx(0.0, abs=0.01)


def test_loads_are_learned_as_cold_starts_are() -> None:
    engine = ended(NAMES * 4)
    times = engine.machine.state.learned_times.of("default", "a", "GPU")
    assert times is not None
    assert (times.cold_starts, times.warm_starts) == (2, 2)
    assert times.loadings_s == (LOADING_S,) * 4
    assert times.executions_s == pytest.approx((EXECUTION_S,) * 4)

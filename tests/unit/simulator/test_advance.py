"""Simulated starts of functions, and leases ahead, which hide them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.model import Advance
from simulator.invariants import check
from simulator.workloads.arrivals import Times
from simulator.workloads.engine import Engine
from simulator.workloads.jobs import Job
from simulator.workloads.measures import figures
from simulator.workloads.model import Arrival, HostSpec, Run, Timing, Workload

SHORT = Workload(
    name="short",
    exclusive=True,
    execution={"*": Timing(median_s=2.0)},
    start=Timing(median_s=0.5),
    advance=Advance(wait_s=30.0, late_pct=10.0),
)
OFF = {"advance_s_max": "0"}


def run_of(workload: Workload, at_s: tuple[float, ...], devices: int = 1) -> Run:
    return Run(
        hosts=(HostSpec(name="g", devices=devices),),
        workloads={workload.name: workload},
        load=(Times(workload=workload.name, at_s=at_s),),
    )


def ended(run: Run, parameters: dict[str, str] | None = None) -> Engine:
    engine = Engine(replace(run, parameters=parameters or {}), 1)
    engine.simulate()
    assert check(engine.machine.state) == []
    return engine


def times(engine: Engine) -> list[tuple[float | None, ...]]:
    return [(job.granted_s, job.opened_s, job.ended_s) for job in engine.jobs]


def test_a_function_is_started_behind_each_lease_without_advance() -> None:
    engine = ended(run_of(SHORT, (0.0, 0.0, 0.0)), OFF)
    assert times(engine) == [(0.0, 0.5, 2.5), (2.5, 3.0, 5.0), (5.0, 5.5, 7.5)]
    found = figures(engine)
    assert (found["device_held_s"], found["device_idle_s"], found["makespan_s"]) == (7.5, 1.5, 7.5)
    assert found["busy_pct_of_held"] == 80.0


def test_a_function_starts_while_the_lease_before_it_runs() -> None:
    """The first one teaches the times; from the third on the device does not stand still."""
    engine = ended(run_of(SHORT, (0.0, 0.0, 0.0)))
    assert times(engine) == [(0.0, 0.5, 2.5), (2.5, 3.0, 5.0), (4.5, 5.0, 7.0)]
    found = figures(engine)
    assert (found["device_held_s"], found["device_idle_s"]) == (7.0, 1.0)
    assert found["function_s"] == 6.0


def lengths(workload: Workload, *executions_s: float) -> Engine:
    """Jobs of these lengths, all requested at once."""
    engine = Engine(run_of(workload, ()), 1)
    for length_s in executions_s:
        arrival = Arrival(at_s=0.0, workload=workload.name, execution_s=length_s)
        engine.ask(workload.request(), arrival, workload)
    engine.advance(None)
    assert {job.outcome for job in engine.jobs} == {"done"}
    return engine


def test_functions_in_new_sandboxes_are_drawn_and_learned() -> None:
    slow = replace(SHORT, new_start=Timing(median_s=3.0), new_pct=25.0)
    engine = ended(run_of(slow, (0.0,) * 40))
    new = sum(bool(job.new_sandbox) for job in engine.jobs)
    assert 4 <= new <= 16
    learned = engine.machine.state.learned_times.of("default", "short", "GPU")
    assert learned is not None
    assert set(learned.new_starts_s) == {3.0}
    assert set(learned.starts_s) == {0.5}
    assert learned.new_part == pytest.approx(new / 40, abs=0.05)


def test_a_function_waits_behind_a_job_that_is_longer_than_those_before_it() -> None:
    engine = lengths(SHORT, 2.0, 2.0, 3.0, 2.0)
    assert times(engine)[2:] == [(4.5, 5.0, 8.0), (6.5, 8.0, 10.0)]
    assert figures(engine)["function_wait_s"] == 1.0
    assert figures(engine)["function_s"] == 10.0


def test_an_overrun_withdraws_its_function_and_the_job_starts_again() -> None:
    hasty = replace(SHORT, advance=Advance(wait_s=1.0, late_pct=10.0))
    engine = lengths(hasty, 2.0, 2.0, 6.0, 2.0)
    assert [job.withdrawn for job in engine.jobs] == [0, 0, 0, 1]
    assert times(engine)[3] == (11.0, 11.5, 13.5)
    assert figures(engine)["function_wait_s"] == 0.5


def test_terms_change_nothing_where_they_are_switched_off() -> None:
    plain = replace(SHORT, advance=None)
    at_s = tuple(float(number % 7) for number in range(20))
    assert ended(run_of(plain, at_s)).trace() == ended(run_of(SHORT, at_s), OFF).trace()


def overlaps(jobs: list[Job]) -> list[tuple[Job, Job]]:
    found = []
    for device in {name for job in jobs for name in job.devices}:
        own = sorted((j for j in jobs if device in j.devices), key=lambda job: job.opened_s or 0.0)
        found += [(a, b) for a, b in pairwise(own) if (a.ended_s or 0.0) > (b.opened_s or 0.0)]
    return found


@given(
    at_s=st.lists(st.integers(0, 20), min_size=1, max_size=25),
    start_s=st.sampled_from((0.0, 0.25, 0.5, 1.5, 4.0)),
    execution_s=st.sampled_from((0.5, 2.0, 5.0)),
    devices=st.integers(1, 3),
)
def test_it_is_never_slower_with_constant_times(
    at_s: list[int], start_s: float, execution_s: float, devices: int
) -> None:
    execution = {"*": Timing(median_s=execution_s)}
    timed = replace(SHORT, execution=execution, start=Timing(median_s=start_s))
    run = run_of(timed, tuple(map(float, at_s)), devices)
    engine, without = ended(run), ended(run, OFF)
    assert {job.outcome for job in engine.jobs} == {"done"}
    assert overlaps(engine.jobs) == []
    last_s, without_s = (max(job.ended_s or 0.0 for job in one.jobs) for one in (engine, without))
    assert last_s <= without_s + start_s + 1e-6


def six_ahead_of_the_long_one() -> Engine:
    engine = Engine(run_of(SHORT, (), devices=2), 1)
    for length_s in (2.0, 2.0, 2.0, 2.0, 100.0, 2.0, 2.0, 2.0, 2.0, 2.0):
        arrival = Arrival(at_s=0.0, workload="short", execution_s=length_s)
        engine.ask(SHORT.request(), arrival, SHORT)
    engine.advance(None)
    return engine


def test_a_lease_that_waits_for_a_long_one_takes_part_in_the_queue_again() -> None:
    jobs = six_ahead_of_the_long_one().jobs
    assert jobs[6].withdrawn == 1
    assert jobs[6].opened_s is not None
    assert jobs[6].opened_s < 20.0  # the long one ends after 105 s

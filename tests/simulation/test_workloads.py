"""Simulated workloads: known oracles, the shapes of the papers, books of warm workers, traces."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from gpu_scheduler.model import Request
from gpu_scheduler.parameters import Parameters, Quota
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.changes import Entry
from simulator.faults.tenant_usage import TenantUsage
from simulator.invariants import check
from simulator.workloads.arrivals import Poisson, Times
from simulator.workloads.engine import Engine
from simulator.workloads.experiments import Outcome, simulate, with_clients
from simulator.workloads.model import ClosedLoop, HostSpec, Run, Timing, Workload
from simulator.workloads.run_file import load_run
from tests.pool import Pool
from tests.scheduler_events import event_of

RUNS = Path(__file__).parents[2] / "simulator" / "runs"
THESIS = load_run(RUNS / "thesis.yaml")
SEEDS = range(1, 5)


def timed(name: str, execution_s: float, loading_s: float, memory_mib: int = 1000) -> Workload:
    return Workload(
        name=name,
        execution={"*": Timing(median_s=execution_s)},
        loading={"*": Timing(median_s=loading_s)},
        memory_mib=memory_mib,
    )


RESNET, BERT = timed("resnet", 2, 4), timed("bert", 8, 10)


def of_policy(policy: str, run: Run = THESIS) -> list[Outcome]:
    return [simulate(run, seed, policy)[0] for seed in SEEDS]


def mean(outcomes: list[Outcome], figure: str) -> float:
    return statistics.fmean(outcome.figures[figure] for outcome in outcomes)


def test_the_worked_example_of_the_thesis_under_balance() -> None:
    run = Run(
        hosts=(HostSpec(name="g", devices=2),),
        workloads={"resnet": RESNET, "bert": BERT},
        load=(Times(workload="resnet", at_s=(0, 2, 3)), Times(workload="bert", at_s=(1,))),
    )
    outcome, jobs = simulate(run, 1, "balance")
    rows = [(job.granted_s, job.workload.name, job.devices[0]) for job in jobs]
    assert rows == [
        (0, "resnet", "g.0"),
        (1, "bert", "g.1"),
        (6, "resnet", "g.0"),
        (8, "resnet", "g.0"),
    ]
    figures = outcome.figures
    assert (figures["makespan_s"], figures["cold"], figures["wait_mean_s"]) == (19, 2, 2.25)


def test_the_shapes_of_the_poisson_load() -> None:
    found = {name: of_policy(name) for name in ("balance", "srtf", "rr", "exclusive", "sticky")}
    cold = {name: mean(outcomes, "cold") for name, outcomes in found.items()}
    wait_s = {name: mean(outcomes, "wait_mean_s") for name, outcomes in found.items()}
    assert cold["balance"] == cold["srtf"] == cold["rr"] == 8
    assert wait_s["srtf"] < wait_s["balance"] < wait_s["exclusive"]
    assert wait_s["rr"] >= 5 * wait_s["balance"]
    assert cold["sticky"] <= min(6.2, cold["exclusive"])
    assert wait_s["sticky"] <= 1.2 * wait_s["balance"]


def test_sticky_with_more_patience_loads_less_often() -> None:
    patient = replace(THESIS, parameters={**THESIS.parameters, "policy.sticky.patience_s": "10"})
    found = of_policy("sticky", patient)
    assert mean(found, "cold") <= 5.2
    assert all(outcome.figures["unserved"] == 0 for outcome in found)


@pytest.mark.parametrize(("kept", "falls"), [("exclusive", 30.0), ("shared", 1.03)])
def test_the_fifth_client_of_a_closed_loop(kept: str, falls: float) -> None:
    run = load_run(RUNS / f"kaas-{kept}.yaml")
    run = replace(run, duration_s=60.0, measure_from_s=40.0)
    rates = [
        simulate(with_clients(run, clients), 1, "fifo")[0].figures["throughput_per_s"]
        for clients in (4, 5)
    ]
    ratio = rates[0] / rates[1]
    assert ratio >= falls if kept == "exclusive" else ratio <= falls


def test_equal_seeds_have_equal_traces_under_every_hash_seed() -> None:
    traces = set()
    for hash_seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-m", "orchgpu", "simulate", str(RUNS / "tenants.yaml"), "--json"],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        traces.add(json.loads(done.stdout)["trace"])
    assert len(traces) == 1
    assert traces != {simulate(load_run(RUNS / "tenants.yaml"), 2)[0].trace}


# ---------------------------------------------------------------------- warm workers


def alternating(parameters: dict[str, str], memory_mib: int = 1000) -> Engine:
    """Two workloads that take turns on one device of 1,500 MiB."""
    workloads = {name: timed(name, 1, 3, memory_mib) for name in ("a", "b")}
    times = {"a": (0.0, 20.0, 40.0), "b": (10.0, 30.0, 50.0)}
    run = Run(
        hosts=(HostSpec(name="g", memory_mib=1500),),
        workloads=workloads,
        load=tuple(Times(workload=name, at_s=at_s) for name, at_s in times.items()),
        parameters={"warm_idle_s_max": "5000", **parameters},
    )
    engine = Engine(run, 1)
    engine.simulate()
    assert check(engine.machine.state) == []
    assert residents_of_the_scheduler(engine) == residents_of_the_hosts(engine)
    return engine


def residents_of_the_scheduler(engine: Engine) -> dict[str, list[str]]:
    residents = engine.machine.state.inventory.residents
    return {name: sorted(residents.of(name)) for name in engine.devices}


def residents_of_the_hosts(engine: Engine) -> dict[str, list[str]]:
    return {name: sorted(device.warm) for name, device in engine.devices.items()}


@pytest.mark.parametrize(
    ("parameters", "memory_mib", "cold", "evictions"),
    [
        ({"warm_memory_pct_max": "100"}, 700, 2, 0),  # both stay
        ({"warm_memory_pct_max": "100"}, 1000, 6, 5),  # a grant evicts the other one
        ({"warm_workers_max": "0"}, 700, 6, 0),  # none stays
        ({"warm_memory_pct_max": "50"}, 700, 6, 5),  # one stays, until the other one ends
        ({"warm_memory_pct_max": "100", "warm_idle_s_max": "5"}, 700, 6, 6),  # none for long
    ],
)
def test_warm_workers_stay_within_their_limits(
    parameters: dict[str, str], memory_mib: int, cold: int, evictions: int
) -> None:
    engine = alternating(parameters, memory_mib)
    assert sum(job.cold for job in engine.jobs) == cold
    assert sum(device.evictions for device in engine.devices.values()) == evictions


def test_the_books_of_residents_equal_the_hosts_after_every_job() -> None:
    run = replace(load_run(RUNS / "azure2019.yaml"), duration_s=120.0)
    engine = Engine(run, 3, "sticky")
    for arrival in range(10):
        engine.advance(arrival * 12.0)
        assert residents_of_the_scheduler(engine) == residents_of_the_hosts(engine)
    jobs = engine.simulate()
    assert residents_of_the_scheduler(engine) == residents_of_the_hosts(engine)
    assert {job.outcome for job in jobs} == {"done"}


# ---------------------------------------------------------------------- loads


def test_a_client_of_a_closed_loop_waits_for_its_answer() -> None:
    loop = ClosedLoop(workload="resnet", clients=3, think_s=1.0, own_tenants=True)
    run = Run(
        hosts=(HostSpec(name="g"),), workloads={"resnet": RESNET}, load=(loop,), duration_s=50
    )
    jobs = simulate(run, 1)[1]
    for tenant in ("client-0", "client-1", "client-2"):
        own = [job for job in jobs if job.tenant == tenant]
        assert len(own) > 3
        for before, after in pairwise(own):
            assert after.asked_s == (before.ended_s or 0) + 1.0


def test_a_request_with_a_limit_of_its_wait_ends_as_busy() -> None:
    hurried = replace(BERT, max_wait_s=1.0)
    run = Run(
        hosts=(HostSpec(name="g"),),
        workloads={"bert": hurried},
        load=(Times(workload="bert", at_s=(0, 1)),),
    )
    jobs = simulate(run, 1)[1]
    assert [job.outcome for job in jobs] == ["done", "busy"]
    assert jobs[1].ended_s == 2.0


def test_the_rate_follows_from_the_occupancy() -> None:
    run = Run(
        hosts=(HostSpec(name="g", devices=4),),
        workloads={"resnet": RESNET},
        load=(Poisson(workload="resnet", rate_per_s=7.0),),
        occupancy=0.5,
        duration_s=4000.0,
    )
    assert simulate(run, 1)[0].figures["utilisation_pct"] == pytest.approx(50, abs=3)


# ---------------------------------------------------------------------- tenants


def test_each_policy_has_its_effect() -> None:
    run = replace(load_run(RUNS / "tenants.yaml"), duration_s=200.0)
    found = {name: of_policy(name, run) for name in ("fifo", "backfill", "fair")}
    assert mean(found["backfill"], "wait_mean_s") < mean(found["fifo"], "wait_mean_s")
    rare = "wait_mean_s.tenant.rare"
    assert mean(found["fair"], rare) < mean(found["fifo"], rare) / 2


def test_a_quota_keeps_room_for_the_others() -> None:
    run = replace(load_run(RUNS / "tenants.yaml"), duration_s=200.0)
    held = replace(run, parameters={**run.parameters, "quota.flood.devices": "3"})
    free, limited = of_policy("fifo", run), of_policy("fifo", held)
    for tenant, less in (("rare", True), ("flood", False)):
        name = f"wait_mean_s.tenant.{tenant}"
        assert (mean(limited, name) < mean(free, name)) is less


def test_a_grant_beyond_a_quota_is_reported() -> None:
    pool = Pool(1, Parameters())
    books = TenantUsage(Parameters(quotas={"t": Quota(memory_mib=150, devices=2)}))
    entries: list[Entry] = []
    for number in range(2):
        event = event_of(
            ops.Reserve,
            at_s=0.0,
            wall_s=0.0,
            attempt=str(number),
            request=Request(memory_mib=100, tenant="t"),
            wait=True,
        )
        entries += pool.machine.handle(event).changes
    broken = [text for entry in entries for text in books.note(entry)]
    assert broken == ["tenant t was granted 200 memory_mib of 150"]

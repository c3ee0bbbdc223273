"""Simulated workflows: their keys, their order, their promises and their figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from corekit.errors import AppError
from simulator.workloads.engine import Engine
from simulator.workloads.jobs import Job
from simulator.workloads.measures import figures
from simulator.workloads.model import Run
from simulator.workloads.run_file import load_run, parse_run

RUNS = Path(__file__).parents[3] / "simulator" / "runs"
HOSTS = "hosts: [{name: g, memory: 4GiB}]\n"
PAIR = """\
steps: 1ms
workflows:
  pair:
    steps:
    - {name: b, after: a, execution: 20ms, cost: 2}
    - {name: a, execution: {cuda: 10ms}, loading: 5ms, cost: {cuda: 1}}
"""


def parsed(text: str) -> Run:
    return parse_run(HOSTS + text, "run.yaml", Path())


def one_run(slo: str, policy: str = "slo") -> Engine:
    load = f"load: [{{kind: times, workflow: pair, at: [0, 1ms], slo: {slo}}}]\n"
    engine = Engine(parsed(PAIR + load), 1, policy)
    engine.simulate()
    return engine


def test_steps_follow_each_other_and_costs_add_up() -> None:
    engine = one_run("{latency: 1s}", "fifo")
    first = engine.workflows.runs[0]
    assert [job.attempt for job in engine.jobs[:3]] == ["r0.a", "r1.a", "r0.b"]
    assert (first.outcome, first.cost_usd) == ("done", 3.0)
    assert first.promised is False


@pytest.mark.parametrize(
    ("slo", "outcomes", "missed"),
    [
        ("{latency: 1s, cost: 3}", ["done", "done"], 0),
        ("{latency: 36ms}", ["done", "refused"], 0),
        ("{latency: 20ms}", ["refused", "refused"], 0),
        ("{cost: 2.5}", ["refused", "refused"], 0),
    ],
)
def test_runs_are_promised_or_refused(slo: str, outcomes: list[str], missed: float) -> None:
    engine = one_run(slo)
    assert [run.outcome for run in engine.workflows.runs] == outcomes
    found = figures(engine)
    assert found["missed"] == missed
    assert found["refused"] == outcomes.count("refused")
    assert found["goodput_pct"] == 50.0 * outcomes.count("done")


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        (PAIR + "load: [{kind: times, workflow: none, at: 0}]\n", "8:8", "is not declared"),
        (PAIR + "load: [{kind: times, at: 0}]\n", "8:8", "a workload or a workflow"),
        (
            PAIR.replace("name: a,", "name: a, after: b,")
            + "load: [{kind: times, workflow: pair, at: 0}]\n",
            "4:3",
            "steps wait for each other",
        ),
    ],
)
def test_errors_have_a_place(text: str, where: str, message: str) -> None:
    with pytest.raises(AppError) as caught:
        parsed(text)
    assert f"run.yaml:{where}" in caught.value.message
    assert message in caught.value.message


def test_arrivals_are_at_multiples_of_a_step() -> None:
    run = replace(load_run(RUNS / "ensemble.yaml"), duration_s=0.2)
    engine = Engine(run, 1, "slo")
    engine.simulate()
    assert engine.workflows.runs
    for one in engine.workflows.runs:
        assert one.asked_s * 1000 == pytest.approx(round(one.asked_s * 1000))


@pytest.mark.parametrize("name", ["ensemble", "cascade"])
@pytest.mark.parametrize("policy", ["slo", "clockwork"])
@pytest.mark.parametrize("seed", [1, 2])
def test_no_admitted_run_misses_where_times_are_as_stated(
    name: str, policy: str, seed: int
) -> None:
    run = replace(load_run(RUNS / f"{name}.yaml"), duration_s=0.7, occupancy=1.5)
    engine = Engine(run, seed, policy)
    engine.simulate()
    found = figures(engine)
    assert found["missed"] == 0
    assert 0 < found["refused"] < found["runs"]
    counts = engine.machine.state.memory.values
    assert counts["count/given"] == counts["count/kept"] == found["runs"] - found["refused"]
    assert set(counts) == {"count/given", "count/kept"}


def test_earliest_deadline_first_serves_what_is_due_first() -> None:
    load = (
        "load: [{kind: times, workflow: pair, at: [0, 1ms], slo: {latency: 9s}},"
        " {kind: times, workflow: pair, at: 2ms, slo: {latency: 1s}}]\n"
    )
    engine = Engine(parsed(PAIR + load), 1, "edf")
    engine.simulate()
    served = sorted((job for job in engine.jobs if job.granted_s is not None), key=_granted_s)
    assert [job.attempt for job in served[:2]] == ["r0.a", "r2.a"]


def _granted_s(job: Job) -> float:
    return job.granted_s or 0.0


def test_equal_seeds_give_equal_traces_also_with_a_sample() -> None:
    run = replace(load_run(RUNS / "cascade.yaml"), duration_s=0.5)
    run = replace(run, parameters={**run.parameters, "policy.slo.sample": "2"})
    traces = []
    for _ in range(2):
        engine = Engine(run, 7, "slo")
        engine.simulate()
        traces.append(engine.trace())
    assert traces[0] == traces[1]


@pytest.mark.parametrize("seed", [1, 2])
def test_promised_steps_join_batches_and_none_of_them_misses(seed: int) -> None:
    engine = Engine(replace(load_run(RUNS / "batches.yaml"), duration_s=0.4), seed, "slo")
    engine.simulate()
    found = figures(engine)
    assert found["missed"] == 0
    assert 0 < found["refused"] < found["runs"] / 2
    assert set(engine.machine.state.memory.values) == {"count/given", "count/kept"}
    began: dict[tuple[object, float], list[Job]] = {}
    for job in engine.jobs:
        if job.workload.name == "answer.model" and job.opened_s is not None:
            began.setdefault((job.devices, job.opened_s), []).append(job)
    assert 2 < max(map(len, began.values())) <= 8, "a run joins a batch that waits"
    for (_, opened_s), members in began.items():
        (ended_s,) = {job.ended_s for job in members}  # all of them end together
        loading_s = max(job.loading_s for job in members)
        assert ended_s == pytest.approx(opened_s + loading_s + 0.016 + 0.002 * (len(members) - 1))

"""Seeds of the whole system on virtual time; a failure names the seed to replay.

`make soak` has more of them, and `make sim` a thousand.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from corekit.values import replace
from gpu_scheduler.parameters import Parameters
from local_cloud.model.weather import AWS, Weather
from simulator.faults.function import Fate
from simulator.faults.scenario import FAULTS, Fault, Scenario, draw
from simulator.faults.seeds import simulate
from simulator.faults.world import ATTEMPTS_MAX
from tests.tracing import Recorder


def seeds(count: int, *, always: int) -> pytest.MarkDecorator:
    """So many seeds from 1; those beyond `always` are for `make soak`."""
    found = [
        pytest.param(seed, marks=[pytest.mark.soak] if seed > always else [])
        for seed in range(1, count + 1)
    ]
    return pytest.mark.parametrize("seed", found)


@seeds(30, always=12)
def test_every_invariant_holds(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    verdict = simulate(seed)
    assert sum(verdict.outcomes.values()) == verdict.jobs


@seeds(20, always=4)
def test_every_part_of_a_run_is_in_one_table(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    verdict = simulate(seed, replace(draw(seed), runs=4))
    assert sum(verdict.runs.values()) == 4


def test_runs_without_faults_succeed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    assert simulate(1, Scenario(jobs=2, runs=3)).runs == {"SUCCEEDED": 3}


@seeds(10, always=5)
def test_every_invariant_holds_in_the_weather_of_aws(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    scenario = replace(draw(seed), weather=replace(AWS, seed=str(seed)))
    verdict = simulate(seed, scenario)
    assert sum(verdict.outcomes.values()) == verdict.jobs


@pytest.mark.parametrize("seed", [4, 8])
def test_traces_change_no_decision_and_every_job_has_one(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Orchestrators die in these seeds: a successor continues the trace of its jobs."""
    caplog.set_level("CRITICAL")
    recorder = Recorder()
    scenario = replace(draw(seed), runs=0)  # the jobs of steps are not counted
    verdict = simulate(seed, scenario, recorder)
    assert verdict.trace == simulate(seed, scenario).trace
    roots = {span.context.trace_id: span for span in recorder.spans if span.name == "job"}
    assert len({root.attributes["orchgpu.job"] for root in roots.values()}) == verdict.jobs
    for span in recorder.spans:
        root = roots[span.context.trace_id]
        assert root.start_s <= span.start_s <= span.end_s
        assert span is root or span.parent is not None


def test_uploads_right_after_a_deploy_have_their_results(caplog: pytest.LogCaptureFixture) -> None:
    """The first five minutes: no rule is in force yet, and every object was just written."""
    caplog.set_level("CRITICAL")
    late = replace(AWS, seed="1", notification_s=(300.0, 300.0), versioning_rate=0.9)
    verdict = simulate(1, replace(CALM, weather=late))
    assert verdict.outcomes == {"SUCCEEDED": 6}
    assert verdict.virtual_s > 300


def test_minutes_without_concurrency_use_up_no_attempt(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    rare = Weather(seed="1", throttle_pause_s=(60.0, 60.0), throttle_s=(900.0, 900.0))
    assert simulate(1, replace(CALM, weather=rare)).outcomes == {"SUCCEEDED": 6}


def test_a_seed_is_the_same_run_under_every_hash_seed() -> None:
    traces = set()
    for hash_seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-m", "simulator.faults", "--seed", "7", "--weather", "aws", "--json"],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        traces.add(done.stdout.split('"traces"')[1])
    assert len(traces) == 1


CALM = Scenario(jobs=6, upload_pause_s_max=0.1)


@pytest.mark.parametrize(
    ("fate", "state"),
    [
        (Fate.SUCCEEDS, "SUCCEEDED"),
        (Fate.FAILS, "FAILED"),
        (Fate.CRASHES, "FAILED"),
        (Fate.NEVER_STARTS, "FAILED"),
        (Fate.HANGS, "FAILED"),
        (Fate.SLOW_COMMIT, "SUCCEEDED"),
    ],
)
def test_every_fate_has_its_end_state(
    fate: Fate, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    assert simulate(1, replace(CALM, fates=((fate, 1.0),))).outcomes == {state: 6}


def test_an_upload_whose_event_is_lost_has_a_result(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    assert simulate(1, replace(CALM, lost_event_rate=1.0)).outcomes == {"SUCCEEDED": 6}


@pytest.mark.parametrize("kind", FAULTS)
def test_one_fault_loses_no_job(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    faults = tuple(Fault(kind=kind, at_s=5.0 * n, target=0, lasts_s=30.0) for n in range(1, 3))
    verdict = simulate(3, replace(CALM, faults=faults))
    assert verdict.outcomes == {"SUCCEEDED": 6}


def test_impossible_requests_are_all_rejected(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    assert simulate(1, replace(CALM, request_mib=4096)).outcomes == {"REJECTED": 6}


CROWDED = replace(
    CALM,
    hosts=1,
    exclusive=True,
    urgent_jobs=3,
    work_s_max=60.0,
    parameters=Parameters(preempt_grace_s=2.0),
)


def test_jobs_that_agreed_end_for_urgent_ones_and_lose_no_attempt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One job is preempted more often than it has attempts."""
    caplog.set_level("CRITICAL")
    verdict = simulate(1, replace(CROWDED, jobs=2, urgent_jobs=20, preemptible=True))
    assert verdict.outcomes == {"SUCCEEDED": 22}
    assert verdict.preempted > ATTEMPTS_MAX


def test_jobs_that_did_not_agree_are_never_preempted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    verdict = simulate(1, CROWDED)
    assert verdict.outcomes == {"SUCCEEDED": 9}
    assert verdict.preempted == 0


def test_seeds_give_different_scenarios() -> None:
    assert len({repr(draw(seed)) for seed in range(20)}) == 20

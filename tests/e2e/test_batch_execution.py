"""Functions in AWS Batch, on the embedded cloud's: the real runner, kills and a cancel."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchgpu.core.batch import run_name
from tests.e2e.live import COPY, FunctionSpec, Live, live_system, until
from tests.e2e.test_orchestrator_crashes import CRASHING


def in_batch(script: str, **declared: Any) -> FunctionSpec:
    place = {"execution": "host", "host": {"batch": {"queue": "gpus", "definition": "fold"}}}
    return FunctionSpec(script, gpu=None, more=place, **declared)


FUNCTIONS = {
    "batch": in_batch(COPY),
    "dying": in_batch("#!/bin/sh\nkill -9 $PPID\nsleep 20\n", job={"attempts": 1}),
    "endless": in_batch("#!/bin/sh\nsleep 60\n", timeout=90),
}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live_system(tmp_path_factory.mktemp("live"), scale="0.3") as system:
        system.start_together("cloud", "scheduler")
        system.deploy(FUNCTIONS)
        yield system


@pytest.fixture
def _serving(live: Live) -> Iterator[None]:
    live.start("orchestrator")
    yield
    assert live.terminate("orchestrator") == 0


def runs(live: Live, job: str, attempt: int = 1) -> list[dict[str, str]]:
    named = [{"name": "JOB_NAME", "values": [run_name(job, attempt)]}]
    found: list[dict[str, str]] = live.client("batch").list_jobs(jobQueue="gpus", filters=named)[
        "jobSummaryList"
    ]
    return found


@pytest.mark.usefixtures("_serving")
def test_a_job_runs_in_batch_without_a_lambda_function_and_a_lease(live: Live) -> None:
    assert live.client("lambda").list_functions()["Functions"] == []
    job = live.upload("batch", "in.txt", b"data")
    result = live.result("batch", job)
    assert (result.state, len(result.files), result.device) == ("SUCCEEDED", 1, {}), result
    live.quiet("batch")
    (run,) = runs(live, job)
    assert result.nonce == run["jobId"]
    until("the end of its run", lambda: runs(live, job)[0]["status"] == "SUCCEEDED")
    shown = " ".join(live.orchgpu("job", job).split())
    assert "it ran in AWS Batch: it is declared so" in shown
    assert f"{job}, attempt" in live.orchgpu("logs", job)


@pytest.mark.parametrize("point", ["before:OrderRun", "after:OrderRun"])
def test_an_adopter_submits_what_was_not_submitted(live: Live, point: str, tmp_path: Path) -> None:
    command = (sys.executable, CRASHING, point, str(tmp_path / "crashed"))
    live.start("orchestrator-1", "orchestrator", command)
    job = live.upload("batch", f"{point}.txt", b"data")
    assert live.wait("orchestrator-1") == -9
    live.start("orchestrator")
    result = live.result("batch", job)
    assert (result.state, result.attempt, len(runs(live, job))) == ("SUCCEEDED", 1, 1), result
    live.quiet("batch")
    assert live.terminate("orchestrator") == 0


@pytest.mark.usefixtures("_serving")
def test_a_runner_that_is_killed_is_noticed_by_batchs_state(live: Live) -> None:
    job = live.upload("dying")
    result = live.result("dying", job)
    assert (result.state, result.reason) == ("FAILED", "FUNCTION_CRASHED"), result
    assert "ended as FAILED: Essential container in task exited" in result.detail
    assert live.take_dead_letters("dying") == [(job, "FUNCTION_CRASHED")]


@pytest.mark.usefixtures("_serving")
def test_a_cancel_ends_its_run(live: Live) -> None:
    job = live.upload("endless")
    until("RUNNING", lambda: live.steps().get(job) == "RUNNING")
    live.orchgpu("cancel", job)
    assert live.result("endless", job).state == "CANCELLED"
    live.quiet("endless")
    until("the end of its run", lambda: runs(live, job)[0]["status"] == "FAILED")
    assert runs(live, job)[0]["statusReason"] == f"{job}: its attempt 1 is over"

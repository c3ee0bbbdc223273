"""Checkpoints of functions on hosts: a killed host, credentials that end, a spot notice."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from contract.keys import checkpoint_key, progress_key
from contract.progress import Progress
from contract.result import Result
from remote_gpu.isolation.apply import SCRATCH_NAME
from tests.e2e.live import FunctionSpec, Live, get, live_system, until
from tests.instance_metadata import serving_metadata

BRIEF_CREDENTIALS = str(Path(__file__).with_name("orchestrator_with_brief_credentials.py"))
EVERY_S = 10  #: the least that a definition may name
#: Of the time between two checkpoints, for looks and for the save itself on a loaded machine.
SLACK_S = 10.0
#: It works for SECONDS in all its attempts together, and notes when each step was made.
STEPS = """#!/usr/bin/env python3
import json, os, pathlib, time

kept = pathlib.Path(os.environ["CHECKPOINT_DIR"], "steps.json")
fresh = kept.with_name("fresh.json")
steps = json.loads(kept.read_text()) if kept.exists() else []
begun = len(steps)
while len(steps) < SECONDS:
    time.sleep(1)
    steps.append(time.time())
    fresh.write_text(json.dumps(steps))
    fresh.rename(kept)
    pathlib.Path(os.environ["PROGRESS_FILE"]).write_text(f"{len(steps) / SECONDS} working")
out = pathlib.Path(os.environ["TMP_OUTPUT_DIR"], "steps.json")
out.write_text(json.dumps({"begun": begun, "steps": steps}))
"""
#: It writes its checkpoint when it has SIGTERM, and only then.
ON_NOTICE = """#!/bin/sh
if [ -e "$CHECKPOINT_DIR/state" ]; then
    cp "$CHECKPOINT_DIR/state" "$TMP_OUTPUT_DIR/"
    exit 0
fi
trap 'echo 7 > "$CHECKPOINT_DIR/state"; exit 1' TERM
echo working > "$PROGRESS_FILE"
while :; do sleep 0.2; done
"""


def kept(script: str, every_s: int, attempts: int) -> FunctionSpec:
    return FunctionSpec(
        script,
        timeout=3600,
        gpu={"memory": 64},
        job={"attempts": attempts, "checkpoint": f"{every_s}s"},
        more={"execution": "host"},
    )


def working(script: str, seconds: int) -> str:
    return script.replace("SECONDS", str(seconds))


@contextmanager
def one_host(folder: Path, variables: dict[str, str] | None = None) -> Iterator[Live]:
    """A system whose second host is not there yet; the variables are the first one's."""
    watching = {"gpu-a": ("--instance-metadata", "on")} if variables else {}
    with live_system(folder, scale="0.5", own_host_options=watching) as live:
        live.start_together("cloud", "scheduler")
        live.add_environment(variables or {})
        live.start("gpu-a")
        live.add_environment({})
        live.start("orchestrator")
        yield live


def begun(live: Live, function: str) -> str:
    """A job whose code runs on the first host, while there is a second one."""
    job = live.upload(function)
    scratch = live.home.state("gpu-a") / SCRATCH_NAME
    until("its code runs", lambda: list(scratch.rglob(".orchgpu-progress")))
    live.start("gpu-b")
    return job


def progress(live: Live, function: str, job: str, attempt: int) -> Progress | None:
    key = progress_key(job, attempt)
    body = get(live.client("s3"), f"{function}-intermediate", key)
    return None if body is None else Progress.from_json(body)


def output(live: Live, function: str, result: Result) -> Any:
    (file,) = result.files
    body = get(live.client("s3"), f"{function}-out", str(file["key"]))
    assert body is not None
    return json.loads(body)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_killed_host_costs_one_interval_at_most(tmp_path: Path) -> None:
    seconds = 50
    with one_host(tmp_path) as live:
        live.deploy({"steps": kept(working(STEPS, seconds), EVERY_S, attempts=2)})
        job = begun(live, "steps")

        def is_half_done() -> bool:
            seen = progress(live, "steps", job, 1)
            return seen is not None and seen.saved_at_s is not None and (seen.part or 0.0) >= 0.4

        until("a checkpoint", is_half_done)
        killed_at_s = time.time()
        live.kill("gpu-a")
        result = live.result("steps", job, within_s=400)
        assert (result.state, result.attempt) == ("SUCCEEDED", 2), result
        found = output(live, "steps", result)
        assert len(found["steps"]) == seconds
        assert 0 < found["begun"] < seconds
        lost_s = killed_at_s - found["steps"][found["begun"] - 1]
        assert lost_s <= EVERY_S + SLACK_S
        live.quiet("steps")
        assert get(live.client("s3"), "steps-intermediate", checkpoint_key(job)) is None


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_run_outlives_its_credentials(tmp_path: Path) -> None:
    """Twenty minutes with AWS's shortest credentials, 15 min, in a cloud that verifies them."""
    seconds = 1200
    with live_system(tmp_path, scale="0.5", verified=True) as live:
        live.start_together("cloud", "scheduler")
        live.start("gpu-a")
        live.start("orchestrator", command=(sys.executable, BRIEF_CREDENTIALS))
        live.deploy({"steps": kept(working(STEPS, seconds), 60, attempts=1)})
        job = live.upload("steps")
        result = live.result("steps", job, within_s=2400)
        assert (result.state, result.attempt) == ("SUCCEEDED", 1), result
        steps = output(live, "steps", result)["steps"]
        seen = progress(live, "steps", job, 1)
        assert seen is not None
        assert seen.saved_at_s is not None
        assert steps[-1] - seen.saved_at_s <= 60 + SLACK_S, "saved with renewed credentials"
        live.quiet("steps")


@pytest.mark.timeout(300)
def test_a_spot_notice_saves_what_the_code_has_done(tmp_path: Path) -> None:
    with serving_metadata() as (server, endpoint):
        variables = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": endpoint}
        with one_host(tmp_path, {**variables, "AWS_EC2_METADATA_DISABLED": "false"}) as live:
            live.deploy({"noticed": kept(ON_NOTICE, 3600, attempts=1)})
            job = begun(live, "noticed")
            at = datetime.now(UTC) + timedelta(seconds=22)  # 10 s of them are reserved
            notice = {"action": "terminate", "time": f"{at:%Y-%m-%dT%H:%M:%SZ}"}
            server.items["spot/instance-action"] = json.dumps(notice)
            assert live.wait("gpu-a") == 0
            result = live.result("noticed", job)
            report = live.report("noticed", job, 1)
            assert output(live, "noticed", result) == 7
            assert f"{job}, attempt 1" in (log := live.orchgpu("logs", job)), log
            assert "its device is taken away" in log
            live.quiet("noticed")
    assert report is not None
    assert report.reason == "PREEMPTED"
    assert (result.state, result.attempt) == ("SUCCEEDED", 2), "of one attempt that counts"

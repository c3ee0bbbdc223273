"""Jobs whose orchestrator is two functions: real processes, and no orchestrator among them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchgpu.local.programs import HOSTS, cloud_environment
from tests.e2e.live import COPY, FunctionSpec, Live, live_system, until

ACCOUNT = "000000000000"
HOLD = """#!/bin/sh
sleep 1
cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/"
"""
WHOLE = {"sharing": "exclusive", "count": 2}
FUNCTIONS = {
    "held": FunctionSpec(HOLD, gpu=WHOLE),
    "plain": FunctionSpec(COPY, gpu=None),
    "broken": FunctionSpec("#!/bin/sh\nexit 3\n", job={"attempts": 1}),
}


@pytest.fixture(scope="module")
def serverless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live_system(tmp_path_factory.mktemp("serverless")) as live:
        live.start("cloud")
        wake = {"SSGMD_WAKE": f"sqs:{live.endpoint}/{ACCOUNT}"}
        live.add_environment({**cloud_environment(live.endpoint), **wake})
        live.start("scheduler")
        live.start_together(*HOSTS)
        live.deploy(FUNCTIONS, "--serverless")
        yield live


def test_jobs_wait_for_devices_while_no_orchestrator_lives(serverless: Live) -> None:
    """All of them ask for both devices, so that all but one are woken by a grant."""
    jobs = [serverless.upload("held", f"{number}.txt") for number in range(3)]
    owners = [record["owner"] for record in _waiting(serverless)]
    assert owners == ["away:held-done"] * len(owners)
    results = [serverless.result("held", job) for job in jobs]
    assert [(one.state, len(one.files)) for one in results] == [("SUCCEEDED", 1)] * 3
    serverless.quiet("held")


def _waiting(live: Live) -> list[dict[str, str]]:
    """The records of two jobs that wait, whose visits are over."""

    def look() -> list[dict[str, str]] | None:
        records = live.scheduler("records")["records"]
        found = [one for one in records if one["step"] == "WAITING"]
        away = [one for one in found if str(one["owner"]).startswith("away:")]
        return away if len(away) == 2 else None

    return until("two jobs whose orchestrators are away", look)


def test_a_job_without_a_device(serverless: Live) -> None:
    assert serverless.result("plain", serverless.upload("plain")).state == "SUCCEEDED"
    serverless.quiet("plain")


def test_a_failure_is_noticed_by_the_end_of_its_lease(serverless: Live) -> None:
    job = serverless.upload("broken")
    assert serverless.result("broken", job).reason == "EXIT_NONZERO"
    serverless.quiet("broken")
    assert serverless.take_dead_letters("broken") == [(job, "EXIT_NONZERO")]


def test_a_killed_visit_is_followed_by_another(serverless: Live) -> None:
    """Each process of `complete` dies; the messages come again, and the sweep finds the rest."""
    job = serverless.upload("held", "killed.txt")
    ends_s = time.monotonic() + 4.0
    killed = 0
    while time.monotonic() < ends_s:
        killed += _kill_visits(serverless)
        time.sleep(0.1)
    assert killed
    client = serverless.client("lambda")
    client.invoke(FunctionName="held-orchestrate", Payload=json.dumps({}))  # as the schedule does
    assert serverless.result("held", job).state == "SUCCEEDED"
    serverless.quiet("held")


def _kill_visits(live: Live) -> int:
    """`kill -9` of every process of the visits' functions."""
    killed = 0
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = environ.read_bytes()
        except OSError:
            continue
        named = b"AWS_LAMBDA_FUNCTION_NAME=held-" in variables
        if named and str(live.home.path).encode() in variables:
            with contextlib.suppress(OSError):
                os.kill(int(environ.parent.name), signal.SIGKILL)
                killed += 1
    return killed


def test_removal_leaves_nothing(serverless: Live) -> None:
    serverless.orchgpu("rm", str(serverless.path / "fdl" / "fdl.yaml"))
    client = serverless.client("lambda")
    assert client.list_functions()["Functions"] == []
    assert client.list_event_source_mappings()["EventSourceMappings"] == []

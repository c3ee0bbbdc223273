"""Jobs whose orchestrator is two functions: real processes, and no orchestrator among them."""

from __future__ import annotations

import io
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchgpu.cli.commands.operation import doctor
from orchgpu.jobs.cloud import JobCloud
from orchgpu.local.programs import HOSTS, cloud_environment
from tests.e2e.live import COPY, DEVICE, FunctionSpec, Live, live_system, until

ACCOUNT = "000000000000"
HOLD = """#!/bin/sh
sleep 1
cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/"
"""
#: The handler of visits that kill themselves once, at a named point.
CRASHING = """
import os, signal
from orchgpu.replica import acting
from orchgpu.replica.actions.performer import Performer

def crash_at(point):
    if point != os.environ.get("CRASH_AT"):
        return
    try:
        open(os.environ["CRASH_MARKER"], "x").close()
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

class Crashing(Performer):
    async def _outcome(self, action, work):
        name = type(action).__name__
        crash_at(f"before {name}")
        event = await super()._outcome(action, work)
        crash_at(f"after {name}")
        return event

acting.Performer = Crashing
from orchgpu.replica.visits import Visits
handle = Visits().handle
"""
#: Before and after the job is the scheduler's; the others are for `make soak`.
ALWAYS = ("after OpenAttempt", "before Leave")
STEPS = (
    *("ReadInput", "OpenAttempt", "StageEnvelope", "RecordStaged", "Leave"),
    *("AdoptRecord", "ReadResult", "FinishJob", "DeleteMessages"),
)
POINTS = [
    pytest.param(point, marks=[] if point in ALWAYS else pytest.mark.soak)
    for step in STEPS
    for point in (f"before {step}", f"after {step}")
]
WHOLE = {"sharing": "exclusive", "count": 2}
FUNCTIONS = {
    "held": FunctionSpec(HOLD, gpu=WHOLE),
    "plain": FunctionSpec(COPY, gpu=None),
    "crash": FunctionSpec(DEVICE),
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


@pytest.mark.parametrize("point", POINTS)
def test_a_visit_that_dies_is_followed_by_another(
    serverless: Live, crashing: str, point: str, tmp_path: Path
) -> None:
    """Its messages come again, and the call of every minute, made here, finds the rest."""
    client = serverless.client("lambda")
    variables = {"CRASH_AT": point, "CRASH_MARKER": str(tmp_path / "crashed")}
    for name in (f"{crashing}-orchestrate", f"{crashing}-complete"):
        now = client.get_function_configuration(FunctionName=name)["Environment"]["Variables"]
        client.update_function_configuration(
            FunctionName=name, Environment={"Variables": {**now, **variables}}
        )
    job = serverless.upload(crashing, f"{point}.txt")
    until(f"a crash {point}", (tmp_path / "crashed").exists)
    client.invoke(FunctionName=f"{crashing}-orchestrate", InvocationType="Event", Payload="{}")
    result = serverless.result(crashing, job)
    assert (result.state, len(result.files)) == ("SUCCEEDED", 1)
    serverless.quiet(crashing)
    assert serverless.messages(crashing, "dlq") == 0


@pytest.fixture(scope="module")
def crashing(serverless: Live) -> str:
    """A function whose visits have the handler above."""
    client = serverless.client("lambda")
    for word in ("orchestrate", "complete"):
        location = client.get_function(FunctionName=f"crash-{word}")["Code"]["Location"]
        with urllib.request.urlopen(location) as answer:
            package = io.BytesIO(answer.read())
        with zipfile.ZipFile(package) as old, zipfile.ZipFile(made := io.BytesIO(), "w") as new:
            for name in old.namelist():
                is_handler = name == f"lambda_functions/{word}/handler.py"
                new.writestr(name, CRASHING if is_handler else old.read(name))
        client.update_function_code(FunctionName=f"crash-{word}", ZipFile=made.getvalue())
    return "crash"


def test_visits_are_part_of_their_function(serverless: Live) -> None:
    """To `ls`, `dlq ls` and the console; `doctor` looks for their resources."""
    with closing(JobCloud(serverless.endpoint)) as cloud:
        assert "plain-orchestrate" in cloud.deployed()
        assert cloud.direct_functions() == []
        assert doctor._deployed(cloud, "plain-orchestrate").endswith("without a server")


def test_removal_leaves_nothing(serverless: Live) -> None:
    serverless.orchgpu("rm", str(serverless.path / "fdl" / "fdl.yaml"))
    client = serverless.client("lambda")
    assert client.list_functions()["Functions"] == []
    assert client.list_event_source_mappings()["EventSourceMappings"] == []

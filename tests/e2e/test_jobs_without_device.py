"""Jobs of functions without a device: the same promises, without a lease."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from contract.keys import claim_key, staging_key
from tests.e2e.live import COPY, FunctionSpec, Live, get, until

SLOW = '#!/bin/sh\nsleep 2\ncp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/"\n'
ONCE = {"attempts": 1}
FUNCTIONS = {
    "plain": FunctionSpec(COPY, gpu=None),
    "raising": FunctionSpec("#!/bin/sh\necho last words\nexit 3\n", gpu=None),
    "dying": FunctionSpec("#!/bin/sh\nkill -9 $PPID\nsleep 20\n", gpu=None, job=ONCE),
    "neverstart": FunctionSpec(COPY, gpu=None, job=ONCE),
    "slow": FunctionSpec(SLOW, gpu=None),
    "endless": FunctionSpec("#!/bin/sh\nsleep 60\n", timeout=90, gpu=None),
}


@pytest.fixture(scope="module", autouse=True)
def _deployed(live: Live) -> None:
    live.deploy(FUNCTIONS)
    live.client("lambda").update_function_configuration(
        FunctionName="neverstart", Handler="no.such.handler"
    )


@pytest.fixture(scope="module")
def serving(live: Live) -> Iterator[None]:
    live.start("orchestrator")
    yield
    assert live.terminate("orchestrator") == 0


def record_of(live: Live, job: str) -> dict[str, Any]:
    records = live.scheduler("records")["records"]
    found: dict[str, Any] = next(one for one in records if one["holder"] == job)
    return found


@pytest.mark.usefixtures("serving")
def test_it_succeeds_without_ever_holding_a_lease(live: Live) -> None:
    job = live.upload("plain")
    result = live.result("plain", job)
    assert (result.state, result.device, len(result.files)) == ("SUCCEEDED", {}, 1)
    live.quiet("plain")
    record = record_of(live, job)
    assert {"RECEIVED", "STAGED", "RUNNING", "COMMITTED", "ENDED"} == set(record["times"])
    assert record["leases"] == []
    shown = live.orchgpu("job", job)
    assert "SUCCEEDED" in shown
    assert "the function claimed its attempt" in shown
    assert "device" not in shown


@pytest.mark.usefixtures("serving")
def test_a_script_that_fails_three_times_ends_in_a_dead_letter_and_is_redriven(live: Live) -> None:
    """Defect: its input was gone after three tries, in no list and without a dead letter."""
    job = live.upload("raising")
    result = live.result("raising", job)
    assert (result.state, result.reason, result.attempt) == ("FAILED", "EXIT_NONZERO", 3)
    live.quiet("raising")
    assert live.messages("raising", "dlq") == 1
    assert "EXIT_NONZERO" in live.orchgpu("dlq", "ls", "raising")
    assert job in live.orchgpu("jobs", "--function", "raising")
    repaired = dict(FUNCTIONS, raising=FunctionSpec(COPY, gpu=None))
    live.deploy({"raising": repaired["raising"]})
    live.orchgpu("dlq", "redrive", "raising")
    until("success", lambda: live.result("raising", job).state == "SUCCEEDED")
    live.quiet("raising")
    assert live.messages("raising", "dlq") == 0


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize(
    ("function", "reason"),
    [("dying", "FUNCTION_CRASHED"), ("neverstart", "FUNCTION_ERROR")],
)
def test_a_function_without_a_result_is_noticed_by_lambdas_record(
    live: Live, function: str, reason: str
) -> None:
    job = live.upload(function)
    result = live.result(function, job)
    assert (result.state, result.reason) == ("FAILED", reason), result
    assert live.take_dead_letters(function) == [(job, reason)]
    claim = get(live.client("s3"), f"{function}-intermediate", claim_key(job, 1))
    assert claim is not None
    never_started = json.loads(claim)["request"] == ""
    assert never_started == (function == "neverstart"), "no later start may run it"


@pytest.mark.usefixtures("serving")
def test_a_second_delivery_of_the_event_does_nothing(live: Live) -> None:
    job = live.upload("slow", "twice.txt")
    key = staging_key("slow", job, 1, 0)
    s3 = live.client("s3")
    until("the envelope", lambda: get(s3, "slow-intermediate", key))
    bucket = {"name": "slow-intermediate"}
    event = {"Records": [{"s3": {"bucket": bucket, "object": {"key": key}}}]}
    client = live.client("lambda")
    until("a claim", lambda: get(s3, "slow-intermediate", claim_key(job, 1)))
    answer = client.invoke(FunctionName="slow", Payload=json.dumps(event))
    assert json.load(answer["Payload"])["status"] in ("duplicate", "withdrawn")
    assert live.result("slow", job).state == "SUCCEEDED"
    live.quiet("slow")


@pytest.mark.usefixtures("serving")
def test_a_running_job_can_be_cancelled(live: Live) -> None:
    job = live.upload("endless")
    until("RUNNING", lambda: live.steps().get(job) == "RUNNING")
    live.orchgpu("cancel", job)
    assert live.result("endless", job).state == "CANCELLED"
    live.quiet("endless")
    assert record_of(live, job)["outcome"] == "CANCELLED"
    until("the end of its code", partial(has_report, live, "endless", job))


def has_report(live: Live, function: str, job: str) -> bool:
    report = live.report(function, job, 1)
    return report is not None and report.reason == "CANCELLED_BY_USER"


WORKFLOW = """\
functions:
  aws:
  - lambda:
      name: first
      init_script: first.sh
      input: [{path: flow-in/raw}]
      output: [{path: flow-mid/kept}]
  - lambda:
      name: second
      init_script: second.sh
      input: [{path: flow-mid/kept}]
      output: [{path: flow-out/done}]
    gpu: {kinds: cpu, memory: 64}
  - lambda:
      name: bare
      init_script: bare.sh
      input: [{path: bare-in}]
      output: [{path: bare-out}]
    job: none
"""


@pytest.fixture(scope="module")
def _workflow(live: Live) -> None:
    files = {"first.sh": COPY, "second.sh": COPY, "bare.sh": "#!/bin/sh\nexit 1\n"}
    live.deploy_text("workflow", WORKFLOW, files)


@pytest.mark.usefixtures("serving", "_workflow")
def test_run_follows_a_first_step_without_a_device(live: Live) -> None:
    """Defect: exit 2, "upload to s3://… instead"."""
    inputs = live.path / "queries"
    inputs.mkdir()
    for number in range(12):
        (inputs / f"{number}.txt").write_text(f"query {number}\n")
    files = [str(file) for file in sorted(inputs.iterdir())]
    shown = live.orchgpu("run", "first", *files, "--wait", "--json")
    jobs = json.loads(shown)["jobs"]
    assert [job["state"] for job in jobs] == ["SUCCEEDED"] * 12
    live.orchgpu("cost", jobs[0]["job_id"], "--cpu-s", "5", status=2)  # it has no device's time
    s3 = live.client("s3")

    def all_done() -> bool:
        return len(s3.list_objects_v2(Bucket="flow-out").get("Contents", [])) == 12

    until("the second step's outputs", all_done)
    live.quiet("first", "second")


@pytest.mark.usefixtures("_workflow")
def test_an_event_that_fails_without_jobs_is_a_dead_letter(live: Live) -> None:
    """The letter starts the function again."""
    live.client("lambda").update_function_event_invoke_config(
        FunctionName="bare",
        MaximumRetryAttempts=0,  # its pauses are minutes
    )
    s3 = live.client("s3")
    s3.put_object(Bucket="bare-in", Key="a b.txt", Body=b"bad")
    until("a dead letter", lambda: live.messages("bare", "dlq") == 1)
    (letter,) = json.loads(live.orchgpu("dlq", "ls", "bare", "--json"))["letters"]
    assert (letter["reason"], letter["input"]) == ("EXIT_NONZERO", "bare-in/a b.txt")
    assert "1 dead letter" in live.orchgpu("doctor", "bare")
    (live.path / "workflow" / "bare.sh").write_text(COPY)
    live.orchgpu("deploy", str(live.path / "workflow" / "fdl.yaml"))
    assert "1 sent back" in live.orchgpu("dlq", "redrive", "bare")
    until("its output", lambda: get(s3, "bare-out", "a b.txt"))
    assert live.messages("bare", "dlq") == 0

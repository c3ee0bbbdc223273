"""Faults of functions: the lease ends, and the job has the reason."""

from __future__ import annotations

import io
import json
import zipfile
from functools import partial

import pytest

from contract.result import Result
from tests.e2e.live import COPY, DEVICE, FunctionSpec, Live, get, until
from tests.weather import chosen, is_attempt

TWO_PROGRAMS = """#!/bin/sh
cat > "$TMPDIR/one.py" <<'END'
import remote_gpu.client as gpu
device = gpu.connect()
device.op("noop")
END
python3 "$TMPDIR/one.py" && python3 "$TMPDIR/one.py" && cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/"
"""
#: Says on SIGTERM that it saved its state; undisturbed it ends after a while.
PATIENT = """#!/bin/sh
trap 'echo saved; exit 0' TERM
echo started
n=0
while [ $n -lt 150 ]; do sleep 0.1; n=$((n+1)); done
cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/"
"""
#: Where one failed attempt says all there is to say: the next ones cost what the first did.
ONCE = {"attempts": 1}
FUNCTIONS = {
    "good": FunctionSpec(COPY),
    "failing": FunctionSpec(
        "#!/bin/sh\necho half > $TMP_OUTPUT_DIR/half.txt\necho last words\nexit 3\n"
    ),
    "crashing": FunctionSpec("#!/bin/sh\nkill -9 $PPID\nsleep 20\n"),
    "hanging": FunctionSpec(
        "#!/bin/sh\necho started\nsleep 60\n", timeout=8, threshold=5, job=ONCE
    ),
    "neverstart": FunctionSpec(COPY),
    "frozen": FunctionSpec(
        "#!/bin/sh\nkill -STOP $PPID\nsleep 30\n", timeout=6, threshold=3, job=ONCE
    ),
    "sleepy": FunctionSpec(COPY, job=ONCE),
    "throttled": FunctionSpec(COPY, job=ONCE),
    "twice": FunctionSpec(TWO_PROGRAMS),
    "impossible": FunctionSpec(COPY, gpu={"memory": 10_000_000}),
    "touching": FunctionSpec(DEVICE, gpu={"memory": "12.5%", "compute": 12.5}),
    "retried": FunctionSpec(COPY),
    "patient": FunctionSpec(
        PATIENT,
        timeout=60,
        gpu={"memory": 2048, "count": 2, "placement": "spread", "preemptible": True},
        job=ONCE,
    ),
    "urgent": FunctionSpec(COPY, gpu={"memory": 2048, "priority": 10, "preempts": True}),
    "cancelled": FunctionSpec("#!/bin/sh\nsleep 60\n", timeout=90, gpu={"memory": 2048}),
}


@pytest.fixture(scope="module", autouse=True)
def _deployed(live: Live) -> None:
    live.deploy(FUNCTIONS, "--allow-infeasible")
    live.client("lambda").update_function_configuration(
        FunctionName="neverstart", Handler="no.such.handler"
    )
    live.client("lambda").put_function_concurrency(
        FunctionName="throttled", ReservedConcurrentExecutions=0
    )
    live.start("orchestrator")


def until_updated(live: Live, function: str) -> None:
    waiter = live.client("lambda").get_waiter("function_updated_v2")
    waiter.wait(FunctionName=function, WaiterConfig={"Delay": 1, "MaxAttempts": 60})


def failed(live: Live, function: str, reason: str) -> Result:
    """All attempts, a failed result with its reason, a dead letter, nothing else left."""
    job = live.upload(function)
    result = live.result(function, job)
    attempts = FUNCTIONS[function].job.get("attempts", 3)
    assert (result.state, result.reason) == ("FAILED", reason), result
    assert is_attempt(result.attempt, attempts)
    live.quiet(function)
    assert live.messages(function, "dlq") == 1
    return result


def test_a_non_zero_exit_is_a_failure_with_its_last_words(live: Live) -> None:
    result = failed(live, "failing", "EXIT_NONZERO")
    report = live.report("failing", result.job_id, result.attempt)
    assert report is not None
    assert report.exit_code == 3
    assert "last words" in report.log_tail
    outputs = live.client("s3").list_objects_v2(Bucket="failing-out")
    assert outputs["KeyCount"] == 0, "no half output is published"


def test_a_crashed_function_is_reported_by_lambda(live: Live) -> None:
    failed(live, "crashing", "FUNCTION_CRASHED")


def test_a_script_that_hangs_is_stopped_before_lambda_does_it(live: Live) -> None:
    failed(live, "hanging", "TIMEOUT")


def test_a_function_that_never_starts_frees_its_lease(live: Live) -> None:
    failed(live, "neverstart", "FUNCTION_ERROR")


def test_a_runner_that_falls_silent_loses_its_session(live: Live) -> None:
    failed(live, "frozen", "SESSION_LOST")


def test_a_function_at_lambdas_time_limit_fails_as_function_timeout(live: Live) -> None:
    """A handler that only sleeps: nobody but Lambda can end it, and its record says why."""
    package = io.BytesIO()
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr(
            "sleepy.py", "import time\n\ndef handle(event, context):\n    time.sleep(60)\n"
        )
    functions = live.client("lambda")
    functions.update_function_code(FunctionName="sleepy", ZipFile=package.getvalue())
    functions.update_function_configuration(
        FunctionName="sleepy", Handler="sleepy.handle", Timeout=2
    )
    failed(live, "sleepy", "FUNCTION_TIMEOUT")


@pytest.mark.soak
def test_throttling_uses_up_no_attempt(live: Live) -> None:
    """The function may fail once; Lambda drops two events before it runs.

    Lambda keeps an event for 60 s at least; `test_weather.py` throttles functions at scaled time.
    """
    job = live.upload("throttled")
    for attempt in (1, 2):
        until("a dropped event", partial(live.report, "throttled", job, attempt))
    live.client("lambda").delete_function_concurrency(FunctionName="throttled")
    result = live.result("throttled", job)
    assert result.state == "SUCCEEDED", result
    assert result.attempt >= 3
    live.quiet("throttled")


def test_a_function_need_not_touch_its_device(live: Live) -> None:
    result = live.result("good", live.upload("good"))
    assert result.state == "SUCCEEDED"
    live.quiet("good")


def test_two_device_programs_in_turn_share_one_session(live: Live) -> None:
    result = live.result("twice", live.upload("twice"))
    assert result.state == "SUCCEEDED", result
    live.quiet("twice")


def test_an_impossible_request_fails_at_once_while_others_run(live: Live) -> None:
    impossible = live.upload("impossible")
    other = live.upload("touching")
    result = live.result("impossible", impossible)
    assert (result.state, result.reason) == ("REJECTED", "IMPOSSIBLE")
    assert "MiB" in result.detail
    assert live.result("touching", other).state == "SUCCEEDED"
    live.quiet("impossible", "touching")


def test_a_dead_letter_can_be_redriven_and_then_succeeds(live: Live) -> None:
    """Poison → three attempts → dead-letter queue → fixed → redriven → success, result replaced."""
    functions = live.client("lambda")
    functions.update_function_configuration(FunctionName="retried", Handler="no.such.handler")
    until_updated(live, "retried")  # in weather the previous handler runs until then
    job = failed(live, "retried", "FUNCTION_ERROR").job_id
    functions.update_function_configuration(
        FunctionName="retried", Handler="lambda_functions.gpu_runner.handler.handle"
    )
    (letter,) = json.loads(live.orchgpu("dlq", "ls", "retried", "--json"))["letters"]
    assert (letter["job_id"], letter["reason"]) == (job, "FUNCTION_ERROR")
    assert letter["input"] == "retried-in/a.txt"
    # looking took nothing away
    assert "1 sent back" in live.orchgpu("dlq", "redrive", "retried", "--job", job)

    def succeeded() -> bool:
        body = get(live.client("s3"), "retried-intermediate", f"results/{job}.json")
        return body is not None and json.loads(body)["state"] == "SUCCEEDED"

    until("success after the redrive", succeeded)
    live.quiet("retried")
    left = json.loads(live.orchgpu("dlq", "ls", "retried", "--json"))["letters"]
    # in weather a deleted message may come back: at-least-once delivery
    assert not left or (chosen() and {letter["job_id"] for letter in left} == {job})


def test_running_and_waiting_jobs_are_cancelled_and_the_devices_free(live: Live) -> None:
    jobs = [live.upload("cancelled", f"{n}.txt") for n in range(3)]  # and two devices

    def steps() -> dict[str, str] | None:
        found = live.steps()
        mine = {job: found.get(job, "") for job in jobs}
        return mine if sorted(mine.values()) == ["RUNNING", "RUNNING", "WAITING"] else None

    found = until("two run and one waits", steps)
    order = sorted(jobs, key=lambda job: found[job] == "RUNNING")
    live.orchgpu("cancel", *order, "--reason", "a test")
    for job in jobs:
        result = live.result("cancelled", job)
        assert (result.state, result.reason) == ("CANCELLED", "CANCELLED_BY_USER")
        assert result.detail == "cancelled: a test"
    live.quiet("cancelled")
    assert live.messages("cancelled", "dlq") == 0


def test_a_preempted_job_runs_again_and_the_attempt_does_not_count(live: Live) -> None:
    patient = live.upload("patient")
    until("the preemptible job runs", lambda: live.steps().get(patient) == "RUNNING")
    urgent = live.upload("urgent")
    result = live.result("urgent", urgent)
    assert result.state == "SUCCEEDED", result
    assert is_attempt(result.attempt, 1)
    again = live.result("patient", patient)
    assert again.state == "SUCCEEDED", "of one attempt that counts"
    assert is_attempt(again.attempt, 2)
    reports = [live.report("patient", patient, n) for n in range(1, again.attempt)]
    (report,) = [one for one in reports if one is not None and one.reason == "PREEMPTED"]
    assert report.log_tail.endswith("saved\n"), "it had SIGTERM, and time"
    live.quiet("patient", "urgent")
    assert live.messages("patient", "dlq") == 0

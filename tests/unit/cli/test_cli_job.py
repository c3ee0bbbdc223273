"""One job's timeline, from the scheduler's record and the cloud's objects."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from contract.result import Report, Result
from contract.states import Reason
from corekit.decode import encode
from corekit.ids import LeaseId
from corekit.values import replace
from gpu_scheduler.model import EndReason, Record, Step
from gpu_scheduler.verdicts import Explanation
from orchgpu.cli.commands.jobs.job import echo_end, echo_gantt, echo_head, job_json
from orchgpu.core.routing import InputEvent
from orchgpu.jobs.known import Known, Scheduled, latencies, moments, wait_text
from orchgpu.jobs.summary import summary_of
from orchgpu.jobs.waiting import reason_of_wait
from tests.history_records import job_lease, job_record, job_result

INPUT = InputEvent(
    bucket="in",
    key="q.fa",
    version_id="v",
    etag="e",
    size=1,
    event_name="ObjectCreated:Put",
    event_time="1970-01-01T00:01:40.000Z",
)
STEPS = {
    "RECEIVED": 100.5,
    "RESERVED": 100.6,
    "STAGED": 100.7,
    "RUNNING": 100.9,
    "LEASE_ENDED": 103.2,
    "COMMITTED": 103.5,
    "ENDED": 104.0,
}


def record(**fields: Any) -> Record:
    given: dict[str, Any] = {
        "attempt": 2,
        "step": Step.ENDED,
        "outcome": "SUCCEEDED",
        "block": {"function": "f", "input": encode(INPUT)},
        "times": STEPS,
    }
    return job_record(**{**given, **fields})


def result(**fields: Any) -> Result:
    given: dict[str, Any] = {
        "times": {"EStart": 101.0, "EEnd": 103.0, "committed": 103.4},
        "files": [{"bucket": "out", "key": "q.tsv", "size": 3, "sha256": "ab"}],
        "device": {"host": "gpu-a", "kind": "cpu", "model": "X"},
    }
    return job_result(**{**given, **fields})


def known(**fields: Any) -> Known:
    given: dict[str, Any] = {
        "job": "j1",
        "function": None,
        "scheduled": Scheduled(record=record()),
        "result": result(),
        "reports": {},
    }
    return Known(**{**given, **fields})


def failed_attempt(n: int) -> Report:
    return Report(
        job_id="j1",
        attempt=n,
        nonce="n",
        reason="EXIT_NONZERO",
        exit_code=3,
        detail="exited 3",
        log_tail="boom",
        times={"EStart": 100.1, "EEnd": 100.2},
    )


def test_an_effect_is_never_before_its_cause() -> None:
    """The orchestrator notes the envelope after it is stored, and the function may start first."""
    late = record(times=STEPS | {"STAGED": 101.4, "RUNNING": 101.2})
    told = [
        moment.id.partition("@")[0] for moment in moments(known(scheduled=Scheduled(record=late)))
    ]
    chain = [one for one in told if one in ("STAGED", "RUNNING", "EStart:2", "EEnd:2", "result")]
    assert chain == ["STAGED", "RUNNING", "EStart:2", "EEnd:2", "result"]


def test_a_timeline_goes_from_the_queue_over_the_device_to_the_end() -> None:
    told = moments(known())
    assert [m.at_s for m in told] == sorted(m.at_s for m in told)
    assert [m.name for m in told if m.name] == [
        "RStart",
        "NStart",
        "EStart",
        "EEnd",
        "NEnd",
        "REnd",
    ]
    assert {m.where for m in told} == {"queue", "scheduler", "orchestrator", "device", "function"}
    assert latencies(told) == {"RLat": 4.0, "DLat": 1.0, "ELat": 2.0}


def test_a_wait_for_the_device_is_shown_between_the_envelope_and_the_session() -> None:
    """The device may be free before the envelope is noted: the line follows what it waited with."""
    fields: dict[str, Any] = {"attempt": 2, "lease": LeaseId("now"), "ahead": True}
    newest = job_lease("j1", 100.6, 103.2, booked_s=100.65, loaded_ahead_s=3.04, **fields)
    first = job_lease("j1", 90.0, 95.0, lease=LeaseId("old"), ahead=True, booked_s=92.5)
    withdrawn = job_lease("j1", 96.0, 99.0, lease=LeaseId("gone"), ahead=True, active_s=None)
    held = record(lease=LeaseId("now"), leases=(first, withdrawn, newest))
    told = [m.what for m in moments(known(scheduled=Scheduled(record=held)))]
    assert "lease granted ahead on h/0 (1000 MiB)" in told
    at = told.index("waited ahead for the device: 0.1 s, 3.0 s loaded ahead")
    assert told[at - 1] == "envelope staged, which starts the function"
    assert told[at + 1].startswith("session opened")
    assert [what for what in told if "waited ahead" in what][:1] == [
        "waited ahead for the device: 2.5 s (attempt 1)"
    ]
    assert len([what for what in told if "waited ahead" in what]) == 2


def test_the_end_of_a_lease_whose_device_did_not_become_free() -> None:
    gone = job_lease(
        *("j1", 100.6, 103.2),
        attempt=2,
        lease=LeaseId("gone"),
        ahead=True,
        active_s=None,
        reason=EndReason.WITHDRAWN,
        detail="device h/0 does not become free for it: DRAINED",
    )
    held = record(lease=LeaseId("gone"), leases=(gone,))
    told = [m.what for m in moments(known(scheduled=Scheduled(record=held)))]
    assert f"lease ended, its device did not become free: {gone.detail}" in told
    later = record(lease=None, leases=(gone,))
    told = [m.what for m in moments(known(scheduled=Scheduled(record=later)))]
    assert f"lease ended: WITHDRAWN (attempt 2): {gone.detail}" in told


def test_a_job_whose_lease_waits_ahead_has_that_reason_until_its_device_is_free() -> None:
    now = LeaseId("now")
    ahead = job_lease("j1", 100.6, None, lease=now, ahead=True, active_s=None)
    held = record(step=Step.STAGED, lease=now, leases=(ahead,))
    why = Explanation(
        devices_known=1,
        devices_fitting=0,
        counts={},
        position=None,
        largest_fit="",
        sentence="it is granted ahead",
        after=(LeaseId("before"),),
    )
    waits = known(scheduled=Scheduled(record=held, waits=why))
    assert summary_of(held).reason == reason_of_wait(why) == Reason.AHEAD
    assert wait_text(waits, 101.0) == "it is granted ahead"
    booked = replace(ahead, booked_s=100.7)
    assert summary_of(record(lease=now, leases=(booked,))).reason == Reason.NONE


def test_failed_attempts_are_shown_and_do_not_count_as_the_jobs_code() -> None:
    told = moments(known(reports={1: failed_attempt(1)}))
    assert "attempt 1 failed: EXIT_NONZERO, exited 3" in [m.what for m in told]
    assert latencies(told)["ELat"] == 2.0


def test_a_failed_attempt_without_times_has_the_time_of_its_stored_report() -> None:
    report = replace(failed_attempt(1), times={}, reason="FUNCTION_CRASHED")
    what = "attempt 1 failed: FUNCTION_CRASHED, exited 3"
    stored = moments(known(reports={1: report}, reported_s={1: 100.65}))
    assert [m.at_s for m in stored if m.what == what] == [100.65]
    assert what in [m.what for m in moments(known(reports={1: report}))]


def test_a_failure_that_is_run_again_is_not_the_jobs_result() -> None:
    running = Scheduled(record=record(step=Step.RUNNING, outcome=None, times={"RECEIVED": 100.5}))
    job = known(scheduled=running, result=result(state="FAILED"))
    assert (job.state, job.over, job.standing) == ("RUNNING", False, None)
    assert latencies(moments(job)) == {"RLat": None, "DLat": None, "ELat": None}


def test_a_job_without_a_record_is_shown_by_its_result(capsys: pytest.CaptureFixture[str]) -> None:
    job = known(scheduled=None, result=result(state="FAILED", reason="KILLED", detail="signal 9"))
    assert (job.state, job.over, job.attempt) == ("FAILED", True, 2)
    assert [m.name for m in moments(job) if m.name] == ["EStart", "EEnd"]
    echo_head(job)
    echo_end(job)
    shown = capsys.readouterr().out
    assert "j1  function unknown  FAILED  attempt 2" in shown
    assert "KILLED: signal 9" in shown


def test_a_result_that_no_function_wrote_is_dated_too() -> None:
    written = result(state="CANCELLED", reason="CANCELLED_BY_USER", times={}, ended_at_s=102.0)
    (told,) = moments(known(scheduled=None, result=written))
    assert (told.at_s, told.what) == (102.0, "result written: CANCELLED_BY_USER")


@pytest.mark.parametrize("block", [{}, {"input": {"bucket": "b"}}, {"input": None}])
def test_a_foreign_block_has_no_upload(block: dict[str, Any]) -> None:
    told = moments(known(scheduled=Scheduled(record=record(block=block))))
    assert "RStart" not in [m.name for m in told]


def test_the_json_of_a_waiting_job_has_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    why = Explanation(
        devices_known=2,
        devices_fitting=0,
        counts={"MEMORY": 2},
        position=1,
        largest_fit="",
        sentence="position 1: 2 of 2 are lent",
    )
    waiting = record(step=Step.WAITING, outcome=None, times={"RECEIVED": 1.0, "WAITING": 1.1})
    job = known(scheduled=Scheduled(record=waiting, waits=why), result=None)
    shown = json.loads(json.dumps(job_json(job, moments(job))))
    assert shown["waits"]["position"] == 1
    assert shown["reason"] == "BUSY"
    assert (shown["state"], shown["result"], shown["RLat"]) == ("WAITING", None, None)
    echo_head(job)
    assert "position 1: 2 of 2 are lent" in capsys.readouterr().out


def test_the_gantt_of_a_job_has_a_row_per_interval(capsys: pytest.CaptureFixture[str]) -> None:
    echo_gantt(known())
    drawn = capsys.readouterr().out
    assert all(len(line) <= 80 for line in drawn.splitlines())
    rows = [line.split("  ")[:3] for line in drawn.splitlines() if line.strip()]
    assert [row[0].strip() for row in rows if row[0]] == [
        "queue",
        "scheduler",
        "function",
        "device",
    ]
    assert "█" in drawn
    told = job_json(known(), moments(known()))["timeline"]
    assert isinstance(told, list)
    assert {
        "name": "running",
        "lane": "function",
        "start_s": 101.0,
        "end_s": 103.0,
        "attempt": 2,
    } in told


def test_the_gantt_is_ascii_where_the_output_has_no_block_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", output)
    echo_gantt(known())
    output.seek(0)
    assert "#" in output.read()


def test_a_job_without_moments_has_no_gantt(capsys: pytest.CaptureFixture[str]) -> None:
    echo_gantt(known(scheduled=Scheduled(record=record(block={}, times={})), result=None))
    assert capsys.readouterr().out == ""


def test_a_job_shows_the_devices_of_its_leases_after_their_end() -> None:
    first = job_lease("one", 90.0, 95.0, reason=EndReason.HOST_LOST)
    newest = job_lease("two", 100.6, 103.2, attempt=2)
    kept = record(lease=newest.lease, leases=(first, newest))
    job = known(scheduled=Scheduled(record=kept), result=None)
    found = moments(job)
    told = {m.what for m in found}
    assert "lease granted on h/0 cuda L4 (attempt 1)" in told
    assert "lease ended: HOST_LOST (attempt 1)" in told
    assert "lease granted on h/0 (1000 MiB)" in told
    shown = job_json(job, found)
    assert shown["device"] == "h/0 cuda L4"
    leases = shown["leases"]
    assert isinstance(leases, list)
    assert [one["reason"] for one in leases] == ["HOST_LOST", "DONE"]

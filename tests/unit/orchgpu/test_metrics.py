"""The counters of an orchestrator, as Prometheus reads them and in CloudWatch's log format."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from contract.result import SECRET_REFUSED
from contract.states import Reason
from corekit.aio.process import JsonLines
from corekit.metrics import METRICS
from corekit.values import replace
from gpu_scheduler.promises import Slo
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.job import Job
from orchgpu.core.promised import Promised, promised
from orchgpu.core.routing import InputEvent
from orchgpu.replica.metrics import EmbeddedMetrics, OrchestratorMetrics
from orchgpu.replica.observer import Performed
from tests.unit.orchgpu.jobs import EXPLANATION, FUNCTION, JOB, NOW, granted, record

SENT_AT_S = 1_000.0
NOW_S = 1_100.0
INPUT = InputEvent(
    bucket="in", key="k", version_id="v", etag="e", size=1, event_name="", event_time=""
)


class Clock:
    """A clock that stands."""

    def wall_s(self) -> float:
        return NOW_S

    def monotonic_s(self) -> float:
        return 1.0


def job(id_: str = JOB, sent_at_s: float | None = SENT_AT_S) -> Job:
    return Job(
        id=id_,
        function=FUNCTION,
        input=INPUT,
        receipt_handles={},
        received_at_s=0.0,
        sent_at_s=sent_at_s,
    )


@pytest.fixture
def metrics() -> OrchestratorMetrics:
    found = OrchestratorMetrics(Clock(), {JOB: job(), "other": job("other", sent_at_s=None)})
    found.serves({"search": FUNCTION, "idle": replace(FUNCTION, name="idle")})
    return found


def failed(metrics: OrchestratorMetrics, reason: Reason, detail: str = "") -> None:
    action = do.RecordAttemptFailure(job=JOB, attempt=1, reason=reason, detail=detail, pause_s=0)
    event = on.AttemptFailureRecorded(**NOW, job=JOB, record=record(), pause_s=0)
    metrics.performed(Performed(job(), action, event, NOW))


def finished(
    metrics: OrchestratorMetrics, outcome: str, reason: Reason, ended: Promised | None = None
) -> None:
    action = do.FinishJob(
        job=JOB,
        outcome=outcome,
        reason=reason.value,
        detail="",
        payload=None,
        received_at_s=0.0,
        committed_at_s=0.0,
        promised=ended,
    )
    metrics.performed(Performed(job(), action, on.Finished(**NOW, job=JOB), NOW))


def opened(metrics: OrchestratorMetrics, event: on.Event) -> None:
    function = FUNCTION
    action = do.OpenAttempt(
        job=JOB,
        attempt=1,
        revision=0,
        receipt_handle="h",
        payload={},
        request=function.request,
        hold=function.hold,
        received_at_s=0.0,
    )
    metrics.performed(Performed(job(), action, event, NOW))


def test_a_replica_without_jobs_exposes_every_metric(metrics: OrchestratorMetrics) -> None:
    described = [line.split()[2] for line in metrics.lines() if line.startswith("# TYPE ")]
    assert set(described) == {
        name for name, metric in METRICS.items() if metric.program == "orchestrator"
    }
    assert len(described) == len(set(described))
    lines = list(metrics.lines())
    assert 'orchgpu_messages_received_total{function="idle"} 0' in lines, "a rate needs a start"


def test_attempts_are_counted_by_answer_and_by_reason(metrics: OrchestratorMetrics) -> None:
    lease = granted()
    opened(metrics, on.AttemptGranted(**NOW, job=JOB, attempt=1, granted=lease, record=record()))
    opened(metrics, on.AttemptWaiting(**NOW, job=JOB, record=record(), explanation=EXPLANATION))
    opened(metrics, on.AttemptImpossible(**NOW, job=JOB, explanation=EXPLANATION))
    opened(metrics, on.AttemptImpossible(**NOW, job=JOB, explanation=EXPLANATION, busy=True))
    failed(metrics, Reason.SESSION_LOST)
    finished(metrics, "FAILED", Reason.EXIT_NONZERO)
    finished(metrics, "SUCCEEDED", Reason.NONE)
    reasons = ("BUSY", "EXIT_NONZERO", "GRANTED", "IMPOSSIBLE", "SESSION_LOST", "WAITING")
    lines = list(metrics.lines())
    for reason in reasons:
        assert f'orchgpu_attempts_total{{function="search",reason="{reason}"}} 1' in lines
    labels = 'function="search",outcome="FAILED",reason="EXIT_NONZERO"'
    assert f"orchgpu_jobs_finished_total{{{labels}}} 1" in lines


def test_a_missed_promise_is_counted_and_logged_with_its_cause(
    metrics: OrchestratorMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    slo = Slo(latency_s=10.0, cost_usd=0.5)
    for cost_usd in (0.75, 0.25):
        ended = promised(slo, 3.0, "SUCCEEDED", "NONE", cost_usd)
        finished(metrics, "SUCCEEDED", Reason.NONE, ended)
    lines = list(metrics.lines())
    assert 'orchgpu_promises_total{name="search",outcome="missed_COST"} 1' in lines
    assert 'orchgpu_promises_total{name="search",outcome="kept"} 1' in lines
    (missed,) = [one for one in caplog.records if getattr(one, "event", "") == "promise_missed"]
    assert getattr(missed, "cause", "") == "COST"
    assert "0.75 of 0.5 USD" in missed.getMessage()


def test_a_failed_call_counts_nothing(metrics: OrchestratorMetrics) -> None:
    action = do.RecordAttemptFailure(job=JOB, attempt=1, reason=Reason.CAP, detail="", pause_s=0.0)
    event = on.CallFailed(**NOW, job=JOB, action=action, retryable=True, message="")
    metrics.performed(Performed(job(), action, event, NOW))
    assert not metrics.attempts


def test_a_refused_secret_is_counted(metrics: OrchestratorMetrics) -> None:
    failed(metrics, Reason.FUNCTION_ERROR, "LeaseNotOpen: something else")
    assert not metrics.refused_secrets
    failed(metrics, Reason.FUNCTION_ERROR, f"LeaseNotOpen: {SECRET_REFUSED}: the proof is wrong")
    assert metrics.refused_secrets == {("search",): 1}


def test_the_oldest_message_is_that_of_a_job_in_hand(metrics: OrchestratorMetrics) -> None:
    lines = list(metrics.lines())
    age_s = NOW_S - SENT_AT_S
    assert f'orchgpu_oldest_message_age_seconds{{function="search"}} {age_s}' in lines
    assert 'orchgpu_oldest_message_age_seconds{function="idle"} 0.0' in lines
    assert 'orchgpu_jobs{function="search",state="RECEIVED"} 2' in lines


def test_an_undeployed_function_has_no_backlog(metrics: OrchestratorMetrics) -> None:
    metrics.backlog["search", "jobs"] = 3
    assert 'orchgpu_backlog_messages{function="search",queue="jobs"} 3' in list(metrics.lines())
    metrics.serves({})
    assert not metrics.backlog


def embedded(metrics: OrchestratorMetrics, writer: EmbeddedMetrics) -> list[dict[str, Any]]:
    """The lines as they reach the log, by the rules of CloudWatch's specification."""
    found = []
    for line in writer.lines(metrics.families(), metrics.histograms(), NOW_S):
        made = logging.makeLogRecord({"name": "n", "msg": "metrics", "levelno": 20, **line})
        text = JsonLines().format(made)
        read: dict[str, Any] = json.loads(text)
        (directive,) = read["_aws"]["CloudWatchMetrics"]
        assert read["_aws"]["Timestamp"] == NOW_S * 1000
        assert directive["Namespace"] == "lab"
        (dimensions,) = directive["Dimensions"]
        assert len(dimensions) <= 30
        assert all(isinstance(read[name], str) and read[name] for name in dimensions)
        assert 0 < len(directive["Metrics"]) <= 100
        assert all(isinstance(read[one["Name"]], int | float) for one in directive["Metrics"])
        found.append(read)
    return found


def test_cloudwatch_gets_gauges_and_what_was_added(metrics: OrchestratorMetrics) -> None:
    writer = EmbeddedMetrics("lab")
    metrics.received[("search",)] += 5
    metrics.backlog["search", "jobs"] = 3
    metrics.own_time_of("search", 0.2)
    first = embedded(metrics, writer)
    metrics.received[("search",)] += 2
    second = embedded(metrics, writer)

    def value(lines: list[dict[str, Any]], name: str, **labels: str) -> object:
        (line,) = [line for line in lines if name in line and line.items() >= labels.items()]
        return line[name]

    for lines, received, times in ((first, 5, 1), (second, 2, 0)):
        assert value(lines, "orchgpu_messages_received_total", function="search") == received
        assert value(lines, "orchgpu_backlog_messages", function="search", queue="jobs") == 3
        assert value(lines, "orchgpu_job_own_seconds_count", function="search") == times
        assert value(lines, "orchgpu_scheduler_connected") == 0
    units = {
        one["Name"]: one["Unit"]
        for line in first
        for one in line["_aws"]["CloudWatchMetrics"][0]["Metrics"]
    }
    assert units["orchgpu_oldest_message_age_seconds"] == "Seconds"
    assert units["orchgpu_job_own_seconds_sum"] == "Seconds"
    assert units["orchgpu_backlog_messages"] == "Count"

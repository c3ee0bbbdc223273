"""The spans of jobs: those of the orchestrator, and those of the function, from its moments.

The jobs of a run of a workflow are in one trace, below the span of the run, which is derived from
its id: the replica that ends the run records it.

A function sends no spans: it has no access to a collector, and its time costs money. The moments
in its result or report become spans here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from contract.run import RUN_ID
from corekit.aio.clock import Clock
from corekit.tracing.context import TraceContext, parse_traceparent
from corekit.tracing.job import JobTrace, attempt_context, function_context
from corekit.tracing.span import AttributeValue, Span, SpanKind, Tracer
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.job import Job
from orchgpu.core.runs.actions import EndRun
from orchgpu.ports import Message
from orchgpu.replica.observer import Observer, Performed

logger = logging.getLogger(__name__)

#: Spans of a function's parts: name, first and last moment.
_PARTS = (
    ("function.claim", "invoked", "claimed"),
    ("function.script", "EStart", "EEnd"),
    ("function.outputs", "given_back", "committed"),
)


@dataclass(slots=True)
class _OpenAttempt:
    start_s: float
    reported: bool = False  #: the spans of its function are recorded


@dataclass(slots=True)
class _OpenJob:
    root: TraceContext
    attempts: dict[int, _OpenAttempt] = field(default_factory=dict)


class JobSpans(Observer):
    """Records the spans of the jobs in hand."""

    def __init__(self, tracer: Tracer, clock: Clock) -> None:
        self._tracer = tracer
        self._clock = clock
        self._jobs: dict[str, _OpenJob] = {}

    def received(self, message: Message) -> JobTrace:
        """The trace of the job that a message may begin; of a step's job, that of its run."""
        run = _run_of(message.body)
        parent = parse_traceparent(message.traceparent) if run is None else self._tracer.named(run)
        if message.traceparent and parent is None:
            shown = message.traceparent[:80]
            logger.warning("traceparent %r is not valid and is ignored", shown)
        now_s = self._clock.wall_s()
        return JobTrace(
            traceparent=self._tracer.root(parent).header,
            parent="" if parent is None else parent.header,
            sent_s=now_s if message.sent_at_s is None else min(now_s, message.sent_at_s),
            received_s=now_s,
        )

    def run_finished(self, action: EndRun) -> None:
        """Record the span of a run whose end this replica has written; of each of its tries one."""
        result, root = action.result, self._tracer.named(action.run)
        again = root.child("retry", result.retries) if result.retries else None
        attributes: dict[str, AttributeValue] = {
            "orchgpu.run": action.run,
            "orchgpu.workflow": result.workflow,
            "orchgpu.outcome": result.state.value,
            "orchgpu.reason": result.reason,
            "orchgpu.retries": result.retries,
        }
        self._tracer.record(
            Span(
                name="run",
                context=again or root,
                parent=root if again else None,
                start_s=result.started_at_s,
                end_s=result.ended_at_s,
                attributes=attributes,
                error="" if result.state == "SUCCEEDED" else result.reason,
            )
        )

    def performed(self, done: Performed) -> None:
        """Record the spans that end with an action, which led to that event."""
        job, action, event, began = done
        start_s = began["wall_s"]
        if isinstance(action, do.ForgetJob):
            self._jobs.pop(action.job, None)  # its spans are its next owner's
        if job is None:
            return
        trace = job.trace
        if trace is None or isinstance(event, on.CallFailed):
            return
        if isinstance(action, do.OpenAttempt):
            self._open(job, trace).attempts.setdefault(action.attempt, _OpenAttempt(start_s))
        elif isinstance(event, on.EnvelopeStaged):
            of = self._open(job, trace)
            self._attempt(of, event.attempt, start_s)
            parent = attempt_context(of.root, event.attempt)
            self._record("attempt.envelope", parent.child("envelope"), parent, start_s)
        elif isinstance(event, on.ResultRead) and event.result is not None:
            result = event.result
            self._attempt(self._open(job, trace), result.attempt, _first(result.times, start_s))
            self._function(job, trace, result.attempt, result.times, "")
        elif isinstance(event, on.ReportRead) and event.report is not None:
            report = event.report
            self._attempt(self._open(job, trace), report.attempt, _first(report.times, start_s))
            self._function(job, trace, report.attempt, report.times, report.reason)
        elif isinstance(action, do.RecordAttemptFailure):
            self._ended(job, trace, action.attempt, action.reason.value)
        elif isinstance(action, do.FinishJob):
            self._finished(job, trace, action, start_s)

    def _finished(self, job: Job, trace: JobTrace, action: do.FinishJob, start_s: float) -> None:
        error = "" if action.outcome == "SUCCEEDED" else action.reason
        of = self._open(job, trace)
        for attempt in list(of.attempts):
            self._ended(job, trace, attempt, error)
        root = of.root
        self._record("job.finish", root.child("finish"), root, start_s)
        queue = root.child("queue")
        self._record("job.queue", queue, root, trace.sent_s, trace.received_s)
        attributes: dict[str, AttributeValue] = {
            "orchgpu.job": job.id,
            "faas.name": job.function.name,
            "orchgpu.outcome": action.outcome,
            "orchgpu.reason": action.reason,
            "orchgpu.attempts": job.attempt,
        }
        now_s = self._clock.wall_s()
        parent = parse_traceparent(trace.parent)
        self._tracer.record(
            Span(
                name="job",
                context=root,
                parent=parent,
                start_s=trace.sent_s,
                end_s=now_s,
                kind=SpanKind.CONSUMER,
                attributes=attributes,
                error=error,
            )
        )
        self._jobs.pop(job.id, None)

    def _ended(self, job: Job, trace: JobTrace, attempt: int, error: str) -> None:
        of = self._open(job, trace)
        opened = of.attempts.pop(attempt, None)
        if opened is None:
            return
        attributes: dict[str, AttributeValue] = {
            "orchgpu.job": job.id,
            "orchgpu.attempt": attempt,
        }
        context = attempt_context(of.root, attempt)
        self._record("attempt", context, of.root, opened.start_s, None, attributes, error)

    def _function(
        self, job: Job, trace: JobTrace, attempt: int, times: Mapping[str, float], error: str
    ) -> None:
        of = self._open(job, trace)
        opened = of.attempts[attempt]
        if opened.reported or "invoked" not in times:
            return
        opened.reported = True
        context, parent = function_context(of.root, attempt), attempt_context(of.root, attempt)
        attributes: dict[str, AttributeValue] = {
            "orchgpu.job": job.id,
            "faas.name": job.function.name,
            "faas.trigger": "datasource",
        }
        start_s, end_s = times["invoked"], max(times.values())
        self._record("function", context, parent, start_s, end_s, attributes, error)
        for name, first, last in _PARTS:
            if first in times and last in times:
                child = context.child(name)
                self._record(name, child, context, times[first], times[last])

    def _open(self, job: Job, trace: JobTrace) -> _OpenJob:
        of = self._jobs.get(job.id)
        if of is None:
            root = parse_traceparent(trace.traceparent)
            assert root is not None, "written by `received` of a replica"
            of = self._jobs[job.id] = _OpenJob(root)
        return of

    def _attempt(self, of: _OpenJob, attempt: int, start_s: float) -> _OpenAttempt:
        """An attempt in hand; one of another replica's begins here with its first span."""
        return of.attempts.setdefault(attempt, _OpenAttempt(start_s))

    def _record(
        self,
        name: str,
        context: TraceContext,
        parent: TraceContext,
        start_s: float,
        end_s: float | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        error: str = "",
    ) -> None:
        self._tracer.record(
            Span(
                name=name,
                context=context,
                parent=parent,
                start_s=start_s,
                end_s=self._clock.wall_s() if end_s is None else end_s,
                attributes=attributes or {},
                error=error,
            )
        )


def _run_of(body: str) -> str | None:
    """The run whose step a message starts."""
    if '"step"' not in body:
        return None
    try:
        run = str(json.loads(body)["orchgpu"]["step"]["run"])
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    return run if RUN_ID.fullmatch(run) else None


def _first(times: Mapping[str, float], read_s: float) -> float:
    """The first moment of a result or report; the time of its read where it has none."""
    return min(times.values(), default=read_s)

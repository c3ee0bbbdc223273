"""The spans of the scheduler: the wait of a job's request, and its lease."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass

from corekit.aio.clock import Clock
from corekit.aio.driver import Journal
from corekit.aio.supervise import contained
from corekit.ids import JobId, LeaseId, split_attempt
from corekit.tracing.context import TraceContext, parse_traceparent
from corekit.tracing.job import attempt_context, job_trace_of
from corekit.tracing.span import AttributeValue, Span, SpanKind, Tracer
from gpu_scheduler.model import EndReason, LeaseState, Record
from gpu_scheduler.protocol import changes as to

#: Ends of a lease that are not faults.
_REGULAR = (None, EndReason.DONE, EndReason.RELEASED)


@dataclass(frozen=True, slots=True)
class _OpenLease:
    context: TraceContext
    parent: TraceContext  #: the attempt's
    granted_s: float
    attributes: dict[str, AttributeValue]


class SchedulerTraces:
    """Makes spans of durable changes, for jobs whose record has a trace."""

    def __init__(self, tracer: Tracer, clock: Clock) -> None:
        self._tracer = tracer
        self._clock = clock
        self._roots: dict[JobId, TraceContext] = {}  #: of live jobs
        self._leases: dict[LeaseId, _OpenLease] = {}  #: live ones that were granted since the start

    def changed(self, changes: Sequence[to.Entry]) -> None:
        """Record the spans that end with these changes."""
        parts = [part for change in changes for part in change.parts]
        records = list(_records(parts))
        for record in records:
            trace = job_trace_of(record.block)
            root = None if trace is None else parse_traceparent(trace.traceparent)
            if root is not None:
                self._roots[record.holder] = root
        for part in parts:
            if isinstance(part, to.LeaseGranted):
                self._granted(part)
            elif isinstance(part, to.LeaseChanged) and part.state is LeaseState.ENDED:
                self._ended(part)
        for record in records:
            if record.outcome is not None:
                self._roots.pop(record.holder, None)

    def _granted(self, granted: to.LeaseGranted) -> None:
        lease = granted.lease
        root = None if lease.holder is None else self._roots.get(lease.holder)
        if root is None:
            return
        attempt = split_attempt(lease.attempt)[1]
        parent = attempt_context(root, attempt)
        attributes: dict[str, AttributeValue] = {
            "orchgpu.lease": lease.id,
            "orchgpu.tenant": lease.tenant,
            "orchgpu.device": ",".join(share.device for share in lease.shares),
        }
        self._tracer.record(
            Span(
                name="scheduler.queue",
                context=parent.child("scheduler.queue", lease.id),
                parent=parent,
                start_s=granted.waiting_since_s,
                end_s=granted.granted_s,
                kind=SpanKind.SERVER,
                attributes=attributes,
            )
        )
        context = parent.child("scheduler.lease", lease.id)
        self._leases[lease.id] = _OpenLease(context, parent, granted.granted_s, attributes)

    def _ended(self, change: to.LeaseChanged) -> None:
        opened = self._leases.pop(change.lease, None)
        if opened is None:
            return
        reason = EndReason.DONE if change.reason is None else change.reason
        self._tracer.record(
            Span(
                name="scheduler.lease",
                context=opened.context,
                parent=opened.parent,
                start_s=opened.granted_s,
                end_s=self._clock.wall_s(),
                attributes={**opened.attributes, "orchgpu.reason": reason.value},
                error="" if change.reason in _REGULAR else reason.value,
            )
        )


def _records(parts: Sequence[to.Part]) -> Iterator[Record]:
    for part in parts:
        if isinstance(part, to.RecordWritten):
            yield part.record


class TracedJournal:
    """The journal, with traces that are notified of changes when they are written."""

    def __init__(self, journal: Journal[to.Entry], traces: SchedulerTraces) -> None:
        self._journal = journal
        self._traces = traces

    def append(self, changes: Sequence[to.Entry]) -> Awaitable[None]:
        """`corekit.aio.driver.Journal`."""
        durable = self._journal.append(changes)
        with contained("traces of changes"):
            self._traces.changed(changes)
        return durable

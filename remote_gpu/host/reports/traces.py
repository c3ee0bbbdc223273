"""The spans of a GPU host: the session of a lease, and its worker in it.

A worker has no network, so the host measures it from outside and records its spans.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from corekit.ids import HostId, LeaseId
from corekit.tracing.context import TraceContext, parse_traceparent
from corekit.tracing.span import AttributeValue, Span, SpanKind, Tracer
from gpu_scheduler.model import EndReason

logger = logging.getLogger(__name__)

#: Ends of a session that are not faults.
_REGULAR = (EndReason.DONE, EndReason.RELEASED)


@dataclass(slots=True)
class _OpenSession:
    """The moments of one session; wall clock."""

    opened_s: float
    parent: TraceContext | None = None  #: None = its client has sent none
    asked_s: float | None = None  #: its first lane needs a worker
    ready_s: float | None = None  #: the worker has taken the first lane
    over_s: float | None = None  #: the device is given back
    loading_s: float | None = None  #: spent by the worker on loading


class HostTraces:
    """Collects the moments of sessions; records their spans when the lease has ended."""

    def __init__(self, tracer: Tracer, host: HostId) -> None:
        self.enabled = tracer.enabled
        self._tracer = tracer
        self._host = host
        self._sessions: dict[LeaseId, _OpenSession] = {}

    def opened(self, lease: LeaseId) -> None:
        if self.enabled:
            self._sessions[lease] = _OpenSession(time.time())

    def traced(self, lease: LeaseId, traceparent: object) -> None:
        """The client of a session sent its trace context; the first valid one counts."""
        session = self._sessions.get(lease)
        if session is None or session.parent is not None:
            return
        parent = parse_traceparent(traceparent) if isinstance(traceparent, str) else None
        if parent is None:
            logger.warning("traceparent %.80r of lease %s is ignored", traceparent, lease)
        session.parent = parent

    def worker_asked(self, lease: LeaseId) -> None:
        """A lane needs the lease's worker."""
        session = self._sessions.get(lease)
        if session is not None and session.asked_s is None:
            session.asked_s = time.time()

    def worker_ready(self, lease: LeaseId) -> None:
        """The lease's worker took a lane."""
        session = self._sessions.get(lease)
        if session is not None and session.ready_s is None:
            session.ready_s = time.time()

    def worker_over(self, lease: LeaseId, loading_s: float | None) -> None:
        """The lease's worker has ended, or is another lease's from now on."""
        session = self._sessions.get(lease)
        if session is not None and session.over_s is None:
            session.over_s, session.loading_s = time.time(), loading_s

    def closed(self, lease: LeaseId, reason: EndReason) -> None:
        """The session is over."""
        session = self._sessions.pop(lease, None)
        if session is None or session.parent is None:
            return
        parent, now_s = session.parent, time.time()
        context = parent.child("gateway.session", self._host, lease)
        attributes: dict[str, AttributeValue] = {
            "orchgpu.lease": lease,
            "host.name": self._host,
            "orchgpu.reason": reason.value,
        }
        error = "" if reason in _REGULAR else reason.value
        self._tracer.record(
            Span(
                name="gateway.session",
                context=context,
                parent=parent,
                start_s=session.opened_s,
                end_s=now_s,
                kind=SpanKind.SERVER,
                attributes=attributes,
                error=error,
            )
        )
        self._worker(session, context, now_s)

    def _worker(self, session: _OpenSession, context: TraceContext, now_s: float) -> None:
        if session.asked_s is None:
            return
        ready_s = session.ready_s
        self._record("worker.start", context, session.asked_s, ready_s or now_s, {})
        if ready_s is not None:
            loading_s = session.loading_s
            attributes = {} if loading_s is None else {"orchgpu.loading_s": loading_s}
            self._record("worker", context, ready_s, session.over_s or now_s, attributes)

    def _record(
        self,
        name: str,
        parent: TraceContext,
        start_s: float,
        end_s: float,
        attributes: dict[str, float],
    ) -> None:
        self._tracer.record(
            Span(
                name=name,
                context=parent.child(name),
                parent=parent,
                start_s=start_s,
                end_s=end_s,
                attributes=attributes,
            )
        )

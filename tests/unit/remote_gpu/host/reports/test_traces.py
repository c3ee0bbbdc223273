"""The spans of a session and of its worker, from the moments that the host sees."""

from __future__ import annotations

import pytest

from corekit.ids import HostId, LeaseId
from corekit.tracing.context import TraceContext
from corekit.tracing.span import NoTracer
from gpu_scheduler.model import EndReason
from remote_gpu.host.reports.traces import HostTraces
from tests.tracing import Recorder

LEASE = LeaseId("l")
PARENT = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", True)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def traces(recorder: Recorder) -> HostTraces:
    return HostTraces(recorder, HostId("gpu-a"))


def test_a_session_with_a_worker(traces: HostTraces, recorder: Recorder) -> None:
    traces.opened(LEASE)
    traces.traced(LEASE, PARENT.header)
    for _ in range(2):  # a second lane changes nothing
        traces.worker_asked(LEASE)
        traces.worker_ready(LEASE)
    traces.worker_over(LEASE, 1.5)
    traces.worker_over(LEASE, 9.0)
    traces.closed(LEASE, EndReason.DONE)
    spans = recorder.by_name()
    session = spans["gateway.session"]
    assert (session.parent, session.error) == (PARENT, "")
    for name in ("worker.start", "worker"):
        span = spans[name]
        assert span.parent == session.context
        assert session.start_s <= span.start_s <= span.end_s <= session.end_s
    assert spans["worker"].attributes == {"orchgpu.loading_s": 1.5}


def test_a_session_without_lanes_that_is_lost(traces: HostTraces, recorder: Recorder) -> None:
    traces.opened(LEASE)
    traces.traced(LEASE, PARENT.header)
    traces.closed(LEASE, EndReason.SESSION_LOST)
    (span,) = recorder.spans
    assert (span.name, span.error) == ("gateway.session", "SESSION_LOST")


@pytest.mark.parametrize("text", ["", "00-nonsense", 7, None, {"traceparent": PARENT.header}])
def test_a_context_that_is_not_valid_is_ignored(
    traces: HostTraces, recorder: Recorder, caplog: pytest.LogCaptureFixture, text: object
) -> None:
    traces.opened(LEASE)
    traces.traced(LEASE, text)
    assert "is ignored" in caplog.text
    traces.closed(LEASE, EndReason.DONE)
    assert not recorder.spans


def test_a_function_that_sends_none_has_no_spans(traces: HostTraces, recorder: Recorder) -> None:
    traces.opened(LEASE)
    traces.worker_asked(LEASE)
    traces.closed(LEASE, EndReason.DONE)
    traces.closed(LEASE, EndReason.DONE)
    traces.traced(LEASE, PARENT.header)
    assert not recorder.spans


def test_nothing_is_kept_without_traces() -> None:
    traces = HostTraces(NoTracer(), HostId("gpu-a"))
    traces.opened(LEASE)
    traces.traced(LEASE, PARENT.header)
    traces.worker_asked(LEASE)
    traces.closed(LEASE, EndReason.DONE)
    assert not traces.enabled

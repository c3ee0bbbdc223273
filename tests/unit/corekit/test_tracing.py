"""Trace contexts, the environment that switches traces on, and the adapter of the SDK."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as some
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from corekit.tracing.context import TraceContext, parse_traceparent
from corekit.tracing.job import BLOCK_KEY, JobTrace, function_traceparent, job_trace_of
from corekit.tracing.opentelemetry import OpenTelemetryTracer
from corekit.tracing.setup import is_on, tracer_from
from corekit.tracing.span import NoTracer, Span, SpanKind

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = TraceContext(TRACE, SPAN, True)
HEX = some.text("0123456789abcdef", min_size=1)


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"01-{TRACE}-{SPAN}-01-later", True),
        (f"cc-{TRACE}-{SPAN}-00", False),
    ],
)
def test_a_header_is_read_by_the_recommendation(header: str, sampled: bool) -> None:
    assert parse_traceparent(header) == TraceContext(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-later",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01\n",
        f" 00-{TRACE}-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01-{'x' * 200}",
    ],
)
def test_an_invalid_header_is_none(header: str) -> None:
    assert parse_traceparent(header) is None


@given(some.text(max_size=200))
def test_any_text_is_read_without_an_error(text: str) -> None:
    found = parse_traceparent(text)
    assert found is None or parse_traceparent(found.header) == found


@given(HEX, HEX, some.booleans(), some.lists(some.one_of(some.integers(), some.text())))
def test_a_child_is_in_the_trace_and_the_same_everywhere(
    trace: str, span: str, sampled: bool, names: list[object]
) -> None:
    parent = TraceContext((trace + "1").zfill(32)[-32:], (span + "1").zfill(16)[-16:], sampled)
    child = parent.child(*names)
    assert child == parent.child(*names)
    assert (child.trace_id, child.sampled) == (parent.trace_id, parent.sampled)
    assert child.span_id != parent.span_id
    assert parse_traceparent(child.header) == child


def test_the_trace_of_a_job_travels_in_its_record() -> None:
    trace = JobTrace(traceparent=CONTEXT.header, sent_s=1.0, received_s=2.0)
    block = {"traceparent": CONTEXT.header, "parent": "", "sent_s": 1, "received_s": 2.0}
    assert job_trace_of({BLOCK_KEY: {**block, "of a newer version": 1}}) == trace
    for wrong in (
        {},
        {BLOCK_KEY: "text"},
        {BLOCK_KEY: {**block, "traceparent": "nonsense"}},
        {BLOCK_KEY: {**block, "sent_s": "1"}},
        {BLOCK_KEY: {"traceparent": CONTEXT.header}},
    ):
        assert job_trace_of(wrong) is None
    assert function_traceparent(None, 1) == ""
    assert function_traceparent(trace, 1) != function_traceparent(trace, 2)


@pytest.mark.parametrize(
    ("on", "environment"),
    [
        (False, {}),
        (True, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}),
        (True, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}),
        (True, {"OTEL_TRACES_EXPORTER": "otlp"}),
        (True, {"OTEL_TRACES_EXPORTER": "console"}),
        (False, {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}),
        (False, {"OTEL_SDK_DISABLED": "TRUE", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}),
        (True, {"OTEL_SDK_DISABLED": "no", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}),
        (False, {"OTEL_SERVICE_NAME": "x"}),
    ],
)
def test_the_environment_switches_traces_on(on: bool, environment: dict[str, str]) -> None:
    assert is_on(environment) is on


def test_an_unknown_exporter_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(tracer_from({"OTEL_TRACES_EXPORTER": "jaeger"}, "s"), NoTracer)
    assert "'jaeger', not one of none, otlp, console" in caplog.text


def test_programs_without_traces_import_nothing_of_the_sdk() -> None:
    program = (
        "import sys, gpu_scheduler.daemon.cli, remote_gpu.host.cli, orchgpu.replica.app;"
        "from corekit.tracing.setup import tracer_from; tracer_from({}, 's');"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


class Exporter(SpanExporter):
    """Keeps what is exported."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans += spans
        return SpanExportResult.SUCCESS


def span(context: TraceContext, parent: TraceContext | None = None, error: str = "") -> Span:
    return Span(
        name="attempt",
        context=context,
        parent=parent,
        start_s=10.0,
        end_s=12.5,
        kind=SpanKind.SERVER,
        attributes={"orchgpu.attempt": 2},
        error=error,
    )


def test_a_named_root_is_the_same_at_every_program_and_sampled_by_its_trace() -> None:
    environment = {"OTEL_SERVICE_NAME": "named"}
    one, other = (OpenTelemetryTracer("gpud", environment, Exporter()) for _ in range(2))
    found = one.named("r1")
    assert found == other.named("r1")
    assert found.trace_id != one.named("r2").trace_id
    assert parse_traceparent(found.header) == found
    assert one.root(found).trace_id == found.trace_id
    one.close()
    other.close()


def test_a_span_reaches_the_exporter_as_it_was_recorded() -> None:
    exporter = Exporter()
    tracer = OpenTelemetryTracer("gpud", {}, exporter)
    child = CONTEXT.child("attempt", 2)
    tracer.record(span(child, CONTEXT, "CAP"))
    tracer.record(span(TraceContext(TRACE, SPAN, False)))
    tracer.close()
    tracer.record(span(child))  # late: dropped
    (seen,) = exporter.spans
    assert (seen.name, seen.start_time, seen.end_time) == ("attempt", 10 * 10**9, 12_500_000_000)
    assert seen.context is not None
    assert seen.parent is not None
    assert f"{seen.context.trace_id:032x}-{seen.context.span_id:016x}" == f"{TRACE}-{child.span_id}"
    assert f"{seen.parent.span_id:016x}" == SPAN
    assert dict(seen.attributes or {}) == {"orchgpu.attempt": 2}
    assert (seen.status.is_ok, seen.status.description) == (False, "CAP")
    assert seen.kind.name == "SERVER"
    assert seen.resource.attributes["service.name"] == "gpud"


def test_the_sampler_decides_for_new_traces_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "named")
    exporter = Exporter()
    environment = {"OTEL_SERVICE_NAME": "named"}
    tracer = OpenTelemetryTracer("gpud", environment, exporter)
    roots = tracer.root(None), tracer.root(None), tracer.root(CONTEXT)
    assert [root.sampled for root in roots] == [False, False, True]
    assert len({root.span_id for root in roots}) == 3
    assert roots[2].trace_id == TRACE
    tracer.record(span(roots[0]))
    tracer.record(span(roots[2], CONTEXT))
    tracer.close()
    (seen,) = exporter.spans
    assert seen.resource.attributes["service.name"] == "named"

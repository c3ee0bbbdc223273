"""The tracer over OpenTelemetry's SDK: its sampler, its batches, its exporters.

Spans come as values with times of their own, because some were measured by other programs; so they
are given to the SDK's processor as spans that have ended.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace

from opentelemetry import trace as api
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace.status import Status, StatusCode

from corekit.tracing.context import TraceContext, named_context
from corekit.tracing.span import Span

_SCOPE = InstrumentationScope("orchgpu")


class OpenTelemetryTracer:
    """Samples, batches and exports by the standard variables of the SDK."""

    enabled = True

    def __init__(
        self, service: str, environment: Mapping[str, str], exporter: SpanExporter | None = None
    ) -> None:
        """`exporter`: None = that of the environment, OTLP over HTTP or the console."""
        named = environment.get("OTEL_SERVICE_NAME") or "service.name=" in environment.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        )
        resource = Resource.create({} if named else {"service.name": service})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._resource, self._sampler = provider.resource, provider.sampler
        if exporter is None:
            to_console = environment.get("OTEL_TRACES_EXPORTER", "").strip() == "console"
            exporter = ConsoleSpanExporter() if to_console else OTLPSpanExporter()
        self._processor: SpanProcessor = BatchSpanProcessor(exporter)
        self._closed = False

    def root(self, parent: TraceContext | None) -> TraceContext:
        """A context with random ids, sampled as OTEL_TRACES_SAMPLER decides."""
        trace_id = secrets.token_hex(16) if parent is None else parent.trace_id
        above = None
        if parent is not None:
            remote = api.NonRecordingSpan(_context(parent, is_remote=True))
            above = api.set_span_in_context(remote)
        result = self._sampler.should_sample(above, int(trace_id, 16), "job")
        return TraceContext(
            trace_id, secrets.token_hex(8), result.decision is Decision.RECORD_AND_SAMPLE
        )

    def named(self, name: str) -> TraceContext:
        """The derived context, sampled as OTEL_TRACES_SAMPLER decides on its trace's id."""
        context = named_context(name, sampled=True)
        result = self._sampler.should_sample(None, int(context.trace_id, 16), "run")
        return replace(context, sampled=result.decision is Decision.RECORD_AND_SAMPLE)

    def record(self, span: Span) -> None:
        """Give a span to the batch; a full queue drops it."""
        if self._closed:
            return
        status = Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET)
        self._processor.on_end(
            ReadableSpan(
                span.name,
                context=_context(span.context),
                parent=None if span.parent is None else _context(span.parent),
                resource=self._resource,
                attributes=dict(span.attributes),
                kind=api.SpanKind[span.kind.value],
                status=status,
                start_time=_nanoseconds(span.start_s),
                end_time=_nanoseconds(max(span.start_s, span.end_s)),
                instrumentation_scope=_SCOPE,
            )
        )

    def close(self) -> None:
        """Export what is left."""
        self._closed = True
        self._processor.shutdown()


def _context(context: TraceContext, *, is_remote: bool = False) -> api.SpanContext:
    flags = api.TraceFlags(api.TraceFlags.SAMPLED if context.sampled else api.TraceFlags.DEFAULT)
    return api.SpanContext(
        int(context.trace_id, 16), int(context.span_id, 16), is_remote, trace_flags=flags
    )


def _nanoseconds(wall_s: float) -> int:
    return int(wall_s * 1e9)

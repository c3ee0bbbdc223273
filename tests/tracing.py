"""A tracer that keeps its spans, for tests without a collector."""

from __future__ import annotations

from corekit.tracing.context import TraceContext, named_context
from corekit.tracing.span import Span


class Recorder:
    """Records every span; traces have numbers."""

    enabled = True

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._traces = 0

    def root(self, parent: TraceContext | None) -> TraceContext:
        """The next root span, sampled as its parent."""
        self._traces += 1
        trace_id = f"{self._traces:032x}" if parent is None else parent.trace_id
        sampled = parent is None or parent.sampled
        return TraceContext(trace_id, f"{self._traces:016x}", sampled)

    def named(self, name: str) -> TraceContext:
        """As every program derives it."""
        return named_context(name, sampled=True)

    def record(self, span: Span) -> None:
        """Keep the span."""
        self.spans.append(span)

    def close(self) -> None:
        """There is nothing to send."""

    def by_name(self) -> dict[str, Span]:
        """The spans by name, each of which must be recorded once."""
        found = {span.name: span for span in self.spans}
        assert len(found) == len(self.spans), [span.name for span in self.spans]
        return found

"""A span as a value, and the port by which programs record spans.

Spans are not those of `opentelemetry-api`: they were measured by several programs and have ids that
each program derives alike, which only the SDK can be given; and its import takes 43 ms, a third of
what `orchgpu --version` takes. Without traces nothing of it is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from corekit.tracing.context import TraceContext

#: The types of an attribute's value.
AttributeValue = str | int | float | bool


class SpanKind(StrEnum):
    """The role of a span in its call, as OpenTelemetry names it."""

    INTERNAL = "INTERNAL"
    SERVER = "SERVER"
    CONSUMER = "CONSUMER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One span that has ended; times are of the wall clock of the machine that measured them."""

    name: str
    context: TraceContext
    parent: TraceContext | None
    start_s: float
    end_s: float
    kind: SpanKind = SpanKind.INTERNAL
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    error: str = ""  #: the reason of a failure; "" = none


class Tracer(Protocol):
    """Records spans. Recording never blocks and never raises; spans may be lost."""

    @property
    def enabled(self) -> bool:
        """False: nothing is recorded, and callers should prepare nothing."""
        ...

    def root(self, parent: TraceContext | None) -> TraceContext:
        """A new context: in the trace of the parent and sampled as that, or in a new trace."""
        ...

    def named(self, name: str) -> TraceContext:
        """The context of `named_context`, sampled by its trace's id: alike at every program."""
        ...

    def record(self, span: Span) -> None:
        """Record a span that has ended; one that is not sampled is dropped."""
        ...

    def close(self) -> None:
        """Send what is recorded, and end. Blocks for the exporter's timeout at most."""
        ...


class NoTracer:
    """The tracer of a program without traces."""

    enabled = False

    def root(self, parent: TraceContext | None) -> TraceContext:
        """Unreachable: callers check `enabled`."""
        raise AssertionError(f"no traces are recorded; parent: {parent}")

    def named(self, name: str) -> TraceContext:
        """Unreachable: callers check `enabled`."""
        raise AssertionError(f"no traces are recorded; name: {name}")

    def record(self, span: Span) -> None:
        """Drop the span."""

    def close(self) -> None:
        """There is nothing to send."""

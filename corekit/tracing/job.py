"""The trace of one job: the context of its root span, kept with the job's record. Pure.

The spans of attempts and of the function in them have contexts derived from it, so that every
replica, the scheduler and the function name the same spans.
"""

from __future__ import annotations

from collections.abc import Mapping

from corekit.decode import decode_known
from corekit.errors import AppError
from corekit.tracing.context import TraceContext, parse_traceparent
from corekit.values import Value

#: Key in a job record's block.
BLOCK_KEY = "trace"


class JobTrace(Value):
    """Data of the root span; the replica that finishes the job records it."""

    traceparent: str  #: of the root span
    parent: str = ""  #: of the message's sender
    sent_s: float  #: wall clock: begin of the root span
    received_s: float  #: wall clock: the first receipt of its message


def job_trace_of(block: Mapping[str, object]) -> JobTrace | None:
    """The trace in a record's block; None when an older version or one without traces wrote it."""
    try:
        trace, _ = decode_known(JobTrace, block.get(BLOCK_KEY))
    except AppError:
        return None
    return None if parse_traceparent(trace.traceparent) is None else trace


def attempt_context(root: TraceContext, attempt: int) -> TraceContext:
    """The context of an attempt's span."""
    return root.child("attempt", attempt)


def function_context(root: TraceContext, attempt: int) -> TraceContext:
    """The context of the function's span in an attempt."""
    return attempt_context(root, attempt).child("function")


def function_traceparent(trace: JobTrace | None, attempt: int) -> str:
    """The header that an attempt's envelope carries; "" without a trace."""
    root = None if trace is None else parse_traceparent(trace.traceparent)
    return "" if root is None else function_context(root, attempt).header

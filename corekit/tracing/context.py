"""The context of a span, as the header `traceparent` of W3C Trace Context carries it. Pure.

https://www.w3.org/TR/trace-context/#traceparent-header
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

#: Longer texts are of no known version.
HEADER_CHARS_MAX = 128
_HEADER = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})"
    r"(?P<more>-.*)?"
)


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The identity of one span in its trace."""

    trace_id: str  #: 32 hexadecimal digits
    span_id: str  #: 16 hexadecimal digits
    sampled: bool

    @property
    def header(self) -> str:
        """The text of `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"

    def child(self, *names: object) -> TraceContext:
        """The context of a child span, which every program derives alike from its name.

        So a span may be the parent of others before it has ended and been recorded.
        """
        text = "\0".join((self.span_id, *map(str, names)))
        return TraceContext(
            self.trace_id, hashlib.sha256(text.encode()).hexdigest()[:16], self.sampled
        )


def named_context(name: str, *, sampled: bool) -> TraceContext:
    """The context of the root span of a thing with a unique name, in a trace of its own.

    Every program derives it alike: so its parts may be recorded by many, before it has ended.
    """
    digest = hashlib.sha256(name.encode()).hexdigest()
    return TraceContext(digest[:32], digest[32:48], sampled)


def parse_traceparent(text: str) -> TraceContext | None:
    """The context in a header of version 00, or of a newer one by its first fields; else None."""
    match = _HEADER.fullmatch(text) if len(text) <= HEADER_CHARS_MAX else None
    if match is None or match["version"] == "ff" or (match["version"] == "00" and match["more"]):
        return None
    if not (match["trace"].strip("0") and match["span"].strip("0")):
        return None
    return TraceContext(match["trace"], match["span"], bool(int(match["flags"], 16) & 1))

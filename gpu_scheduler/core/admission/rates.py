"""Token buckets that limit requests per second, for each key, each tenant and all together.

A bucket holds the tokens of `BURST_S` seconds: a requester that reconnects repeats all requests
that were in flight at once. The clock is the time of the event.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

#: An orchestrator that reconnects repeats its requests in flight, at most 10,000: at the default
#: rate, the bucket of a key holds as many tokens.
BURST_S = 10.0
#: The most buckets, since a request may name any tenant; the longest unused one is evicted.
BUCKETS_MAX = 10_000


class Bucket(NamedTuple):
    """The tokens at a point in time."""

    tokens: float
    as_of_s: float


class EmptyBucket(NamedTuple):
    """The scope of an empty bucket, and the time until its next token."""

    scope: str
    in_s: float


@dataclass(slots=True)
class Rates:
    """Buckets by scope, such as `key/orch-a`, the longest unused first; an absent one is full."""

    buckets: OrderedDict[str, Bucket] = field(default_factory=OrderedDict)

    def take(self, rates: Sequence[tuple[str, float | None]], at_s: float) -> EmptyBucket | None:
        """Take one token of every scope, or none when a bucket is empty. Rate None: no limit."""
        left: dict[str, float] = {}
        for scope, rate in rates:
            if rate is None:
                continue
            tokens = self._tokens(scope, rate, at_s)
            if tokens < 1.0:
                return EmptyBucket(scope, (1.0 - tokens) / rate)
            left[scope] = tokens - 1.0
        for scope, tokens in left.items():
            self.buckets[scope] = Bucket(tokens, at_s)
            self.buckets.move_to_end(scope)
        while len(self.buckets) > BUCKETS_MAX:
            self.buckets.popitem(last=False)
        return None

    def _tokens(self, scope: str, rate: float, at_s: float) -> float:
        most = max(1.0, rate * BURST_S)
        bucket = self.buckets.get(scope)
        if bucket is None:
            return most
        return min(most, bucket.tokens + max(0.0, at_s - bucket.as_of_s) * rate)

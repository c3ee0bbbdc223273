"""Token buckets: how many requests a second each key, each tenant and everybody may send.

A bucket holds `BURST_S` seconds' worth of its rate: a requester that comes back repeats what was in
flight at once. Time is the event's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

#: A returning orchestrator repeats all that it has in flight (10,000 at most): at the default rate
#: of a key that is as much as its bucket holds.
BURST_S = 10.0
#: Buckets; the longest unused one is evicted for a new one. A request may name any tenant.
BUCKETS_MAX = 10_000


class Bucket(NamedTuple):
    """What is left of one burst."""

    tokens: float
    as_of_s: float


class EmptyBucket(NamedTuple):
    """Which bucket is empty, and when it has a token again."""

    scope: str
    in_s: float


@dataclass(slots=True)
class Rates:
    """Buckets by scope, as `key/orch-a`, the longest unused first; an absent one is full."""

    buckets: OrderedDict[str, Bucket] = field(default_factory=OrderedDict)

    def take(self, rates: Sequence[tuple[str, float | None]], at_s: float) -> EmptyBucket | None:
        """One token of every scope, or of none when one of them is empty. A rate None: no limit."""
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

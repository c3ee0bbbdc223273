"""Token buckets: how many requests a second each key, each tenant and everybody may send.

A bucket holds `BURST_S` seconds' worth of its rate: a requester that comes back repeats what was in
flight at once. Time is the event's; a bucket that is full again is forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

#: A returning orchestrator repeats all that it has in flight (10,000 at most): at the default rate
#: of a key that is as much as its bucket holds.
BURST_S = 10.0
#: Buckets; beyond it the full ones are forgotten. A tenant's name is whatever a request says.
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
    """Buckets by scope, as `key/orch-a`. A scope that is not here has a full one."""

    buckets: dict[str, Bucket] = field(default_factory=dict)

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
        if len(self.buckets) + len(left) > BUCKETS_MAX:
            self._forget_some(at_s)
        for scope, tokens in left.items():
            self.buckets[scope] = Bucket(tokens, at_s)
        return None

    def _tokens(self, scope: str, rate: float, at_s: float) -> float:
        most = max(1.0, rate * BURST_S)
        bucket = self.buckets.get(scope)
        if bucket is None:
            return most
        return min(most, bucket.tokens + max(0.0, at_s - bucket.as_of_s) * rate)

    def _forget_some(self, at_s: float) -> None:
        """What was not asked of for `BURST_S` is full at any rate; else a tenth, the oldest, go."""
        full = [s for s, bucket in self.buckets.items() if at_s - bucket.as_of_s >= BURST_S]
        by_age = sorted(self.buckets, key=lambda scope: self.buckets[scope].as_of_s)
        for scope in full or by_age[: BUCKETS_MAX // 10]:
            del self.buckets[scope]

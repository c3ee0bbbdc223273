"""First come, first served within a priority; a request that does not fit blocks no other.

A later request that fits may overtake one that does not, at most `bypass_max` times on devices that
one could use. Then the `count` devices nearest to being free for it are reserved for it.

Bound: with k requests before it and no lease longer than L, a request that hosts can serve waits at
most (k + 1) × (bypass_max + 2) × L. Within every L a waiting head sees either its devices free or
one more grant that overtakes it; after `bypass_max` of those its reserved devices are free within
one more L, whatever else arrives behind it.
"""

from __future__ import annotations

from gpu_scheduler.core.policies import BoundedOvertaking


class Fifo(BoundedOvertaking):
    """Order: by queue key."""

    summary = "the oldest request, made older by its priority"


POLICY = Fifo()

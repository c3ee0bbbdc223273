"""First come, first served within a priority; a request that does not fit blocks no other.

A later request that fits may overtake one that does not, at most `bypass_max` times on devices that
the overtaken request could use. Then the `count` devices nearest to being free are reserved for the
overtaken request.

Bound: with k requests before it and no lease longer than L, a feasible request waits at most
(k + 1) × (bypass_max + 2) × L. Within every L, either the devices of a waiting head become free or
one more grant overtakes it; after `bypass_max` overtakes its reserved devices are free within one
more L, whatever else arrives behind it.
"""

from __future__ import annotations

from gpu_scheduler.core.queue.ordering import OrderingPolicy


class Fifo(OrderingPolicy):
    """Order: by queue key."""

    summary = "the oldest request; a higher priority counts as a longer wait"


POLICY = Fifo()

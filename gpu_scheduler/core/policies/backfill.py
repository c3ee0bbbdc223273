"""FIFO with backfill: short requests run on the devices that are reserved for the head.

The head can start when enough of the leases on its reserved devices have ended, each at the end of
its stated length. A request that would end before that time may run there; a request of unknown
length may not, and no request may while the start of the head is unknown.

Bound: that of FIFO; and once devices are reserved, the head starts no later than was forecast at
that time, as long as they stay usable and no RESERVED lease is renewed beyond `reserved_ttl_s`.
"""

from __future__ import annotations

from gpu_scheduler.core.leases.lengths import start_of_head_s
from gpu_scheduler.core.queue.ordering import OrderingPolicy
from gpu_scheduler.core.queue.view import View


class Backfill(OrderingPolicy):
    """Order: by queue key; reserved devices are backfilled for stated lengths."""

    summary = "as fifo; requests that end before the head can start run on its reserved devices"

    def backfill_until_s(self, view: View) -> float | None:
        return start_of_head_s(view.state, view.budget)


POLICY = Backfill()

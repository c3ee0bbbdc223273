"""FIFO that lends what is kept for the head to whoever is done before the head can start.

The head can start when enough of the leases on its kept devices have ended, each at the end of its
length. A request whose own length ends before that moment may run there; one of unknown length
never, nor anybody while the head's start cannot be foreseen.

Bound: that of FIFO; and once devices are kept, the head starts no later than was foreseen then, as
long as they stay usable and no RESERVED lease is renewed beyond `reserved_ttl_s`.
"""

from __future__ import annotations

from gpu_scheduler.core.leases.forecast import start_of_head_s
from gpu_scheduler.core.policies.base import View
from gpu_scheduler.core.policies.fifo import Fifo


class Backfill(Fifo):
    """Order: by place; what is kept is lent for known lengths."""

    def lend_until_s(self, view: View) -> float | None:
        return start_of_head_s(view.state, view.budget)

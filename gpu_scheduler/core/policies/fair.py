"""Weighted fair share between tenants, FIFO within a tenant.

Freed capacity goes to the tenant with the least share among those with a request that fits. The
share is the dominant share of current holdings and recent use, divided by the weight (tenants.py).

Bound: that of FIFO. Here, too, the head of the whole queue is overtaken at most `bypass_max` times,
so fairness cannot starve an old request: at most one grant in `bypass_max` + 1 goes by age alone.
A decision costs one step for every tenant with waiting requests.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu_scheduler.core.queue.ordering import OrderingPolicy
from gpu_scheduler.core.queue.view import View
from gpu_scheduler.core.state.waiting_queue import FirstByClass


class Fair(OrderingPolicy):
    """Order: by share, then by queue key."""

    summary = "the tenant with the least weighted dominant share; within a tenant as fifo"

    def order(self, view: View) -> Iterator[FirstByClass]:
        state = view.state

        def share(tenant: str) -> tuple[float, str]:
            return (state.tenants.share(tenant, view.wall_s, state.parameters), tenant)

        for tenant in sorted(state.queue.by_tenant, key=share):
            yield state.queue.by_tenant[tenant]


POLICY = Fair()

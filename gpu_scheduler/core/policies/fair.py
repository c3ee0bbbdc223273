"""Weighted fair share between tenants, FIFO within one.

Whatever comes free goes to the tenant with the least share that has a request it fits: dominant
share of what it holds and of what it used lately, divided by its weight (tenants.py).

Bound: that of FIFO, for the head of the whole queue is passed `bypass_max` times at most here too,
so fairness cannot starve the patient: at most one grant in `bypass_max` + 1 goes by place alone.
A decision costs a step for every tenant that waits.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu_scheduler.core.policies.base import View
from gpu_scheduler.core.policies.fifo import Fifo
from gpu_scheduler.core.queue.queue import FirstByClass


class Fair(Fifo):
    """Order: by share, then by place."""

    def first_by_class(self, view: View) -> Iterator[FirstByClass]:
        state = view.state

        def share(tenant: str) -> tuple[float, str]:
            return (state.tenants.share(tenant, view.wall_s, state.parameters), tenant)

        for tenant in sorted(state.queue.of_tenant, key=share):
            yield state.queue.of_tenant[tenant]

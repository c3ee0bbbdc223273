"""First come, first served within a priority, without holding back those that fit.

A request that does not fit is passed by later ones that do, at most `bypass_max` times on devices
it could use. Then the `count` devices nearest to being free for it are kept for it.

Bound: with k requests before it by place and no lease longer than L, a request that hosts can serve
waits at most (k + 1) × (bypass_max + 2) × L. For a head that waits sees, within every L, either its
devices free or one more grant that passes it; after `bypass_max` of those its kept devices are free
within one more L, whatever else arrives behind it.
"""

from __future__ import annotations

from collections.abc import Iterator

from corekit.ids import DeviceId
from gpu_scheduler.core.admission.quotas import clamped_to_quota
from gpu_scheduler.core.placement.placement import reservable_for_head
from gpu_scheduler.core.policies.base import View
from gpu_scheduler.core.queue.queue import FirstByClass
from gpu_scheduler.protocol.changes import Waiting


class Fifo:
    """Order: by place."""

    def first_by_class(self, view: View) -> Iterator[FirstByClass]:
        yield view.state.queue.first_by_class

    def keep(self, view: View, head: Waiting) -> tuple[DeviceId, ...]:
        if view.state.head_reservation.count < view.state.parameters.bypass_max:
            return ()
        return reservable_for_head(clamped_to_quota(view.state, head.request), view.state.inventory)

    def lend_until_s(self, view: View) -> float | None:  # noqa: ARG002 - it never lends
        return None

"""Queue policies: the choice of the waiting request that is served next. One module per policy.

A module of this package with an object `POLICY` is discovered automatically; a policy of another
distribution is found by its entry point in the group `orchgpu.policies`
(`gpu_scheduler/policy_registry`).
A policy proposes over a read-only view; the dispatcher checks and commits.
"""

from __future__ import annotations

from collections.abc import Iterator

from corekit.ids import DeviceId
from gpu_scheduler.core.admission.quotas import clamped_to_quota
from gpu_scheduler.core.placement.head_reservation import reservable_for_head
from gpu_scheduler.core.queue.policy import PolicyView
from gpu_scheduler.core.queue.queue import FirstByClass
from gpu_scheduler.protocol.changes import Waiting

#: The requests that a deciding policy starves when smaller requests may overtake them.
LARGE = "requests for several devices or most of one, while smaller ones keep coming"

#: The cost of a decision that serves the first group that fits.
FIRST_FIT_COST = "a step for each size of request, and for each of up to 256 free devices"
#: The cost of a decision that compares the groups of tenant, workload and size that fit.
GROUPS_COST = (
    "a step for each group of tenant, workload and size that fits, and 256 for its devices"
)


class BoundedOvertaking:
    """A base for policies: first come, first served; `bypass_max` bounds the overtakes.

    Then the devices nearest to being free for the head are reserved for it. Under every policy that
    keeps `reserve`, no request starves while priorities age.
    """

    summary = ""
    wait_bound = "(k + 1) × (bypass_max + 2) × L, with k requests before it, no lease longer than L"
    starves = ""
    decision_cost = (
        "less than 1 ms with 10,000 devices and 100,000 waiting requests, 99 % of the time"
    )

    def order(self, view: PolicyView) -> Iterator[FirstByClass]:
        yield view.state.queue.first_by_class

    def reserve(self, view: PolicyView, head: Waiting) -> tuple[DeviceId, ...]:
        if view.state.head_reservation.overtaken < view.state.parameters.bypass_max:
            return ()
        return reservable_for_head(clamped_to_quota(view.state, head.request), view.state.inventory)

    def backfill_until_s(self, view: PolicyView) -> float | None:  # noqa: ARG002 - no backfill
        return None

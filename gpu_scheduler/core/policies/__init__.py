"""Queue policies: which waiting request is served next. One module per policy.

A module of this package with an object `POLICY` is found by its presence, and one of another
distribution by its entry point in the group `orchgpu.policies` (`gpu_scheduler/policy_registry`).
A policy proposes over a read-only view; the dispatcher checks and commits.
"""

from __future__ import annotations

from collections.abc import Iterator

from corekit.ids import DeviceId
from gpu_scheduler.core.admission.quotas import affordable
from gpu_scheduler.core.durable.changes import Waiting
from gpu_scheduler.core.placement.placement import keepable
from gpu_scheduler.core.queue.queue import Lines
from gpu_scheduler.core.state import PolicyView


class BoundedOvertaking:
    """A base for policies: first come, first served; the head is overtaken `bypass_max` times.

    Then the devices nearest to being free for the head are reserved for it. Under every policy that
    keeps `reserve`, no request starves while priorities age.
    """

    summary = ""

    def order(self, view: PolicyView) -> Iterator[Lines]:
        yield view.state.queue.lines

    def reserve(self, view: PolicyView, head: Waiting) -> tuple[DeviceId, ...]:
        if view.state.bypass.count < view.state.parameters.bypass_max:
            return ()
        return keepable(affordable(view.state, head.request), view.state.inventory)

    def backfill_until_s(self, view: PolicyView) -> float | None:  # noqa: ARG002 - no backfill
        return None

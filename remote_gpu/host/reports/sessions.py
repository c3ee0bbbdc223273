"""The port by which a host reports to the scheduler, and its reports of sessions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from corekit.ids import LeaseId
from gpu_scheduler.model import EndReason
from gpu_scheduler.protocol.host import SessionChange, SessionState
from gpu_scheduler.protocol.ops import DETAIL_CHARACTERS_MAX
from remote_gpu.host.leases.steps import LeaseStep
from remote_gpu.host.reports.traces import HostTraces
from remote_gpu.host.warm.workers import WarmWorkers
from remote_gpu.host.workers.lease_workers import LeaseWorkers, Loading

#: Longest delay of the report that shares are free, for the warm worker that the lease leaves.
HELD_S_MAX = 1.0


class Link(Protocol):
    """Reports to the scheduler; the link repeats each until it is acknowledged."""

    def session(self, change: SessionChange) -> None: ...
    def report_soon(self) -> None: ...
    def door(self, lease: LeaseId, address: str) -> None: ...
    def cut(self, lease: LeaseId) -> None: ...


class NoLink:
    """The link of a program that starts or stops: reports are dropped."""

    def session(self, *_: object) -> None:
        """Drop the report."""

    door = cut = report_soon = session


class SchedulerLink:
    """The scheduler as gpud's parts see it; the link is set once they are there."""

    def __init__(self) -> None:
        self.link: Link = NoLink()

    def report_soon(self) -> None:
        """Report warm workers and the health of cards soon: they have changed."""
        self.link.report_soon()


class SessionReports:
    """The end of a session is reported after the warm worker that it leaves, so that the next grant
    is placed by that worker."""

    def __init__(
        self, scheduler: SchedulerLink, workers: LeaseWorkers, warm: WarmWorkers, traces: HostTraces
    ) -> None:
        self._scheduler = scheduler
        self._workers = workers
        self._warm = warm
        self._traces = traces
        #: Reports of ends that wait until the lease's worker is warm or known not to be.
        self._held: dict[LeaseId, list[SessionChange]] = {}
        #: Whether the run of a lease that has ended may be parked.
        self.may_park: Callable[[LeaseId], bool] = lambda _: False
        self.lease_ends: Counter[str] = Counter()  #: ended leases by reason

    def knocked(self, lease: LeaseId, nonce: str) -> None:
        """A session of a lease granted ahead is proven, and waits."""
        change = SessionChange(lease=lease, state=SessionState.KNOCKED, nonce=nonce)
        self._scheduler.link.session(change)

    def left(self, lease: LeaseId, nonce: str) -> None:
        """The last session that waited for a lease is gone, and none has opened."""
        change = SessionChange(lease=lease, state=SessionState.LEFT, nonce=nonce)
        self._scheduler.link.session(change)

    def opened(self, step: LeaseStep) -> None:
        self._traces.opened(step.lease)
        self._scheduler.link.session(_change(step, SessionState.OPENED))

    def returned(self, step: LeaseStep) -> None:
        self._over(step, SessionState.FREED)

    def closed(self, step: LeaseStep) -> None:
        reason = step.reason or EndReason.DONE
        self.lease_ends[reason.value] += 1
        if step.reported:
            self._over(step, SessionState.CLOSED)
        self._traces.closed(step.lease, reason)
        self._warm.ahead_s.pop(step.lease, None)

    def _over(self, step: LeaseStep, state: SessionState) -> None:
        loading = self._workers.loading(step.lease)
        self._traces.worker_over(step.lease, None if loading is None else loading.seconds)
        change = _change(step, state, loading, self._warm.ahead_s.get(step.lease))
        if step.lease not in self._held and self._may_stay(step):
            self._held[step.lease] = []
            loop = asyncio.get_running_loop()
            loop.call_later(HELD_S_MAX, self.send_held, step.lease)
        if step.lease in self._held:
            self._held[step.lease].append(change)
        else:
            self._scheduler.link.session(change)

    def _may_stay(self, step: LeaseStep) -> bool:
        worker = self._workers.started(step.lease)
        keeps = worker is not None and self._warm.may_keep(worker)
        return step.leaves_worker and (keeps or self.may_park(step.lease))

    def send_held(self, lease: LeaseId) -> None:
        """Send the reports that waited for the warm worker of a lease."""
        for change in self._held.pop(lease, ()):
            self._scheduler.link.session(change)


def _change(
    step: LeaseStep,
    state: SessionState,
    loading: Loading | None = None,
    ahead_s: float | None = None,
) -> SessionChange:
    return SessionChange(
        lease=step.lease,
        state=state,
        nonce=step.nonce,
        reason=step.reason,
        detail=step.detail[:DETAIL_CHARACTERS_MAX],
        loading_s=None if loading is None else loading.seconds,
        loaded_mib=None if loading is None else loading.size_bytes >> 20,
        loaded_ahead_s=ahead_s,
        succeeded=step.succeeded,
        waited_s=step.waited_s,
        new_sandbox=step.new_sandbox,
    )

"""Time slices of this host's devices, applied to workers: tokens, stops and resumptions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from corekit.ids import LeaseId
from gpu_scheduler.model import Share
from remote_gpu.host.sharing.slices import Begin, Change, Load, Pause, Resume, TimeSlices, Until

logger = logging.getLogger(__name__)


class Process(Protocol):
    """The worker of a lease."""

    def send(self, meta: Mapping[str, object]) -> None:
        """Send one packet; lost when it has died."""
        ...

    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Turns:
    """The time slices of all devices of a host, in the event loop."""

    def __init__(self, widths: Mapping[int, int], uninterruptible: Collection[int] = ()) -> None:
        """`widths`: tokens at once by a device's index; 1 where it is missing. `uninterruptible`:
        indices of devices whose calls run to their end."""
        self._widths = widths
        self._uninterruptible = uninterruptible
        self._devices: dict[int, _Device] = {}

    def join(self, lease: LeaseId, shares: Sequence[Share], worker: Process) -> None:
        """Add a lease's worker."""
        for share in shares:
            if share.index not in self._devices:
                width = self._widths.get(share.index, 1)
                slices = TimeSlices(width, interruptible=share.index not in self._uninterruptible)
                self._devices[share.index] = _Device(share.index, slices)
            self._devices[share.index].join(lease, share, worker)

    def resize(self, lease: LeaseId, compute_limit_pct: float) -> None:
        """Set another elastic limit; an unknown lease has ended."""
        for device in self._devices.values():
            device.resize(lease, compute_limit_pct)

    def used_s(self, index: int, lease: LeaseId) -> float:
        """The time for which a lease has held tokens of a device, without the time that it was
        stopped. Raises KeyError for an unknown one."""
        return self._devices[index].used_s(lease)

    def charge(self, index: int, lease: LeaseId, used_s: float) -> None:
        """Charge a lease for time of a device that another process used for it."""
        self._devices[index].charge(lease, used_s)

    def leave(self, lease: LeaseId, worker: Process) -> None:
        """Remove that worker of the lease, but not a newer one. Idempotent."""
        for device in self._devices.values():
            device.leave(lease, worker)

    def requested(self, lease: LeaseId, meta: Mapping[str, Any]) -> None:
        """Handle a worker's request for a token, or the return of one."""
        for op in ("ask", "done"):
            if op in meta:
                index, ticket = meta[op]
                self._devices[index].requested(lease, op, ticket)

    def loads(self, lease: LeaseId) -> dict[int, Load]:
        """The load of a lease's devices by other leases, by index."""
        found = ((index, device.load(lease)) for index, device in self._devices.items())
        return {index: load for index, load in found if load is not None}

    def running(self, index: int) -> int:
        """Calls that run on a device now."""
        return 0 if (device := self._devices.get(index)) is None else device.running

    def close(self) -> None:
        """Cancel the timers."""
        for device in self._devices.values():
            device.close()


class _Device:
    """The time slices of one device, and its timer."""

    def __init__(self, index: int, slices: TimeSlices) -> None:
        self._index = index
        self._slices = slices
        self._members: dict[LeaseId, tuple[Share, Process]] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def running(self) -> int:
        return self._slices.running

    def join(self, lease: LeaseId, share: Share, worker: Process) -> None:
        self._members[lease] = share, worker
        self._slices.join(lease, share.compute_guarantee_pct, share.compute_limit_pct)

    def resize(self, lease: LeaseId, compute_limit_pct: float) -> None:
        if (known := self._members.get(lease)) is not None:
            self._slices.join(lease, known[0].compute_guarantee_pct, compute_limit_pct)
            self._carry_out(self._slices.wake(self._loop.time()))

    def leave(self, lease: LeaseId, worker: Process) -> None:
        known = self._members.get(lease)
        if known is not None and known[1] is worker:
            del self._members[lease]
            self._carry_out(self._slices.leave(lease, self._loop.time()))

    def used_s(self, lease: LeaseId) -> float:
        return self._slices.used_s(lease, self._loop.time())

    def load(self, lease: LeaseId) -> Load | None:
        return self._slices.load(lease) if lease in self._members else None

    def charge(self, lease: LeaseId, used_s: float) -> None:
        if lease in self._members:
            self._carry_out(self._slices.charge(lease, used_s, self._loop.time()))

    def requested(self, lease: LeaseId, op: str, ticket: int) -> None:
        if lease in self._members:
            step = self._slices.ask if op == "ask" else self._slices.done
            self._carry_out(step(lease, ticket, self._loop.time()))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _carry_out(self, changes: Sequence[Change]) -> None:
        for change in changes:
            _, worker = self._members[change.lease]
            match change:
                case Begin():
                    width = self._slices.width
                    worker.send({"turn": [self._index, change.ticket, change.until_s, width]})
                case Until():
                    worker.send({"due": [self._index, change.until_s]})
                case Pause():
                    worker.pause()
                case Resume():
                    worker.resume()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (wake_s := self._slices.next_wake_s()) is not None:
            self._timer = self._loop.call_at(wake_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._carry_out(self._slices.wake(self._loop.time()))

"""Time slices of this host's devices, applied to workers: tokens, stops and resumptions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from corekit.ids import LeaseId
from gpu_scheduler.model import Share
from remote_gpu.host.sharing.slices import (
    Begin,
    Change,
    DeviceLoad,
    Pause,
    Resume,
    TimeSlices,
    Until,
)

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
        self._loop = asyncio.get_running_loop()

    def join(self, lease: LeaseId, shares: Sequence[Share], worker: Process) -> None:
        """Add a lease's worker."""
        for share in shares:
            if share.index not in self._devices:
                width = self._widths.get(share.index, 1)
                slices = TimeSlices(width, interruptible=share.index not in self._uninterruptible)
                self._devices[share.index] = _Device(share.index, slices)
            device = self._devices[share.index]
            device.members[lease] = share, worker
            device.slices.join(lease, share.compute_guarantee_pct, share.compute_limit_pct)

    def resize(self, lease: LeaseId, compute_limit_pct: float) -> None:
        """Set another elastic limit; an unknown lease has ended."""
        for device in self._of(lease).values():
            guarantee_pct = device.members[lease][0].compute_guarantee_pct
            device.slices.join(lease, guarantee_pct, compute_limit_pct)
            device.carry_out(device.slices.wake(self._loop.time()))

    def used_s(self, index: int, lease: LeaseId) -> float:
        """The time for which a lease has held tokens of a device, without the time that it was
        stopped. Raises KeyError for an unknown one."""
        return self._devices[index].slices.used_s(lease, self._loop.time())

    def charge(self, index: int, lease: LeaseId, used_s: float) -> None:
        """Charge a lease for time of a device that another process used for it."""
        device = self._devices[index]
        device.carry_out(device.slices.charge(lease, used_s, self._loop.time()))

    def leave(self, lease: LeaseId, worker: Process) -> None:
        """Remove that worker of the lease, but not a newer one. Idempotent."""
        for device in self._of(lease).values():
            if device.members[lease][1] is worker:
                del device.members[lease]
                device.carry_out(device.slices.leave(lease, self._loop.time()))

    def requested(self, lease: LeaseId, meta: Mapping[str, Any]) -> None:
        """Handle a worker's request for a token, or the return of one."""
        for op in ("ask", "done"):
            if op in meta:
                index, ticket = meta[op]
                device = self._devices[index]
                if lease in device.members:
                    step = device.slices.ask if op == "ask" else device.slices.done
                    device.carry_out(step(lease, ticket, self._loop.time()))

    def loads(self, lease: LeaseId) -> dict[int, DeviceLoad]:
        """The load of a lease's devices by other leases, by index."""
        return {index: device.slices.load(lease) for index, device in self._of(lease).items()}

    def running(self, index: int) -> int:
        """Calls that run on a device now."""
        return self._devices[index].slices.running if index in self._devices else 0

    def close(self) -> None:
        """Cancel the timers."""
        for device in self._devices.values():
            device.set_timer(None)

    def _of(self, lease: LeaseId) -> dict[int, _Device]:
        return {i: device for i, device in self._devices.items() if lease in device.members}


class _Device:
    """One device: its time slices, the workers that they stop, and the timer of the next change."""

    def __init__(self, index: int, slices: TimeSlices) -> None:
        self.slices = slices
        self.members: dict[LeaseId, tuple[Share, Process]] = {}
        self._index = index
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def carry_out(self, changes: Sequence[Change]) -> None:
        for change in changes:
            _, worker = self.members[change.lease]
            match change:
                case Begin():
                    width = self.slices.width
                    worker.send({"turn": [self._index, change.ticket, change.until_s, width]})
                case Until():
                    worker.send({"due": [self._index, change.until_s]})
                case Pause():
                    worker.pause()
                case Resume():
                    worker.resume()
        self.set_timer(self.slices.next_wake_s())

    def set_timer(self, wake_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if wake_s is None else self._loop.call_at(wake_s, self._wake)

    def _wake(self) -> None:
        self.carry_out(self.slices.wake(self._loop.time()))

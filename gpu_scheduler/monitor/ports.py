"""Ports of the host link, implemented by the program on the host: `gpud` or `ssgm-monitor`.

All methods are called from the event loop, in the order of the scheduler's channel, and return at
once: slow work (killing, scrubbing, starting workers) runs in tasks of the implementer. An install
that does not fit yet, because an ended lease is not freed, waits in the implementer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from corekit.ids import DeviceId, LeaseId
from corekit.values import Value
from gpu_scheduler.floors import HostFloor
from gpu_scheduler.model import Device, EndReason, Resident, Usage
from gpu_scheduler.monitor.health import DeviceFault
from gpu_scheduler.protocol.host import Install, WarmLimits


class LeaseSource(Protocol):
    """The program that runs the leases of one host, for reports about its devices."""

    def seen(self, devices: tuple[Device, ...]) -> None:
        """Take the newest device list of the probe; called once before all other methods."""
        ...

    def leased(self) -> Collection[DeviceId]:
        """Devices whose memory a lease may be using: installed, or ended and not freed yet."""
        ...

    def faults(self) -> Mapping[DeviceId, DeviceFault]:
        """Faults of devices that this program found, such as a process that cannot be killed."""
        ...

    def residents(self) -> Mapping[DeviceId, tuple[Resident, ...]]:
        """The warm workers of each device that no lease uses or is about to use."""
        ...


class HostControl(LeaseSource, Protocol):
    """Leases and workers of one host. Every method is idempotent."""

    def installed(self) -> tuple[LeaseId, ...]:
        """Leases installed on this host, for the link's hello."""
        ...

    def warm_limits(self, limits: WarmLimits) -> None:
        """Set the limits of warm workers; those beyond them are evicted."""
        ...

    def keep_warm(self, floors: tuple[HostFloor, ...]) -> None:
        """Keep so many workers loaded, in memory that no lease needs; others are kept no longer."""
        ...

    def full_state(self, installs: tuple[Install, ...], epoch: int) -> None:
        """Take the scheduler's state after a (re)connect: install new leases, revoke all others."""
        ...

    def install(self, install: Install) -> None:
        """Accept sessions of the lease; its shares are usable once older leases on them are freed.

        An install `ahead` gets no shares; another one without it books them, and a later one with
        it takes the booking back, unless a session has opened. Else only `cap_s` of an installed
        lease may have changed: it counts from now.
        """
        ...

    def end(self, lease: LeaseId, fence: int, reason: EndReason) -> None:
        """Refuse sessions, kill, free, then call `HostLink.cut`; at once for an unknown lease."""
        ...

    def staged(self, lease: LeaseId, connect_by_s: float) -> None:
        """Require the first session to open within `connect_by_s` seconds from now."""
        ...

    def preempt(self, lease: LeaseId, grace_s: float) -> None:
        """Notify the open session of the lease, if there is one, that it ends in `grace_s`."""
        ...

    def resize(self, lease: LeaseId, compute_limit_pct: float) -> None:
        """Set another compute limit for its shares here; guarantee and memory do not change."""
        ...

    def link_changed(self, connected: bool) -> None:
        """Note whether the scheduler is reachable; without it, leases end by their deadlines."""
        ...


class DataSource(Protocol):
    """The declared data sets of one host, to be published."""

    def held(self) -> Mapping[str, int]:
        """The bytes of each set that are here, by its key."""
        ...

    @property
    def bytes_per_s(self) -> float | None:
        """The learned rate of fetches; None = none yet."""
        ...


class DeviceProcess(Value):
    """A process on a device, as its driver reports it."""

    device: DeviceId
    pid: int  #: in the namespace of the probe
    memory_used_mib: int | None = None  #: None: not reported, as in MIG slices and under WSL


class Probe(Protocol):
    """Source of a host's device list and usage."""

    async def devices(self) -> tuple[Device, ...]:
        """The current devices. Raises AppError when the source cannot be read."""
        ...

    async def usage(self) -> tuple[Usage, ...]:
        """Current usage, for people and for load balancing; empty when the source has none."""
        ...

    async def close(self) -> None:
        """Release the probe's resources; idempotent."""
        ...


@runtime_checkable
class ListsProcesses(Protocol):
    """A probe whose driver lists the processes on its devices."""

    async def processes(self) -> tuple[DeviceProcess, ...]:
        """Those that were read with the newest `devices`."""
        ...

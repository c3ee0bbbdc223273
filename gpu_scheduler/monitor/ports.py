"""What the link asks of the program that runs on the host; `gpud` implements it.

All methods are called from the event loop, in the order of the scheduler's channel, and return at
once: slow work (killing, scrubbing, starting workers) belongs into tasks of the implementer. An
install that does not fit yet, because an ended lease is not cut, waits inside the implementer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from corekit.ids import DeviceId, LeaseId
from gpu_scheduler.model import Device, EndReason, Usage
from gpu_scheduler.monitor.health import Fault
from gpu_scheduler.protocol.host import Install


class HostControl(Protocol):
    """The doors and workers of one host. Every method is idempotent."""

    def installed(self) -> tuple[LeaseId, ...]:
        """Leases installed here now, for the link's hello."""
        ...

    def seen(self, devices: tuple[Device, ...]) -> None:
        """The devices of this host as its probe saw them last; once before anything else."""
        ...

    def leased(self) -> Collection[DeviceId]:
        """Devices whose memory a lease may be using: installed, or over and not cut yet."""
        ...

    def faults(self) -> Mapping[DeviceId, Fault]:
        """What this program knows against its devices, as a process that cannot be killed."""
        ...

    def full_state(self, installs: tuple[Install, ...], epoch: int) -> None:
        """The scheduler's truth after a (re)connect: install what is new, cut what is not in it."""
        ...

    def install(self, install: Install) -> None:
        """Open the lease's door; its shares are usable once the older ones on them are cut.

        Of a lease that is installed already only `cap_s` may have changed: it counts from now.
        """
        ...

    def end(self, lease: LeaseId, fence: int, reason: EndReason) -> None:
        """Close the door, kill, free; then call `HostLink.cut`. Unknown leases are cut already."""
        ...

    def staged(self, lease: LeaseId, connect_by_s: float) -> None:
        """The first session must open within `connect_by_s` seconds from now."""
        ...

    def resize(self, lease: LeaseId, compute_limit_pct: int) -> None:
        """Another elastic limit for its shares here; guarantee and memory stay."""
        ...

    def link_changed(self, connected: bool) -> None:
        """The scheduler is reachable or not; leases live on, cut only by their own deadlines."""
        ...


class Probe(Protocol):
    """Where a host's device list and live figures come from."""

    async def devices(self) -> tuple[Device, ...]:
        """The devices now; raises AppError when the source cannot be read."""
        ...

    async def usage(self) -> tuple[Usage, ...]:
        """Live figures for people and balance; empty when the source has none."""
        ...

    async def close(self) -> None:
        """Release whatever the probe holds; safe to call twice."""
        ...

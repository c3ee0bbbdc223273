"""Loads for leases granted ahead on simulated hosts, under the rules of gpud.

A worker loads what the last one of its workload on that host had loaded, in memory that no lease
and no warm worker has. A lease that needs the memory ends the load, and so does the end of its own
lease; a lease whose shares come first waits for the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

from corekit.ids import DeviceId, LeaseId
from gpu_scheduler.model import Resident
from gpu_scheduler.protocol.host import Install
from gpu_scheduler.warm import workload_key
from simulator.workloads.devices import SimDevice, SimHost
from simulator.workloads.jobs import Job

published_key = functools.lru_cache(maxsize=4096)(workload_key)


def key_of(install: Install) -> str | None:
    """The published key of the workload of a lease."""
    return None if install.workload is None else published_key(install.tenant, install.workload)


class Load(NamedTuple):
    """The load of one worker."""

    device: SimDevice
    lease: LeaseId
    resident: Resident
    ends_s: float


class Loads:
    """The loads of a run, from their begin until a lease has used them."""

    def __init__(self) -> None:
        self._ahead: dict[LeaseId, SimDevice] = {}  #: the devices of leases ahead
        self._by_worker: dict[str, Load] = {}

    def begin(self, host: SimHost, install: Install, at_s: float) -> Load | None:
        """Begin to load for a lease ahead; None: it is loaded, unknown what, or has no room."""
        device = self._ahead[install.lease] = host.devices[install.shares[0].device]
        resident = host.load(install, key_of(install))
        if resident is None:
            return None
        load = Load(device, install.lease, resident, at_s + resident.loading_s)
        self._by_worker[resident.id] = load
        return load

    def stop(self, lease: LeaseId) -> None:
        """A lease is over before it had its shares."""
        if (device := self._ahead.pop(lease, None)) is not None:
            device.loading.pop(lease, None)
            device.awaited.pop(lease, None)

    def opened(
        self, job: Job, lease: LeaseId, warm: Mapping[DeviceId, Resident | None], at_s: float
    ) -> None:
        """The session of a lease has opened: it waits for the rest of the load of its worker."""
        self._ahead.pop(lease, None)
        for resident in warm.values():
            load = None if resident is None else self._by_worker.pop(resident.id, None)
            if load is not None:
                job.loading_s = max(0.0, load.ends_s - at_s)
                job.loaded_ahead_s = load.resident.loading_s - job.loading_s
                job.cold = int(job.loading_s > 0)

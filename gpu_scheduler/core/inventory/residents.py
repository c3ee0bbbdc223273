"""The residents of all devices: workloads that a device keeps loaded without a lease.

Hosts publish them; a grant takes those that it uses or evicts out of these books at once. They are
evictable, so `fits` never counts them. Two indexes serve the placement: the devices with a resident
of a workload, and all devices with residents by the memory that is free beside them. Not durable:
live hosts report them again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from corekit.ids import DeviceId, HostId
from gpu_scheduler.core.inventory.devices import DeviceState
from gpu_scheduler.core.inventory.index import Index
from gpu_scheduler.model import Resident
from gpu_scheduler.parameters import WARM_WORKERS_MAX

#: The most residents of one device; each workload costs a step at every change of the device.
RESIDENTS_MAX = WARM_WORKERS_MAX
#: Workloads of which a host has shown what they load; the longest unseen is forgotten.
SHOWN_MAX = 4096

_NONE: Mapping[str, Resident] = {}


class Residents:
    """The residents by device, with their indexes."""

    def __init__(self) -> None:
        self._on: dict[DeviceId, dict[str, Resident]] = {}  #: only devices that have some
        self._memory_mib: dict[DeviceId, int] = {}  #: total of the residents of a device
        self._keys: dict[DeviceId, dict[str, None]] = {}  #: their workloads, each once
        self._by_workload: dict[str, Index] = {}
        #: Devices with residents, by the memory that is free beside these.
        self.beside = Index()
        #: Host and workload → memory of the newest resident: the host can load that again.
        self._shown: dict[tuple[HostId, str], int] = {}
        #: The workloads of warm floors by device; evicted last.
        self.kept: Mapping[DeviceId, Collection[str]] = {}
        self.evicted = 0  #: number of residents that grants evicted, in this run
        self.evicted_mib = 0
        self.loaded_mib = 0  #: models that the workers of leases loaded, in this run

    def __bool__(self) -> bool:
        return bool(self._on)

    def devices(self) -> Iterable[DeviceId]:
        """The devices with residents."""
        return self._on

    def of(self, device: DeviceId) -> Mapping[str, Resident]:
        """The residents of a device by their ids, the first published first."""
        return self._on.get(device, _NONE)

    def memory_mib(self, device: DeviceId) -> int:
        """The memory that evicting all residents of a device would free."""
        return self._memory_mib.get(device, 0)

    def with_workload(self, key: str) -> Index | None:
        """The index of the devices with a resident of this published key."""
        return self._by_workload.get(key)

    def workloads(self) -> Iterable[str]:
        """The published keys of all residents."""
        return self._by_workload

    def beside_state(self, device: DeviceId, device_state: DeviceState) -> DeviceState:
        """The state of a device whose residents stay: what they hold is not free."""
        resident_mib = self._memory_mib.get(device)
        if resident_mib is None:
            return device_state
        return device_state._replace(free_mib=max(0, device_state.free_mib - resident_mib))

    def show(self, host: HostId, residents: Iterable[Resident]) -> None:
        """A host has published residents."""
        for one in residents:
            self._shown.pop((host, one.workload), None)
            self._shown[host, one.workload] = one.memory_mib
            if len(self._shown) > SHOWN_MAX:
                del self._shown[next(iter(self._shown))]

    def shown_mib(self, host: HostId, key: str) -> int | None:
        """The memory of a workload on a host; None: it has not run there, as far as is known."""
        return self._shown.get((host, key))

    def forget(self, host: HostId) -> None:
        """A host has restarted: it knows no workload any more."""
        for known in [known for known in self._shown if known[0] == host]:
            del self._shown[known]

    def count_evicted(self, evicted: Iterable[Resident]) -> None:
        """Count the evictions of a grant."""
        for resident in evicted:
            self.evicted += 1
            self.evicted_mib += resident.memory_mib

    # ------------------------------------------------------------------ changes

    def change(
        self,
        device: DeviceId,
        device_state: DeviceState,
        added: Iterable[Resident],
        removed: Iterable[str],
    ) -> None:
        """Remove residents by id, then add others; idempotent, and bounded per device."""
        before = self._on.get(device, {})
        after = dict(before)
        for id_ in removed:
            after.pop(id_, None)
        for resident in added:
            if resident.id in after or len(after) < RESIDENTS_MAX:
                after[resident.id] = resident
        if after != before:
            self._replace(device, device_state, after)

    def reallocate(self, device: DeviceId, old: DeviceState, new: DeviceState) -> None:
        """Move a device with residents of which only the allocation changed."""
        self.beside.reallocate(
            device, self.beside_state(device, old), self.beside_state(device, new)
        )
        for key in self._keys[device]:
            self._by_workload[key].reallocate(device, old, new)

    def move(self, device: DeviceId, old: DeviceState, new: DeviceState) -> None:
        """Move a device with residents to another state."""
        self.beside.move(device, self.beside_state(device, old), self.beside_state(device, new))
        for key in self._keys[device]:
            self._by_workload[key].move(device, old, new)

    def _replace(
        self, device: DeviceId, device_state: DeviceState, residents: dict[str, Resident]
    ) -> None:
        """Replace the residents of a device; only indexes of changed workloads are updated."""
        was_loaded, beside = device in self._on, self.beside_state(device, device_state)
        keys = self._keys.get(device, {})
        self._set(device, residents)
        if was_loaded and residents:
            self.beside.reallocate(device, beside, self.beside_state(device, device_state))
        elif residents:
            self.beside.add(device, self.beside_state(device, device_state))
        else:
            self.beside.remove(device, beside)
        keys_now = self._keys.get(device, {})
        for key in keys:
            if key not in keys_now:
                self._drop_key(key, device, device_state)
        for key in keys_now:
            if key not in keys:
                self._by_workload.setdefault(key, Index()).add(device, device_state)

    def _drop_key(self, key: str, device: DeviceId, device_state: DeviceState) -> None:
        index = self._by_workload[key]
        index.remove(device, device_state)
        if not index.groups:
            del self._by_workload[key]

    def _set(self, device: DeviceId, residents: dict[str, Resident]) -> None:
        self._on.pop(device, None)
        self._memory_mib.pop(device, None)
        self._keys.pop(device, None)
        if residents:
            self._on[device] = residents
            self._memory_mib[device] = sum([one.memory_mib for one in residents.values()])
            self._keys[device] = dict.fromkeys([one.workload for one in residents.values()])

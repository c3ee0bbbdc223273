"""The use of a lease's devices by other leases, as their hosts report it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from remote_gpu.client.affinity import Load
from remote_gpu.client.device import Lane
from remote_gpu.wire.connection import Access
from remote_gpu.wire.errors import OpCode, Refusal, Refused, RemoteError

#: Of a lease on one host: with more devices, all of its 16 lanes there are left to them.
DEVICES_MAX = 8


class HostLoads:
    """Reads the loads over one lane to each host, beside those of the runs. Thread-safe."""

    def __init__(self, access: Access, devices: Sequence[int]) -> None:
        """`devices`: the numbers of those to report."""
        self.devices = devices
        self._access = access
        self._lock = threading.Lock()
        self._lanes: dict[str, Lane] = {}  # by host
        self._silent: set[str] = set()  #: hosts of an earlier version, or without a lane left
        self._closed = False

    def read(self) -> dict[int, Load]:
        """The load of each device whose host reports it. Raises Refused, OpFailed."""
        numbers: dict[str, dict[str, int]] = {}  # by host, then by index there
        for number in self.devices:
            host, info = self._access.devices[number]
            numbers.setdefault(host.host, {})[str(info.index)] = number
        return {
            known[index]: load
            for host, known in numbers.items()
            if len(known) <= DEVICES_MAX
            for index, load in self._read(host, min(known.values())).items()
            if index in known
        }

    def close(self) -> None:
        """End the lanes. Safe to repeat."""
        with self._lock:
            self._closed = True
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.close()

    def _read(self, host: str, number: int) -> dict[str, Load]:
        if host in self._silent:
            return {}
        try:
            found = self._lane(host, number).op("device.loads").values.get("devices")
        except RemoteError as error:
            if error.code not in (OpCode.ENOENT, Refusal.BUSY):
                raise
            self._silent.add(host)
            return {}
        if not isinstance(found, Mapping):
            return {}
        return {str(index): Load(bool(free), slowdown) for index, (free, slowdown) in found.items()}

    def _lane(self, host: str, number: int) -> Lane:
        with self._lock:
            if self._closed:
                raise Refused(Refusal.ENDED, "the device was closed")
            if host not in self._lanes:
                self._lanes[host] = Lane.open(self._access, number)
            return self._lanes[host]

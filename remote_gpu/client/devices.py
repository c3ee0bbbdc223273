"""All devices of a lease: a sequence that also acts as its first device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import overload

from remote_gpu.client.affinity import Affinity
from remote_gpu.client.device import Device, DeviceBuffer, Lane, OpResult
from remote_gpu.client.graph import Graph, GraphResult
from remote_gpu.client.loads import HostLoads
from remote_gpu.wire.connection import Access, DeviceInfo
from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.wire.frames import BufferLike, Out


class Devices(Sequence[Lane], Device):
    """`devices[1]` is the lease's second device; `devices.op(…)` calls the first. Thread-safe.

    Each device has its own lane, opened on first use: their calls do not wait for each other. Only
    `devices.run(…)` chooses its device, among those of the kind and model of the first
    (`remote_gpu.client.affinity`): name one, `devices[0].run(…)`, for a run on that.
    """

    def __init__(self, access: Access, on_close: Callable[[], None] | None = None) -> None:
        """Opens the first lane. Raises Refused."""
        self._access = access
        self._on_close = on_close
        self._lock = threading.Lock()
        self._first = Lane.open(access)
        self._lanes = {0: self._first}
        self.info = self._first.info  #: of the first device
        first = (self.info.kind, self.info.model)
        alike = [n for n, one in enumerate(self.infos) if (one.kind, one.model) == first]
        self._affinity = Affinity(alike)
        self._loads = HostLoads(access, alike)

    def __len__(self) -> int:
        return len(self._access.devices)

    @overload
    def __getitem__(self, index: int) -> Lane: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Lane]: ...

    def __getitem__(self, index: int | slice) -> Lane | Sequence[Lane]:
        """One device or several. Raises IndexError, and Refused when a lane cannot be opened."""
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        number = range(len(self))[index]
        with self._lock:
            if number not in self._lanes:
                self._lanes[number] = Lane.open(self._access, number)
            return self._lanes[number]

    @property
    def infos(self) -> tuple[DeviceInfo, ...]:
        """The devices of the lease, without opening lanes."""
        return tuple(info for _, info in self._access.devices)

    def op(self, name: str, /, *buffers: BufferLike, out: Out = None, **args: object) -> OpResult:
        """See `Device.op`."""
        return self._first.op(name, *buffers, out=out, **args)

    def run(self, graph: Graph, /, *, iterations: int = 1, **inputs: BufferLike) -> GraphResult:
        """See `Device.run`; on the device of the lease that is the best for this graph now."""
        if len(self._loads.devices) == 1:
            return self._first.run(graph, iterations=iterations, **inputs)
        while True:
            number = self._begin(graph)
            new = not self[number].has(graph)
            try:
                return self[number].run(graph, iterations=iterations, **inputs)
            except OpFailed as error:
                if error.code != OpCode.ENOMEM or not new or not self._refuse(number, graph):
                    raise
            finally:
                with self._lock:
                    self._affinity.end(number)

    def _begin(self, graph: Graph) -> int:
        """The number of the device for a run of a graph; `end` must follow."""
        loads = self._loads.read()
        with self._lock:
            loaded = [number for number, lane in self._lanes.items() if lane.has(graph)]
            return self._affinity.begin(graph.spec.id, loaded, loads)

    def _refuse(self, number: int, graph: Graph) -> bool:
        """Note that a device lacks memory for a graph. False: so do all others."""
        with self._lock:
            return self._affinity.refuse(number, graph.spec.id)

    def post(
        self, name: str, /, *buffers: BufferLike, out: Sequence[DeviceBuffer] = (), **args: object
    ) -> None:
        """See `Device.post`."""
        self._first.post(name, *buffers, out=out, **args)

    def close(self) -> None:
        """End all lanes, and the session if `connect` opened it. Safe to repeat."""
        with self._lock:
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.close()
        self._loads.close()
        if self._on_close is not None:
            on_close, self._on_close = self._on_close, None
            on_close()

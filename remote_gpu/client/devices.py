"""All devices of a lease: a sequence that also acts as its first device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import overload

from remote_gpu.client.device import Device, DeviceBuffer, Lane, OpResult
from remote_gpu.client.graph import Graph, GraphResult
from remote_gpu.wire.connection import Access, DeviceInfo
from remote_gpu.wire.frames import BufferLike, Out


class Devices(Sequence[Lane], Device):
    """`devices[1]` is the lease's second device; `devices.op(…)` calls the first. Thread-safe.

    Each device has its own lane, opened on first use: their calls do not wait for each other.
    """

    def __init__(self, access: Access, on_close: Callable[[], None] | None = None) -> None:
        """Opens the first lane. Raises Refused."""
        self._access = access
        self._on_close = on_close
        self._lock = threading.Lock()
        self._first = Lane.open(access)
        self._lanes = {0: self._first}
        self.info = self._first.info  #: of the first device

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
        """See `Device.run`."""
        return self._first.run(graph, iterations=iterations, **inputs)

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
        if self._on_close is not None:
            on_close, self._on_close = self._on_close, None
            on_close()

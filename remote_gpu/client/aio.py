"""The client for asyncio: the same devices with awaitable calls.

    from remote_gpu.client import aio

    async with await aio.connect() as devices:
        c = await devices.op("sgemm", a, b, m=64, n=64, k=64)
        await asyncio.gather(devices[0].run(graph, x=x), devices[1].run(graph, x=y))
    await asyncio.gather(*(devices.run(graph, x=x) for x in many))     # on any of the devices

Every device has one thread, which runs its blocking calls in order; runs that name no device have
as many threads as there are devices. `loop.sock_*` is not used: a
round trip takes twice as long there, and TLS, shared memory and the proof would exist twice. A
thread that waits, sends or receives does not hold the interpreter's lock.

A call whose task is cancelled continues in its thread: its result is dropped, and the device's next
call waits for it. Close the device to end a call at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self, TypeVar

from remote_gpu.client import device as blocking
from remote_gpu.client.devices import DEFAULT_CAP_S
from remote_gpu.client.devices import Devices as BlockingDevices
from remote_gpu.client.devices import connect as connect_blocking
from remote_gpu.client.graph import Graph, GraphResult
from remote_gpu.client.host_data import HostData
from remote_gpu.client.local import Local as BlockingLocal
from remote_gpu.wire.connection import DeviceInfo
from remote_gpu.wire.errors import Refusal, Refused
from remote_gpu.wire.frames import BufferLike, Out

T = TypeVar("T")


class Device:
    """A device with its thread; the calls of `remote_gpu.client.Device`, awaitable."""

    def __init__(
        self,
        opened: Callable[[], blocking.Device],
        info: DeviceInfo,
        thread: ThreadPoolExecutor | None = None,
    ) -> None:
        """`opened` returns the blocking device; called in the thread, at each use. `thread`:
        another device's, which ends it; None: one of its own."""
        self.info = info
        self._opened = opened
        self._closed = False
        self._own_thread = thread is None
        self._thread = thread or ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")

    async def do(self, work: Callable[[blocking.Device], T]) -> T:
        """Run a function of the blocking device in its thread: `device.do(Operations)`.

        Raises what `work` raises, Refused(ENDED) once the device is closed.
        """
        if self._closed:
            raise Refused(Refusal.ENDED, "the device was closed")
        run = partial(self._do, work)
        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    async def op(
        self, name: str, /, *buffers: BufferLike, out: Out = None, **args: object
    ) -> blocking.OpResult:
        """See `remote_gpu.client.Device.op`."""
        given, targets = _blocking(buffers), None if out is None else _blocking(out)
        return await self.do(lambda device: device.op(name, *given, out=targets, **args))

    async def run(
        self, graph: Graph, /, *, iterations: int = 1, **inputs: BufferLike
    ) -> GraphResult:
        """See `remote_gpu.client.Device.run`."""
        return await self.do(lambda device: device.run(graph, iterations=iterations, **inputs))

    async def post(
        self, name: str, /, *buffers: BufferLike, out: Sequence[Buffer] = (), **args: object
    ) -> None:
        """See `remote_gpu.client.Device.post`."""
        given, targets = _blocking(buffers), _blocking(out)
        await self.do(lambda device: device.post(name, *given, out=targets, **args))

    async def sync(self) -> None:
        """See `remote_gpu.client.Device.sync`."""
        await self.do(lambda device: device.sync())

    async def buffer(self, size: int) -> Buffer:
        """See `remote_gpu.client.Device.buffer`."""
        return Buffer(self, await self.do(lambda device: device.buffer(size)))

    async def data(self, name: str) -> HostData:
        """See `remote_gpu.client.Device.data`; its `read` blocks."""
        return await self.do(lambda device: device.data(name))

    async def operations(self) -> tuple[str, ...]:
        """See `remote_gpu.client.Device.operations`."""
        return await self.do(lambda device: device.operations())

    async def close(self) -> None:
        """Close the device; a running call ends with the connection. Safe to repeat."""
        self._closed = True
        await asyncio.to_thread(self._close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _do(self, work: Callable[[blocking.Device], T]) -> T:
        return work(self._opened())

    def stop(self) -> None:
        """Wait for the thread after its last call; blocking."""
        if self._own_thread:
            self._thread.shutdown()

    def _close(self) -> None:
        self._opened().close()
        self.stop()


class Buffer:
    """Memory on the device that its calls take as an input."""

    def __init__(self, device: Device, buffer: blocking.DeviceBuffer) -> None:
        self._device = device
        self.blocking = buffer  #: for use in the device's thread
        self.size = buffer.size  #: bytes

    async def write(self, data: BufferLike, offset: int = 0) -> None:
        """See `remote_gpu.client.DeviceBuffer.write`."""
        await self._device.do(lambda _: self.blocking.write(data, offset))

    async def read(
        self, offset: int = 0, size: int | None = None, out: BufferLike = None
    ) -> memoryview:
        """See `remote_gpu.client.DeviceBuffer.read`."""
        return await self._device.do(lambda _: self.blocking.read(offset, size, out))

    async def free(self) -> None:
        """See `remote_gpu.client.DeviceBuffer.free`."""
        await self._device.do(lambda _: self.blocking.free())


class Devices(Device):
    """All devices of a lease: `devices[1]` is the second, `devices.op(…)` calls the first, and
    `devices.run(…)` the one that is the best for its graph (`remote_gpu.client.Devices.run`)."""

    def __init__(self, devices: BlockingDevices | BlockingLocal) -> None:
        super().__init__(lambda: devices[0], devices.info)
        self._devices = devices
        self._each = {0: Device(lambda: devices[0], self.info, self._thread)}
        self._runs = ThreadPoolExecutor(len(devices), thread_name_prefix="runs")
        self.infos = devices.infos  #: of all devices of the lease

    def __len__(self) -> int:
        return len(self._devices)

    def __getitem__(self, index: int) -> Device:
        """A device, whose lane its first call opens. Raises IndexError."""
        number = range(len(self))[index]
        if number not in self._each:
            devices = self._devices
            self._each[number] = Device(lambda: devices[number], self.infos[number])
        return self._each[number]

    async def run(
        self, graph: Graph, /, *, iterations: int = 1, **inputs: BufferLike
    ) -> GraphResult:
        """See `remote_gpu.client.Devices.run`."""
        if len(self) == 1:  # in the order of the other calls
            return await super().run(graph, iterations=iterations, **inputs)
        if self._closed:
            raise Refused(Refusal.ENDED, "the device was closed")
        run = partial(self._devices.run, graph, iterations=iterations, **inputs)
        return await asyncio.get_running_loop().run_in_executor(self._runs, run)

    def _close(self) -> None:
        self._devices.close()
        self._runs.shutdown()
        for device in (self, *self._each.values()):
            device.stop()


def _blocking(buffers: Sequence[BufferLike]) -> list[BufferLike]:
    return [buffer.blocking if isinstance(buffer, Buffer) else buffer for buffer in buffers]


async def connect(
    environ: Mapping[str, str] | None = None, *, cap_s: float = DEFAULT_CAP_S
) -> Devices:
    """See `remote_gpu.client.connect`."""
    return Devices(await asyncio.to_thread(connect_blocking, environ, cap_s=cap_s))


def local(**options: Any) -> Devices:
    """The CPU of this process; arguments and errors as of `remote_gpu.client.Local`."""
    return Devices(BlockingLocal(**options))

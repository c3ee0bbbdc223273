"""The interface of a device for graphs: memory, programs, kernels with bound arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.wire.graphs import Scalar, Shared
from remote_gpu.worker.cards.pinned import PinnedBlock
from remote_gpu.worker.memory.memory import Memory
from remote_gpu.worker.memory.quota import Quota


class DeviceMemory(Protocol):
    """Memory of a device, counted in the quota until closed."""

    @property
    def size(self) -> int: ...

    @property
    def view(self) -> memoryview | None:
        """Its bytes, if host and device share them; None for memory of a card."""
        ...

    @property
    def place(self) -> memoryview | None:
        """Host memory to receive the bytes of the next `write` in; None: any. It may still hold the
        result of the last `read`."""
        ...

    def write(self, data: memoryview) -> None:
        """Copy `size` bytes in, unless `data` is `view` itself. Fastest from `place` and other
        memory of `Backend.host_memory`, which must not change before the next `finish`."""
        ...

    def read(self) -> memoryview:
        """Its bytes; valid until the next step or write."""
        ...

    def result(self) -> memoryview:
        """Its bytes, in memory of the caller's own: valid after any step, write and `close`."""
        ...

    def close(self) -> None: ...


#: An argument of a kernel for a backend.
Bound: TypeAlias = "DeviceMemory | Scalar | Shared"


class Kernel(Protocol):
    """A kernel with its arguments."""

    def enqueue(self, global_size: Sequence[int], local_size: Sequence[int]) -> None:
        """Start it after all enqueued work. Raises OpFailed."""
        ...


class Program(Protocol):
    """A built source."""

    def kernel(self, name: str, arguments: Sequence[Bound]) -> Kernel:
        """A kernel. Raises OpFailed(EINVAL) for an unknown name or wrong arguments."""
        ...


class Backend(Protocol):
    """One device of this process."""

    @property
    def implementation(self) -> str:
        """For the caller: `opencl: PoCL 3.1 …`."""
        ...

    @property
    def on_host(self) -> bool:
        """Whether kernels run in this process, on the host's cores."""
        ...

    def allocate(self, quota: Quota, size: int) -> DeviceMemory:
        """Raises OpFailed(ENOMEM)."""
        ...

    def build(self, source: str) -> Program:
        """Compile a source. Raises OpFailed(EINVAL) with the compiler's errors."""
        ...

    def finish(self) -> None:
        """Wait for all enqueued work. Raises OpFailed(EIO)."""
        ...

    def host_memory(self, size: int) -> PinnedBlock | None:
        """Host memory that the device reads and writes by itself; None: there is none, or no more.
        Raises OpFailed."""
        ...


class HostMemory(Memory):
    """Host memory as memory of a CPU device."""

    @property
    def place(self) -> memoryview:
        return self.view

    def write(self, data: memoryview) -> None:
        if data.obj is not self.view.obj:
            self.view[:] = data

    def read(self) -> memoryview:
        return self.view

    def result(self) -> memoryview:
        return memoryview(bytearray(self.view))


class HostBackend:
    """A CPU without OpenCL, for graphs of operations only."""

    implementation = "host"
    on_host = True

    def __init__(self, why: str) -> None:
        self._why = why  #: the reason for the lack of kernels

    def allocate(self, quota: Quota, size: int) -> HostMemory:
        return HostMemory(quota, size)

    def build(self, source: str) -> Program:
        del source
        raise OpFailed(OpCode.ENOTSUP, f"this device runs no kernels: {self._why}")

    def finish(self) -> None:
        """Nothing to wait for: operations have ended when they return."""

    def host_memory(self, size: int) -> None:
        del size

"""What a graph needs of a device: memory, programs, kernels with their arguments bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.wire.graphs import Scalar, Shared
from remote_gpu.worker.memory.memory import Memory
from remote_gpu.worker.memory.quota import Quota


class DeviceMemory(Protocol):
    """Memory of a device, counted in the quota until it is closed."""

    @property
    def size(self) -> int: ...

    @property
    def view(self) -> memoryview | None:
        """Its bytes, where host and device share them; None for memory of a card."""
        ...

    def write(self, data: memoryview) -> None:
        """Copy `size` bytes in; nothing is copied when `data` is `view` itself."""
        ...

    def read(self) -> memoryview:
        """Its bytes; valid until the next step or write."""
        ...

    def close(self) -> None: ...


#: A kernel's argument as a backend takes it.
Bound: TypeAlias = "DeviceMemory | Scalar | Shared"


class Kernel(Protocol):
    """A kernel whose arguments are set."""

    def enqueue(self, global_size: Sequence[int], local_size: Sequence[int]) -> None:
        """Start it after all that was enqueued before. Raises OpFailed."""
        ...


class Program(Protocol):
    """A built source."""

    def kernel(self, name: str, arguments: Sequence[Bound]) -> Kernel:
        """Raises OpFailed(EINVAL) for an unknown name or arguments that do not fit it."""
        ...


class Backend(Protocol):
    """One device of this process."""

    @property
    def implementation(self) -> str:
        """What runs, for the caller: `opencl: PoCL 3.1 …`."""
        ...

    @property
    def on_host(self) -> bool:
        """Kernels run in this process, on the host's own cores."""
        ...

    def allocate(self, quota: Quota, size: int) -> DeviceMemory:
        """Raises OpFailed(ENOMEM)."""
        ...

    def build(self, source: str) -> Program:
        """Raises OpFailed(EINVAL) with the compiler's words."""
        ...

    def finish(self) -> None:
        """Wait until all that was enqueued is done. Raises OpFailed(EIO)."""
        ...


class HostMemory:
    """Memory of the host as memory of a CPU device."""

    def __init__(self, quota: Quota, size: int) -> None:
        self._memory = Memory(quota, size)
        self.size = size
        self.view = self._memory.view

    def write(self, data: memoryview) -> None:
        if data.obj is not self.view.obj:
            self.view[:] = data

    def read(self) -> memoryview:
        return self.view

    def close(self) -> None:
        self._memory.close()


class HostBackend:
    """A CPU without OpenCL: graphs of operations run, kernels do not."""

    implementation = "host"
    on_host = True

    def __init__(self, why: str) -> None:
        self._why = why  #: there is no compiler for kernels

    def allocate(self, quota: Quota, size: int) -> HostMemory:
        return HostMemory(quota, size)

    def build(self, source: str) -> Program:
        del source
        raise OpFailed(OpCode.ENOTSUP, f"this device runs no kernels: {self._why}")

    def finish(self) -> None:
        """Operations are done when they return."""

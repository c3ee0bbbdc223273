"""Kernels through OpenCL: PoCL on a CPU, a vendor's driver on a card.

A CPU device shares the host's memory (CL_MEM_USE_HOST_PTR), so payloads are received straight into
a kernel's arguments; for a card they are copied.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyopencl as cl

from gpu_scheduler.monitor.drivers.opencl_drivers import platforms
from gpu_scheduler.monitor.names import opencl_name
from remote_gpu.wire.errors import OpCode, OpFailed, invalid
from remote_gpu.wire.graphs import SCALARS, Scalar, Shared
from remote_gpu.worker.backends.base import Bound, DeviceMemory, HostMemory, Kernel, Program
from remote_gpu.worker.memory.memory import Memory
from remote_gpu.worker.memory.quota import Quota

_LOG_CHARS_MAX = 1500  #: of a compiler's log, from its beginning


class OpenclBackend:
    """One OpenCL device with one in-order queue."""

    def __init__(self, device: cl.Device, *, shared: bool) -> None:
        """`shared`: host and device use the same memory, as on a CPU."""
        self._context = cl.Context([device])
        self._queue = cl.CommandQueue(self._context, device)
        self._device = device
        self._shared = shared
        self.on_host = bool(device.type & cl.device_type.CPU)
        version = " ".join(device.platform.version.split()[2:4])
        self.implementation = f"opencl: {version}, {device.name.strip()}"

    def allocate(self, quota: Quota, size: int) -> DeviceMemory:
        if self._shared:
            return _SharedMemory(self._context, quota, size)
        return _CardMemory(self._context, self._queue, quota, size)

    def build(self, source: str) -> Program:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", cl.CompilerWarning)  # of the user's source
                options = ["-DORCHGPU_CPU"] if self._shared else []
                built = cl.Program(self._context, source).build(options)
        except cl.RuntimeError as error:
            log = _compile_errors(str(error))[:_LOG_CHARS_MAX]
            raise invalid(f"the source does not build: {log}") from None
        return _Program(self._queue, built, self._device.local_mem_size)

    def finish(self) -> None:
        with _errors(OpCode.EIO, "the device failed"):
            self._queue.finish()

    def host_memory(self, size: int) -> None:
        del size  # copies of OpenCL's drivers are from any memory


class _Program:
    def __init__(self, queue: cl.CommandQueue, program: cl.Program, shared_bytes_max: int) -> None:
        self._queue = queue
        self._program = program
        self._shared_bytes_max = shared_bytes_max

    def kernel(self, name: str, arguments: Sequence[Bound]) -> Kernel:
        with _errors(OpCode.EINVAL, f"the source has no kernel {name!r}"):
            kernel = cl.Kernel(self._program, name)
        if kernel.num_args != len(arguments):
            message = f"kernel {name!r} takes {kernel.num_args} arguments, not {len(arguments)}"
            raise invalid(message)
        shared = sum(argument.size for argument in arguments if isinstance(argument, Shared))
        if shared > self._shared_bytes_max:  # PoCL ends the process
            message = f"{shared} bytes shared by a group; this device has {self._shared_bytes_max}"
            raise invalid(f"kernel {name!r}: {message}")
        for index, argument in enumerate(arguments):
            with _errors(OpCode.EINVAL, f"argument {index} of kernel {name!r} does not fit"):
                kernel.set_arg(index, _as_argument(argument))
        return _Kernel(self._queue, kernel, tuple(arguments))


class _Kernel:
    def __init__(
        self, queue: cl.CommandQueue, kernel: cl.Kernel, arguments: tuple[Bound, ...]
    ) -> None:
        self._queue = queue
        self._kernel = kernel
        self._arguments = arguments  # OpenCL itself holds no references

    def enqueue(self, global_size: Sequence[int], local_size: Sequence[int]) -> None:
        with _errors(OpCode.EINVAL, f"kernel {self._kernel.function_name!r} cannot be launched"):
            cl.enqueue_nd_range_kernel(
                self._queue, self._kernel, tuple(global_size), tuple(local_size)
            )


class _SharedMemory(HostMemory):
    """Host memory that kernels access in place."""

    def __init__(self, context: cl.Context, quota: Quota, size: int) -> None:
        super().__init__(quota, size)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        self.buffer = cl.Buffer(context, flags, hostbuf=self.view)

    def close(self) -> None:
        self.buffer.release()
        super().close()


class _CardMemory:
    """Memory of a card, zeroed at allocation and before it is freed.

    Drivers do not zero memory, and the next lease must not read results of this one.
    """

    view = None

    def __init__(
        self, context: cl.Context, queue: cl.CommandQueue, quota: Quota, size: int
    ) -> None:
        quota.reserve(size)
        self._quota = quota
        self._queue = queue
        self._home: Memory | None = None
        self.size = size
        try:
            self.buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, size)
        except cl.Error as error:
            quota.free(size)
            raise OpFailed(OpCode.ENOMEM, f"{size} bytes of the device: {error}") from None
        self._zero()

    place = None

    def write(self, data: memoryview) -> None:
        with _errors(OpCode.EIO, "the copy to the device failed"):
            cl.enqueue_copy(self._queue, self.buffer, data, is_blocking=True)

    def read(self) -> memoryview:
        if self._home is None:
            self._home = Memory(Quota(), self.size)  # host memory, outside of the quota
        with _errors(OpCode.EIO, "the copy from the device failed"):
            cl.enqueue_copy(self._queue, self._home.view, self.buffer, is_blocking=True)
        return self._home.view

    def result(self) -> memoryview:
        found = self.read()
        self._home = None  # it belongs to the caller now
        return found

    def close(self) -> None:
        self._zero()
        self.buffer.release()
        self._quota.free(self.size)
        if self._home is not None:
            self._home.close()

    def _zero(self) -> None:
        with _errors(OpCode.EIO, "the device's memory cannot be zeroed"):
            cl.enqueue_fill_buffer(self._queue, self.buffer, b"\0", 0, self.size).wait()


def open_opencl(kind: str, name: str = "", cache: Path | None = None) -> OpenclBackend:
    """The machine's CPU (kind `cpu`), or the device with the monitor's id `name` ("": any card).

    `cache`: folder of compiled kernels; only the first call of a process can set it. Starts
    threads: never before a fork. Raises OpFailed(ENODEV) without such a device.
    """
    if cache is not None:
        os.environ["POCL_CACHE_DIR"] = str(cache)
    os.environ.setdefault("POCL_MAX_PTHREAD_COUNT", str(len(os.sched_getaffinity(0))))
    device = next(_devices(kind, name), None)
    if device is None:
        raise OpFailed(OpCode.ENODEV, f"no OpenCL device {name or kind} on this host")
    return OpenclBackend(device, shared=kind == "cpu")


def _devices(kind: str, name: str) -> Iterator[cl.Device]:
    for platform, devices in platforms():
        for number, device in enumerate(devices):
            is_cpu = bool(device.type & cl.device_type.CPU)
            if kind == "cpu" or not name:
                wanted = is_cpu == (kind == "cpu")
            else:
                wanted = name.endswith(f"/{opencl_name(platform.name, number)}")
            if wanted:
                yield device


def _compile_errors(log: str) -> str:
    errors = re.findall(r"(?:\S*\.cl|<\w+>|\S+):(\d+):\d+: (?:error: )?(.*)", log)
    return "; ".join(f"line {line}: {text}" for line, text in errors) or log.strip()


def _as_argument(argument: Bound) -> Any:
    if isinstance(argument, Scalar):
        return struct.pack(SCALARS[argument.kind], argument.value)
    if isinstance(argument, Shared):
        return cl.LocalMemory(argument.size)
    assert isinstance(argument, (_SharedMemory, _CardMemory)), "memory of another backend"
    return argument.buffer


@contextlib.contextmanager
def _errors(code: OpCode, what: str) -> Iterator[None]:
    try:
        yield
    except (cl.Error, TypeError, ValueError, struct.error) as error:
        raise OpFailed(code, f"{what}: {str(error)[:500]}") from None

"""Kernels on an NVIDIA device: machine code by NVRTC, launched through the driver's own interface.

One context, one stream and one pair of pinned pages per backend. A lost context (a wild pointer on
the card) cannot be used any more: the call that finds it says so, and the next one ends this
process, so that the lease's next lane begins in a sound one.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cuda.bindings import driver

from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.wire.graphs import SCALARS, Scalar, Shared
from remote_gpu.worker.backends.base import Bound, DeviceMemory, Kernel, Program
from remote_gpu.worker.backends.nvrtc import compile_source
from remote_gpu.worker.backends.staging import Staging
from remote_gpu.worker.kernels.cuda import shared_offsets
from remote_gpu.worker.memory.memory import Memory
from remote_gpu.worker.memory.quota import Quota

_OUT_OF_MEMORY = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
#: After these a context answers nothing else: the CUDA manual asks for the process to end.
_LOST = frozenset(
    getattr(driver.CUresult, f"CUDA_ERROR_{name}")
    for name in (
        "ILLEGAL_ADDRESS",
        "ILLEGAL_INSTRUCTION",
        "MISALIGNED_ADDRESS",
        "INVALID_ADDRESS_SPACE",
        "INVALID_PC",
        "LAUNCH_FAILED",
        "LAUNCH_TIMEOUT",
        "HARDWARE_STACK_ERROR",
        "ASSERT",
        "ECC_UNCORRECTABLE",
    )
)
#: A kernel uses more dynamic memory of a group than this only when that is asked for beforehand.
_SHARED_BYTES_FREE = 48 << 10

#: A source and an architecture to machine code; raises OpFailed.
Compile = Callable[[str, str, "Path | None"], bytes]


def _end_process() -> None:
    os._exit(1)


class CudaBackend:
    on_host = False
    """One CUDA device of this process. Safe to use from several threads in turn."""

    def __init__(
        self,
        device: Any,
        cache: Path | None,
        compile_: Compile = compile_source,
        on_lost: Callable[[], None] = _end_process,
    ) -> None:
        """`device`: as `cuDeviceGet` gives it. Raises OpFailed(EIO)."""
        self._cache = cache
        self._compile = compile_
        self._on_lost = on_lost
        self._lost = False
        self._threads: set[int] = set()  # in which the context is current
        name = self.call(driver.cuDeviceGetName, 128, device).rstrip(b"\0").decode()
        attribute = driver.CUdevice_attribute
        major, minor = (
            self.call(driver.cuDeviceGetAttribute, one, device)
            for one in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        self.architecture = f"sm_{major}{minor}"
        self.implementation = f"cuda: {self.architecture}, {name}"
        self._context = self.call(driver.cuDevicePrimaryCtxRetain, device)
        self.enter()
        non_blocking = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self.stream = self.call(driver.cuStreamCreate, non_blocking.value)
        self.staging = Staging(self.call, self.stream)

    def allocate(self, quota: Quota, size: int) -> DeviceMemory:
        self.enter()
        return _CudaMemory(self, quota, size)

    def build(self, source: str) -> Program:
        image = self._compile(source, self.architecture, self._cache)
        self.enter()
        return _Program(self, self.call(driver.cuModuleLoadData, image), image)

    def finish(self) -> None:
        self.enter()
        self.call(driver.cuStreamSynchronize, self.stream)

    def enter(self) -> None:
        """Make the context current in this thread. Ends the process when it is lost."""
        if self._lost:
            self._on_lost()
        if (thread := threading.get_ident()) not in self._threads:
            self.call(driver.cuCtxSetCurrent, self._context)
            self._threads.add(thread)

    def call(self, function: Callable[..., Any], *args: Any, wrong: OpCode = OpCode.EIO) -> Any:
        """The value of a call to the driver. Raises OpFailed: ENOMEM, else `wrong`."""
        result, *values = function(*args)
        if result == driver.CUresult.CUDA_SUCCESS:
            return values[0] if len(values) == 1 else values
        if result in _LOST:
            self._lost, wrong = True, OpCode.EIO
        if result == _OUT_OF_MEMORY:
            wrong = OpCode.ENOMEM
        raise OpFailed(wrong, f"the device failed: {result.name} by {function.__name__}")


class _CudaMemory:
    """Memory of the card, zero from the start and zeroed before it is given back.

    The driver promises neither: without it a lease could read what the one before it left.
    """

    view = None

    def __init__(self, backend: CudaBackend, quota: Quota, size: int) -> None:
        quota.reserve(size)
        self._quota = quota
        self._backend = backend
        self._home: Memory | None = None
        self.size = size
        try:
            self.address = int(backend.call(driver.cuMemAlloc, size))
        except OpFailed:
            quota.free(size)
            raise
        self._zero()

    def write(self, data: memoryview) -> None:
        self._backend.enter()
        self._backend.staging.upload(self.address, data)

    def read(self) -> memoryview:
        self._backend.enter()
        if self._home is None:
            self._home = Memory(Quota(), self.size)  # the host's, not the lease's on the card
        self._backend.staging.download(self.address, self._home.view)
        return self._home.view

    def close(self) -> None:
        self._backend.enter()
        self._zero()
        self._backend.finish()
        self._backend.call(driver.cuMemFree, self.address)
        self._quota.free(self.size)
        if self._home is not None:
            self._home.close()

    def _zero(self) -> None:
        stream = self._backend.stream
        self._backend.call(driver.cuMemsetD8Async, self.address, 0, self.size, stream)


class _Program:
    def __init__(self, backend: CudaBackend, module: Any, image: bytes) -> None:
        self._backend = backend
        self._module = module
        self._image = image  # the driver may read it as long as the module lives

    def kernel(self, name: str, arguments: Sequence[Bound]) -> Kernel:
        try:
            code = OpCode.EINVAL
            function = self._backend.call(
                driver.cuModuleGetFunction, self._module, name.encode(), wrong=code
            )
        except OpFailed:
            raise OpFailed(OpCode.EINVAL, f"no kernel {name!r} in the source") from None
        return _Kernel(self._backend, self, function, name, arguments)


class _Kernel:
    """Its arguments lie where the driver reads them at every launch; nothing is packed then."""

    def __init__(
        self,
        backend: CudaBackend,
        program: _Program,
        function: Any,
        name: str,
        arguments: Sequence[Bound],
    ) -> None:
        self._backend = backend
        self._name = name
        self._function = function
        self._kept = (program, tuple(arguments))  # as long as the kernel can be launched
        sizes = [argument.size for argument in arguments if isinstance(argument, Shared)]
        offsets, self._shared_bytes = shared_offsets(sizes)
        left = iter(offsets)
        packed = [_packed(argument, left) for argument in arguments]
        self._values = [ctypes.create_string_buffer(value, len(value)) for value in packed]
        addresses = [ctypes.addressof(value) for value in self._values]
        self._pointers = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        if self._shared_bytes > _SHARED_BYTES_FREE:
            dynamic = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._call(driver.cuFuncSetAttribute, function, dynamic, self._shared_bytes)

    def enqueue(self, global_size: Sequence[int], local_size: Sequence[int]) -> None:
        blocks = [whole // part for whole, part in zip(global_size, local_size, strict=True)]
        one = [1] * (3 - len(blocks))
        self._backend.enter()
        self._call(
            driver.cuLaunchKernel,
            self._function,
            *blocks,
            *one,
            *local_size,
            *one,
            self._shared_bytes,
            self._backend.stream,
            ctypes.addressof(self._pointers),
            0,
        )

    def _call(self, function: Callable[..., Any], *args: Any) -> None:
        try:
            self._backend.call(function, *args, wrong=OpCode.EINVAL)
        except OpFailed as error:
            message = f"kernel {self._name!r} cannot be launched: {error.message}"
            raise OpFailed(error.code, message) from None


def _packed(argument: Bound, offsets: Iterator[int]) -> bytes:
    if isinstance(argument, Scalar):
        return struct.pack(SCALARS[argument.kind], argument.value)
    if isinstance(argument, Shared):
        return struct.pack("I", next(offsets))
    assert isinstance(argument, _CudaMemory), "memory of another backend"
    return struct.pack("Q", argument.address)


def open_cuda(
    device: str, cache: Path | None = None, compile_: Compile = compile_source
) -> CudaBackend:
    """The CUDA device that the driver calls `device` (`GPU-…`, `MIG-…`; "" = the first it shows).

    What a process is shown is decided by `CUDA_VISIBLE_DEVICES` before its first call. Starts
    threads: never before a fork. Raises OpFailed(ENODEV) without driver or device.
    """
    try:
        (result,) = driver.cuInit(0)
    except RuntimeError as error:  # there is no libcuda.so.1
        raise OpFailed(OpCode.ENODEV, f"no NVIDIA driver on this host: {error}") from None
    if result != driver.CUresult.CUDA_SUCCESS:
        raise OpFailed(OpCode.ENODEV, f"the NVIDIA driver has no device: {result.name}")
    visible = [one.strip() for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    number = visible.index(device) if device in visible else 0
    if device and device not in visible and any(visible):
        raise OpFailed(OpCode.ENODEV, f"{device} is not among the devices of this process")
    result, found = driver.cuDeviceGet(number)
    if result != driver.CUresult.CUDA_SUCCESS:
        message = f"the NVIDIA driver does not show {device or 'a device'}: {result.name}"
        raise OpFailed(OpCode.ENODEV, message)
    return CudaBackend(found, None if cache is None else cache / "cuda", compile_)

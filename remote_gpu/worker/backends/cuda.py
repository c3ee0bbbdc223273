"""Kernels on an NVIDIA device: machine code by NVRTC, launched through the driver's own interface.

One context, one stream and one pair of pinned pages per backend. A lost context (after an invalid
address on the card) is not usable any more: the call that finds it fails, and the next one ends
this process, so that the lease's next lane gets a new one.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from cuda.bindings import driver

from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.wire.graphs import SCALARS, Scalar, Shared
from remote_gpu.worker.backends.base import Bound, DeviceMemory, Kernel, Program
from remote_gpu.worker.backends.nvrtc import compile_source
from remote_gpu.worker.backends.ordinals import visible_ordinal
from remote_gpu.worker.backends.staging import Staging
from remote_gpu.worker.cards.card import CONTEXT_ERRORS, DEVICE_ERRORS, Card
from remote_gpu.worker.cards.pinned import PinnedBlock, PinnedMemory
from remote_gpu.worker.kernels.cuda import shared_offsets
from remote_gpu.worker.memory.memory import Memory
from remote_gpu.worker.memory.quota import Quota

_OUT_OF_MEMORY = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
#: A kernel needs an attribute for more dynamic shared memory than this.
_SHARED_BYTES_FREE = 48 << 10

#: A source and an architecture to machine code; raises OpFailed.
Compile = Callable[[str, str, "Path | None"], bytes]


def _end_process() -> None:
    os._exit(1)


class CudaBackend:
    """One CUDA device of this process. For several threads in turn."""

    on_host = False

    def __init__(
        self,
        device: Any,
        cache: Path | None,
        compile_: Compile = compile_source,
        on_lost: Callable[[], None] = _end_process,
        card: Card | None = None,
    ) -> None:
        """`device`: of `cuDeviceGet`. Raises OpFailed(EIO)."""
        self._card = Card() if card is None else card
        self._cache = cache
        self._compile = compile_
        self._on_lost = on_lost
        self._lost = False
        self._threads: set[int] = set()  # those with the context as current
        name = self.call(driver.cuDeviceGetName, 128, device).rstrip(b"\0").decode()
        attribute = driver.CUdevice_attribute
        major, minor = (
            self.call(driver.cuDeviceGetAttribute, item, device)
            for item in (
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
        self.pinned = PinnedMemory(self.call)

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

    def address_of(self, memory: DeviceMemory) -> int:
        """The card's address of memory of this backend, for a vendor's library."""
        assert isinstance(memory, _CudaMemory), "memory of another backend"
        return memory.address

    def enter(self) -> None:
        """Make the context current in this thread. Ends the process after a loss."""
        if self._lost:
            self._on_lost()
        if (thread := threading.get_ident()) not in self._threads:
            self.call(driver.cuCtxSetCurrent, self._context)
            self._threads.add(thread)

    def call(self, function: Callable[..., Any], *args: Any, wrong: OpCode = OpCode.EIO) -> Any:
        """Call the driver; returns its value. Raises OpFailed: ENOMEM, else `wrong`."""
        with self._card.watchdog.call(function.__name__):
            result, *values = function(*args)
        if result == driver.CUresult.CUDA_SUCCESS:
            return values[0] if len(values) == 1 else values
        message = f"the device failed: {function.__name__} returned {result.name}"
        if result.name in CONTEXT_ERRORS or result.name in DEVICE_ERRORS:
            self._lost, wrong = True, OpCode.EIO
        if result.name in DEVICE_ERRORS:
            self._card.failed(message)
        if result == _OUT_OF_MEMORY:
            wrong = OpCode.ENOMEM
        raise OpFailed(wrong, message)

    def watched(self, name: str) -> AbstractContextManager[None]:
        """The time of a call of a vendor's library, which may hang like one of the driver."""
        return self._card.watchdog.call(name)


class _CudaMemory:
    """Memory of the card, zeroed at allocation and before it is freed.

    The driver does neither, and a lease must not read what an earlier one left.
    """

    view = None

    def __init__(self, backend: CudaBackend, quota: Quota, size: int) -> None:
        quota.reserve(size)
        self._quota = quota
        self._backend = backend
        self._home: Memory | None = None
        self._pinned: PinnedBlock | None = None
        self._copying = False  #: from the pinned memory, perhaps
        self.size = size
        try:
            self.address = int(backend.call(driver.cuMemAlloc, size))
        except OpFailed:
            quota.free(size)
            raise
        self._zero()

    @property
    def place(self) -> memoryview | None:
        """Pinned memory, after the last copy from it."""
        self._backend.enter()
        if self._pinned is None:
            self._pinned = self._backend.pinned.allocate(self.size)
        if self._copying:
            self._copying = False
            self._backend.finish()
        return None if self._pinned is None else self._pinned.view

    def write(self, data: memoryview) -> None:
        self._backend.enter()
        if self._pinned is None or not self._pinned.has(data):
            self._backend.staging.upload(self.address, data)
            return
        self._copying = True
        copy, stream = driver.cuMemcpyHtoDAsync, self._backend.stream
        self._backend.call(copy, self.address, self._pinned.address, self.size, stream)

    def read(self) -> memoryview:
        if (place := self.place) is not None and self._pinned is not None:
            copy, stream = driver.cuMemcpyDtoHAsync, self._backend.stream
            self._backend.call(copy, self._pinned.address, self.address, self.size, stream)
            self._backend.finish()
            return place
        if self._home is None:
            self._home = Memory(Quota(), self.size)  # host memory, outside of the quota
        self._backend.staging.download(self.address, self._home.view)
        return self._home.view

    def close(self) -> None:
        self._backend.enter()
        self._zero()
        self._backend.finish()
        self._backend.call(driver.cuMemFree, self.address)
        self._quota.free(self.size)
        if self._pinned is not None:
            self._pinned.close()
            self._pinned = None
        if self._home is not None:
            self._home.close()

    def _zero(self) -> None:
        stream = self._backend.stream
        self._backend.call(driver.cuMemsetD8Async, self.address, 0, self.size, stream)


class _Program:
    def __init__(self, backend: CudaBackend, module: Any, image: bytes) -> None:
        self._backend = backend
        self._module = module
        self._image = image  # the driver may read it during the module's life

    def kernel(self, name: str, arguments: Sequence[Bound]) -> Kernel:
        try:
            code = OpCode.EINVAL
            function = self._backend.call(
                driver.cuModuleGetFunction, self._module, name.encode(), wrong=code
            )
        except OpFailed:
            raise OpFailed(OpCode.EINVAL, f"the source has no kernel {name!r}") from None
        return _Kernel(self._backend, self, function, name, arguments)


class _Kernel:
    """A kernel whose packed arguments the driver reads at every launch."""

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
        self._kept = (program, tuple(arguments))  # while the kernel can be launched
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
        rest = [1] * (3 - len(blocks))
        self._backend.enter()
        self._call(
            driver.cuLaunchKernel,
            self._function,
            *blocks,
            *rest,
            *local_size,
            *rest,
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
    device: str,
    cache: Path | None = None,
    compile_: Compile = compile_source,
    card: Card | None = None,
) -> CudaBackend:
    """The CUDA device with the driver's id `device` (`GPU-…`, `MIG-…`; "" = the first one).

    `CUDA_VISIBLE_DEVICES` at the first call decides which devices a process sees. Starts threads:
    never before a fork. Raises OpFailed(ENODEV) without driver or device.
    """
    card = Card() if card is None else card
    try:
        with card.watchdog.call("cuInit"):
            (result,) = driver.cuInit(0)
    except RuntimeError as error:  # there is no libcuda.so.1
        raise OpFailed(OpCode.ENODEV, f"no NVIDIA driver on this host: {error}") from None
    if result != driver.CUresult.CUDA_SUCCESS:
        raise _absent(card, f"the NVIDIA driver has no devices: {result.name}")
    result, found = driver.cuDeviceGet(visible_ordinal(device))
    if result != driver.CUresult.CUDA_SUCCESS:
        message = f"the NVIDIA driver does not list {device or 'a device'}: {result.name}"
        raise _absent(card, message)
    return CudaBackend(found, None if cache is None else cache / "cuda", compile_, card=card)


def _absent(card: Card, message: str) -> OpFailed:
    """The error of a device that its host listed and the driver lacks, which is reported."""
    card.failed(message)
    return OpFailed(OpCode.ENODEV, message)

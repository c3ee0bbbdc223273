"""Kernels on an NVIDIA device: machine code by NVRTC, launched through the driver's own interface.

One stream and one pair of pinned pages per backend; the context is that of the process. A lost one
(after an invalid address on the card) is not usable any more: the call that finds it fails, and the
next one ends this process, so that the lease's next lane gets a new one.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from cuda.bindings import driver

from operations.kernels.cuda import shared_offsets
from remote_gpu.wire.errors import OpCode, OpFailed, invalid
from remote_gpu.wire.graphs import SCALARS, Scalar, Shared
from remote_gpu.worker.backends.base import Bound, DeviceMemory, Kernel, Program
from remote_gpu.worker.backends.nvrtc import compile_source
from remote_gpu.worker.backends.staging import Staging
from remote_gpu.worker.cards.card import Card, visible_ordinal
from remote_gpu.worker.cards.errors import CardError, effect_of
from remote_gpu.worker.cards.pinned import PinnedBlock
from remote_gpu.worker.memory.memory import Memory
from remote_gpu.worker.memory.quota import Quota

#: A kernel needs an attribute for more dynamic shared memory than this.
_SHARED_BYTES_FREE = 48 << 10

#: A source and an architecture to machine code; raises OpFailed.
Compile = Callable[[str, str, "Path | None"], bytes]


class CudaBackend:
    """One CUDA device of this process. For several threads in turn."""

    on_host = False

    def __init__(
        self,
        device: Any,
        cache: Path | None,
        compile_: Compile = compile_source,
        card: Card | None = None,
    ) -> None:
        """`device`: of `cuDeviceGet`. Raises OpFailed(EIO)."""
        self.card = Card() if card is None else card
        self._cache = cache
        self._compile = compile_
        self._copies = self._copied = 0  #: from pinned memory: begun, and known to have ended
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

    def allocate(self, quota: Quota, size: int) -> DeviceMemory:
        self.enter()
        return _CudaMemory(self, quota, size)

    def build(self, source: str) -> Program:
        image = self._compile(source, self.architecture, self._cache)
        self.enter()
        return _Program(self, self.call(driver.cuModuleLoadData, image), image)

    def host_memory(self, size: int) -> PinnedBlock | None:
        return self.card.pinned.take(self, size)

    def finish(self) -> None:
        self.enter()
        begun = self._copies
        self.call(driver.cuStreamSynchronize, self.stream)
        self._copied = begun

    def pin(self, size: int) -> int:
        """Pin host memory for every context of the device."""
        self.enter()
        return int(self.call(driver.cuMemHostAlloc, size, 0))

    def unpin(self, address: int) -> None:
        """Free pinned memory; after a loss the end of the process does."""
        if not self.card.is_lost:
            with contextlib.suppress(OpFailed):
                self.enter()
                self.call(driver.cuMemFreeHost, address)

    def await_copy(self, number: int) -> None:
        """Wait for a copy that `copy_in` began; a lost context copies nothing any more."""
        if self._copied < number and not self.card.is_lost:
            self.finish()

    def copy_in(self, target: int, data: memoryview) -> None:
        """Copy to the card, in the stream's order. Data in pinned memory must stay until then."""
        self.enter()
        address = self.card.pinned.address_in(data)
        if address is None:
            self.staging.upload(target, data)
            return
        self._copies += 1
        self.card.pinned.copied(address, self, self._copies)
        self.call(driver.cuMemcpyHtoDAsync, target, address, len(data), self.stream)

    def copy_out(self, source: int, block: PinnedBlock) -> None:
        """Fill pinned memory from the card, after all enqueued work."""
        size = len(block.view)
        self.call(driver.cuMemcpyDtoHAsync, block.address, source, size, self.stream)
        self.finish()

    def address_of(self, memory: DeviceMemory) -> int:
        """The card's address of memory of this backend, for a vendor's library."""
        assert isinstance(memory, _CudaMemory), "memory of another backend"
        return memory.address

    def enter(self) -> None:
        """Make the context current in this thread. Ends the process after a loss."""
        self.card.enter()
        if (thread := threading.get_ident()) not in self._threads:
            self.call(driver.cuCtxSetCurrent, self._context)
            self._threads.add(thread)

    def call(self, function: Callable[..., Any], *args: Any, wrong: OpCode = OpCode.EIO) -> Any:
        """Call the driver; returns its value. Raises OpFailed: ENOMEM, else `wrong`."""
        with self.card.watchdog.call(function.__name__):
            result, *values = function(*args)
        if result == driver.CUresult.CUDA_SUCCESS:
            return values[0] if len(values) == 1 else values
        message = f"the device failed: {function.__name__} returned {result.name}"
        raise self.card.failure(CardError(result.name, effect_of(result.name)), message, wrong)

    def watched(self, name: str) -> AbstractContextManager[None]:
        """The time of a call of a vendor's library, which may hang like one of the driver."""
        return self.card.watchdog.call(name)


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
            self._pinned = self._backend.host_memory(self.size)
        else:
            self._pinned.settle()
        return None if self._pinned is None else self._pinned.view

    def write(self, data: memoryview) -> None:
        self._backend.copy_in(self.address, data)

    def read(self) -> memoryview:
        if (place := self.place) is not None and self._pinned is not None:
            self._backend.copy_out(self.address, self._pinned)
            return place
        if self._home is None:
            self._home = Memory(Quota(), self.size)  # host memory, outside of the quota
        self._backend.staging.download(self.address, self._home.view)
        return self._home.view

    def result(self) -> memoryview:
        found = self.read()
        self._pinned = self._home = None  # they belong to the caller now
        return found

    def close(self) -> None:
        if not self._backend.card.is_lost:  # else the end of the process frees it
            self._backend.enter()
            self._zero()
            self._backend.finish()
            self._backend.call(driver.cuMemFree, self.address)
        self._quota.free(self.size)
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
            raise invalid(f"the source has no kernel {name!r}") from None
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

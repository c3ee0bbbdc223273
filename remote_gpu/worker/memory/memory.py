"""Memory of a lane on a CPU device: mappings counted in the quota, and buffers by handle."""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

from remote_gpu.wire.errors import OpCode, OpFailed, invalid
from remote_gpu.wire.frames import Meta
from remote_gpu.worker.arguments import Arguments
from remote_gpu.worker.cards.pinned import PinnedBlock
from remote_gpu.worker.memory.quota import Quota

#: JSON values, and buffers sent as they are.
Answer: TypeAlias = "tuple[Meta, list[memoryview]]"
_BUFFERS_MAX = 4096  #: resident buffers of one lane
_HUGE_PAGE_BYTES = 1 << 21
#: A larger input area is freed after its call, a smaller one is kept for the next.
_AREA_KEPT_BYTES = 256 << 20
_AREA_BYTES_MIN = 1 << 16


class Memory:
    """An anonymous mapping, counted in the quota; unmapped when closed, so it is never reused."""

    def __init__(self, quota: Quota, size: int) -> None:
        quota.reserve(size)
        self._quota = quota
        self.size = size
        try:
            self._map = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as error:
            quota.free(size)
            raise OpFailed(OpCode.ENOMEM, f"{size} bytes: {error}") from None
        if size >= _HUGE_PAGE_BYTES:
            with contextlib.suppress(OSError):  # fewer faults where the kernel has huge pages
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self.view = memoryview(self._map)[:size]

    def close(self) -> None:
        """Free the memory; an exported view keeps the mapping until it is released."""
        self._quota.free(self.size)
        with contextlib.suppress(BufferError):
            self.view.release()
            self._map.close()


#: A pool of memory that suits a device: a size to a block, or None. Raises OpFailed.
Source: TypeAlias = Callable[[int], "PinnedBlock | None"]


class _Borrowed:
    """A block of a pool, counted in the quota."""

    def __init__(self, quota: Quota, block: PinnedBlock) -> None:
        self.size = block.view.nbytes
        quota.reserve(self.size)
        self._quota = quota
        self._block: PinnedBlock | None = block
        self.view = block.view

    def settle(self) -> None:
        """Wait until nothing reads it any more. Raises OpFailed."""
        if self._block is not None:
            self._block.settle()

    def close(self) -> None:
        self._quota.free(self.size)
        self._block = None
        self.view = memoryview(b"")


class Area:
    """Reused memory for the inputs of a lane's calls.

    Between calls it is freed when anything else of the lease needs memory.
    """

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._memory: Memory | _Borrowed | None = None
        self._taken = threading.Lock()
        self.in_use = False  #: of the lane's own thread
        quota.add_cache(self._evict)

    def take(self, size: int, source: Source | None = None) -> memoryview:
        """`size` bytes until `done`, from the source if it has as much. Raises OpFailed(ENOMEM)."""
        if size == 0:
            return memoryview(b"")
        if not self.in_use:
            self._taken.acquire()
            self.in_use = True
        is_large = self._memory is not None and self._memory.size >= size
        if not is_large or (source is not None and not isinstance(self._memory, _Borrowed)):
            # powers of two, so that growing inputs do not map again each time
            wanted = max(_AREA_BYTES_MIN, 1 << (size - 1).bit_length())
            limit = self._quota.limit_bytes
            wanted = size if limit and wanted > limit // 4 else wanted
            block = None if source is None else _block_of(source, wanted, size)
            if block is not None or not is_large:
                self._release(0)
                self._memory = (
                    Memory(self._quota, wanted) if block is None else _Borrowed(self._quota, block)
                )
        assert self._memory is not None, "it was made"
        if isinstance(self._memory, _Borrowed):
            self._memory.settle()
        return self._memory.view[:size]

    def done(self) -> None:
        """End the use by a call."""
        if self.in_use:
            self._release(_AREA_KEPT_BYTES)
            self.in_use = False
            self._taken.release()

    def close(self) -> None:
        """Free the memory; the area must not be used again."""
        self._quota.remove_cache(self._evict)
        self.done()
        self._evict()

    def _evict(self) -> None:
        if self._taken.acquire(blocking=False):
            self._release(0)
            self._taken.release()

    def _release(self, keep_bytes: int) -> None:
        if self._memory is not None and self._memory.size > keep_bytes:
            self._memory.close()
            self._memory = None


def _block_of(source: Source, *sizes: int) -> PinnedBlock | None:
    """A block of the first size that the source has, unless the device cannot be used: its
    operation has the reason."""
    try:
        found = map(source, sizes)
        return next((block for block in found if block is not None), None)
    except OpFailed:
        return None


class Buffers:
    """The resident buffers of one lane."""

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._buffers: dict[int, Memory] = {}
        self._last_handle = 0

    def view(self, handle: object) -> memoryview:
        """All bytes of a buffer. Raises OpFailed(ENOENT)."""
        if type(handle) is not int or handle not in self._buffers:
            raise OpFailed(OpCode.ENOENT, f"no buffer {handle!r} on this lane")
        return self._buffers[handle].view

    def part(self, args: Arguments, size: int) -> memoryview:
        """`size` bytes of `buffer` from `offset`. Raises OpFailed(EINVAL) outside of it."""
        view, offset = self.view(args.get("buffer")), _whole(args, "offset", 0)
        if offset + size > view.nbytes:
            message = f"bytes {offset}…{offset + size} are outside of a buffer of {view.nbytes}"
            raise invalid(message)
        return view[offset : offset + size]

    def new(self, args: Arguments) -> Answer:
        """`size` → {"buffer": handle}; zeroed memory. Raises OpFailed(ENOMEM)."""
        if len(self._buffers) >= _BUFFERS_MAX:
            raise OpFailed(OpCode.E2BIG, f"a lane has at most {_BUFFERS_MAX} buffers")
        memory = Memory(self._quota, _whole(args, "size"))
        self._last_handle += 1
        self._buffers[self._last_handle] = memory
        return {"buffer": self._last_handle}, []

    def write(self, args: Arguments, inputs: Sequence[memoryview]) -> Answer:
        """`buffer`, `offset` and one input → nothing; an input received in place is not copied."""
        if len(inputs) != 1:
            raise invalid(f"buffer.write takes one input, not {len(inputs)}")
        part = self.part(args, inputs[0].nbytes)
        if part.obj is not inputs[0].obj:  # another buffer, or a resource
            part[:] = inputs[0]
        return {}, []

    def read(self, args: Arguments) -> Answer:
        """`buffer`, `offset`, `size` → the bytes, without a copy."""
        return {}, [self.part(args, _whole(args, "size"))]

    def free(self, args: Arguments) -> Answer:
        """`buffer` → nothing; frees its memory."""
        self.view(args.get("buffer"))
        self._buffers.pop(args["buffer"]).close()
        return {}, []

    def close(self) -> None:
        for memory in self._buffers.values():
            memory.close()
        self._buffers.clear()


def _whole(args: Arguments, key: str, default: int | None = None) -> int:
    value = args.get(key, default)
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise invalid(f"{key!r} must be an integer of 0 or more")
    return value

"""Pinned host memory of one card: payloads are received in it and results are sent from it.

The card's copy engine reads and writes it without a copy by the processor. It is scarce and no
memory of the card, so a lease's quota of the card does not count it: it has a limit of its own.
Beyond that limit, and where the machine refuses it, payloads are in ordinary memory, which is
copied through the pages of `backends.staging`.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from remote_gpu.wire.errors import OpFailed

#: Blocks have sizes of which this is a factor.
_PAGE_BYTES = 1 << 12
#: A freed block serves requests down to this part of its size.
_REUSED_PART = 4


class Pinner(Protocol):
    """A driver's context: it pins host memory, and copies from it in a stream."""

    def pin(self, size: int) -> int:
        """The address of new memory. Raises OpFailed."""
        ...

    def unpin(self, address: int) -> None:
        """Free it; no copy is under way."""
        ...

    def await_copy(self, number: int) -> None:
        """Wait for the end of a copy to the card. Raises OpFailed."""
        ...


@dataclass(slots=True, eq=False)
class _Pages:
    """Memory that the driver allocated."""

    pinner: Pinner
    address: int
    size: int
    copy: tuple[Pinner, int] | None = None  #: the last one from it, and its number

    def settle(self) -> None:
        """Wait for the last copy from it."""
        if self.copy is not None:
            pinner, number = self.copy
            pinner.await_copy(number)
            self.copy = None


class PinnedBlock:
    """Pinned memory in use; it returns to its pool with the last view of it."""

    def __init__(self, pages: _Pages, size: int, returned: deque[_Pages]) -> None:
        self._pages = pages
        self.address = pages.address
        memory = (ctypes.c_ubyte * size).from_address(pages.address)
        weakref.finalize(memory, returned.append, pages).atexit = False
        self.view = memoryview(memory).cast("B")

    def settle(self) -> None:
        """Wait for the last copy from it: it may be written again. Raises OpFailed."""
        self._pages.settle()


class PinnedPool:
    """The pinned memory of one card's process, within a limit. Thread-safe.

    Blocks that are not used any more are kept for the next request: pinning takes as long as a copy
    of the same size.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._used: dict[int, _Pages] = {}  # by address
        self._free: list[_Pages] = []  # the last one was used last
        #: Blocks without views; appended by finalizers, which may run in any thread at any time.
        self._returned: deque[_Pages] = deque()
        self._refused_bytes: int | None = None  # by the machine, since memory was last freed

    @property
    def pinned_bytes(self) -> int:
        """The sum of all blocks, used or kept."""
        with self._lock:
            return self._sum()

    @property
    def used_bytes(self) -> int:
        """The sum of the blocks in use."""
        with self._lock:
            self._take_back()
            return sum(pages.size for pages in self._used.values())

    def take(self, pinner: Pinner, size: int) -> PinnedBlock | None:
        """Pinned memory of that size; None at the limit. Raises OpFailed after a loss."""
        if not 0 < size <= self._limit_bytes:
            return None
        with self._lock:
            self._take_back()
            pages = self._kept(size) or self._new(pinner, -(-size // _PAGE_BYTES) * _PAGE_BYTES)
            if pages is None:
                return None
            self._used[pages.address] = pages
        block = PinnedBlock(pages, size, self._returned)
        block.settle()
        return block

    def address_in(self, data: memoryview) -> int | None:
        """The address of data in a block of this pool; None: it is in ordinary memory."""
        if data.readonly or not data.nbytes:
            return None
        address = ctypes.addressof(ctypes.c_ubyte.from_buffer(data))
        return None if self._pages_of(address) is None else address

    def copied(self, address: int, pinner: Pinner, number: int) -> None:
        """Note a copy from an address, which may not have ended."""
        if (pages := self._pages_of(address)) is not None:
            pages.copy = (pinner, number)

    def trim(self) -> None:
        """Free the blocks that are not in use."""
        with self._lock:
            self._take_back()
            while self._free:
                self._unpin(self._free.pop())

    def _pages_of(self, address: int) -> _Pages | None:
        with self._lock:
            for pages in self._used.values():
                if pages.address <= address < pages.address + pages.size:
                    return pages
        return None

    def _sum(self) -> int:
        self._take_back()
        return sum(pages.size for pages in (*self._used.values(), *self._free))

    def _take_back(self) -> None:
        while self._returned:
            pages = self._returned.popleft()
            del self._used[pages.address]
            self._free.append(pages)

    def _kept(self, size: int) -> _Pages | None:
        most = max(_REUSED_PART * size, 16 * _PAGE_BYTES)
        fitting = [pages for pages in self._free if size <= pages.size <= most]
        if not fitting:
            return None
        found = min(fitting, key=lambda pages: pages.size)
        self._free.remove(found)
        return found

    def _new(self, pinner: Pinner, size: int) -> _Pages | None:
        while self._free and self._sum() + size > self._limit_bytes:
            self._unpin(self._free.pop(0))
        if self._sum() + size > self._limit_bytes:
            return None
        if self._refused_bytes is not None and size >= self._refused_bytes:
            return None
        try:
            return _Pages(pinner, pinner.pin(size), size)
        except OpFailed:  # the machine lacks memory: copies are slower then
            self._refused_bytes = size
            return None

    def _unpin(self, pages: _Pages) -> None:
        pages.settle()
        pages.pinner.unpin(pages.address)
        self._refused_bytes = None

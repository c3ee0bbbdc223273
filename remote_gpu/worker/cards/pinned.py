"""Pinned host memory of a card: payloads are received in it and sent from it.

The card's copy engine reads and writes it without a copy by the processor. It is scarce, and not
counted in a lease's quota of the card, so its sum is limited; larger memory is copied by the pages
of `backends.staging`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver

from remote_gpu.wire.errors import OpFailed

#: Of one backend: the inputs and outputs of a lane's graphs.
PINNED_BYTES_MAX = 256 << 20


class PinnedMemory:
    """The pinned memory of one backend, within a limit. For several threads in turn."""

    def __init__(self, call: Callable[..., Any]) -> None:
        """`call`: calls the driver and returns its value or raises OpFailed."""
        self._call = call
        self.used_bytes = 0

    def allocate(self, size: int) -> PinnedBlock | None:
        """Memory of that size; None where there is no more."""
        if not 0 < size <= PINNED_BYTES_MAX - self.used_bytes:
            return None
        try:
            address = int(self._call(driver.cuMemHostAlloc, size, 0))
        except OpFailed:  # the machine lacks memory: copies are slower then
            return None
        self.used_bytes += size
        return PinnedBlock(self, address, size)

    def free(self, block: PinnedBlock) -> None:
        """Free a block; no copy may be under way."""
        self.used_bytes -= len(block.view)
        self._call(driver.cuMemFreeHost, block.address)


class PinnedBlock:
    """One block of it."""

    def __init__(self, owner: PinnedMemory, address: int, size: int) -> None:
        self._owner = owner
        self.address = address
        self.view = memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")

    def has(self, data: memoryview) -> bool:
        """Whether `data` is this block as a whole."""
        return data.obj is self.view.obj and len(data) == len(self.view)

    def close(self) -> None:
        """Free it."""
        self._owner.free(self)

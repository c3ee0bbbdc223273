"""Copies between host and card by pinned pages, so that the card's copy engine and the CPU overlap.

Ordinary memory is copied to one pinned page while the other one is transferred; the driver would do
both in sequence.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver

#: Of one of two pages: 0.4 ms of each step.
PAGE_BYTES = 4 << 20


class Staging:
    """Two pinned pages of one stream; outside of quotas, freed with the process."""

    def __init__(self, call: Callable[..., Any], stream: Any) -> None:
        """`call`: calls the driver and returns its value or raises OpFailed."""
        self._call, self._stream = call, stream
        self._addresses: list[int] = []
        self._pages: list[memoryview] = []
        timing = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        for _ in range(2):
            address = int(call(driver.cuMemHostAlloc, PAGE_BYTES, 0))
            page = (ctypes.c_ubyte * PAGE_BYTES).from_address(address)
            self._addresses.append(address)
            self._pages.append(memoryview(page).cast("B"))
        self._done = [call(driver.cuEventCreate, timing.value) for _ in range(2)]

    def upload(self, target: int, data: memoryview) -> None:
        """Copy to the card, in the stream's order; `data` may change after the return."""
        call, stream = self._call, self._stream
        for number, at in enumerate(range(0, len(data), PAGE_BYTES)):
            slot, size = number % 2, min(PAGE_BYTES, len(data) - at)
            call(driver.cuEventSynchronize, self._done[slot])  # the last copy from the page
            self._pages[slot][:size] = data[at : at + size]
            call(driver.cuMemcpyHtoDAsync, target + at, self._addresses[slot], size, stream)
            call(driver.cuEventRecord, self._done[slot], stream)

    def download(self, source: int, data: memoryview) -> None:
        """Fill `data` from the card, after all enqueued work."""
        starts = range(0, len(data), PAGE_BYTES)
        for number, at in enumerate(starts):
            if number == 0:
                self._fetch(0, source, at, len(data))
            if at + PAGE_BYTES < len(data):  # transfer the next page while this one is copied
                self._fetch((number + 1) % 2, source, at + PAGE_BYTES, len(data))
            slot, size = number % 2, min(PAGE_BYTES, len(data) - at)
            self._call(driver.cuEventSynchronize, self._done[slot])
            data[at : at + size] = self._pages[slot][:size]

    def _fetch(self, slot: int, source: int, at: int, end: int) -> None:
        call, stream = self._call, self._stream
        call(driver.cuEventSynchronize, self._done[slot])  # an upload may still use the page
        size = min(PAGE_BYTES, end - at)
        call(driver.cuMemcpyDtoHAsync, self._addresses[slot], source + at, size, stream)
        call(driver.cuEventRecord, self._done[slot], stream)

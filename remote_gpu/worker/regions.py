"""The parts of a call's time in its worker, like vAccel's profiling regions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

from remote_gpu.wire.frames import Meta


class Regions:
    """Of the newest operation of one lane. Not thread-safe: a lane has one thread."""

    __slots__ = ("copied_s", "queued_s", "ran_s")

    def __init__(self) -> None:
        self.copied_s = 0.0  #: receiving inputs, and copying results to resident buffers
        self.queued_s = 0.0  #: waiting for turns on the device
        self.ran_s = 0.0  #: in the operation, turns included

    def begin(self) -> None:
        """Forget the call before."""
        self.copied_s = self.queued_s = self.ran_s = 0.0

    @contextlib.contextmanager
    def waited(self, turn: AbstractContextManager[None]) -> Iterator[None]:
        """The turn; the time until it begins is counted."""
        began_s = time.perf_counter()
        with turn:
            self.queued_s += time.perf_counter() - began_s
            yield

    def values(self) -> Meta:
        """In microseconds; `ran_us` without `queued_us`."""
        parts = {
            "queued_us": self.queued_s,
            "copied_us": self.copied_s,
            "ran_us": self.ran_s - self.queued_s,
        }
        return {name: round(spent_s * 1e6, 1) for name, spent_s in parts.items()}

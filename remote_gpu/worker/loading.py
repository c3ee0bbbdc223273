"""The time that a worker spends loading models and data, and the bytes of the models."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class LoadingTime:
    """A stopwatch of loads: nested and concurrent ones count once, those that fail do not count.
    Thread-safe."""

    def __init__(self, report: Callable[[float, int], None] | None = None) -> None:
        """`report`: called with the sums of seconds and bytes after each load, in the thread that
        loaded."""
        self._report = report
        self._lock = threading.Lock()
        self._running = 0
        self._loaded = False  #: one of those that ran together has succeeded
        self._began_s = 0.0
        self._sum_s = 0.0
        self._sum_bytes = 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._running:
                self._began_s, self._loaded = time.monotonic(), False
            self._running += 1

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        with self._lock:
            self._running -= 1
            self._loaded = self._loaded or error is None
            if self._running or not self._loaded:
                return
            self._sum_s += time.monotonic() - self._began_s
            if self._report is not None:
                self._report(self._sum_s, self._sum_bytes)

    def count(self, size: int) -> None:
        """Add the bytes of a model, within its load."""
        with self._lock:
            self._sum_bytes += size

    def restart(self) -> None:
        """Begin at 0, for the next lease."""
        with self._lock:
            self._sum_s, self._sum_bytes = 0.0, 0

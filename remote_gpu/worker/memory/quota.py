"""The memory quota of a lease, checked before allocations."""

from __future__ import annotations

import threading
from collections.abc import Callable

from remote_gpu.wire.errors import OpCode, OpFailed


class Quota:
    """The bytes that one lease may hold. Thread-safe."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes  #: None = no limit (Local, preparation)
        self.used_bytes = 0
        self._lock = threading.Lock()
        self._caches: list[Callable[[], None]] = []
        self._model_caches: list[Callable[[], object]] = []

    def reserve(self, count: int) -> None:
        """Take `count` bytes, or raise OpFailed(ENOMEM) and take none."""
        if self._take(count):
            return
        self.evict_caches()
        if self._take(count):
            return
        for evict in self._model_caches:
            evict()
        if not self._take(count):
            raise OpFailed(
                OpCode.ENOMEM,
                f"{count} bytes beside the {self.used_bytes} in use exceed"
                f" the lease's {self.limit_bytes}; request more memory_mib",
            )

    def add_cache(self, evict: Callable[[], None]) -> None:
        """Register a function that frees cached memory: called, in any thread, before a refusal.
        It must not block."""
        self._caches.append(evict)

    def add_model_cache(self, evict: Callable[[], object]) -> None:
        """Register a function as `add_cache` does, for loaded models that no session uses: they are
        freed last, and kept at the end of a lease."""
        self._model_caches.append(evict)

    def evict_caches(self) -> None:
        """Free all cached memory but that of models."""
        for evict in tuple(self._caches):
            evict()

    def remove_cache(self, evict: Callable[[], None]) -> None:
        """Remove a registered function."""
        self._caches.remove(evict)

    def _take(self, count: int) -> bool:
        with self._lock:
            wanted = self.used_bytes + count
            if self.limit_bytes is not None and wanted > self.limit_bytes:
                return False
            self.used_bytes = wanted
            return True

    def free(self, count: int) -> None:
        """Give `count` reserved bytes back."""
        with self._lock:
            self.used_bytes -= count
            assert self.used_bytes >= 0, "more bytes freed than were reserved"

    def held(self, count: int) -> Held:
        """Reserve `count` bytes for the length of a block."""
        return Held(self, count)


class Held:
    """A context manager that reserves bytes; for a single use."""

    __slots__ = ("_count", "_quota")

    def __init__(self, quota: Quota, count: int) -> None:
        self._quota = quota
        self._count = count

    def __enter__(self) -> None:
        self._quota.reserve(self._count)

    def __exit__(self, *_: object) -> None:
        self._quota.free(self._count)

"""Calls of the host's own kernels: host memory in, launches, host memory out.

All operations of a worker that compute by single kernels share one backend of a device, and so one
context and one set of pinned pages.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from remote_gpu.wire.frames import BufferLike
from remote_gpu.worker.backends.base import Backend, Bound, DeviceMemory, Program
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context

#: Built sources kept per device; more are built again.
_PROGRAMS_MAX = 256


class Calls:
    """The kernels of one device. Thread-safe: one call at a time."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._lock = threading.Lock()
        self._programs: dict[str, Program] = {}  #: by source

    @contextlib.contextmanager
    def call(self, quota: Quota) -> Iterator[Call]:
        """A call, whose memory is freed at the end of the block."""
        with self._lock, ExitStack() as held:
            yield Call(self, quota, held)

    def program(self, source: str) -> Program:
        """A source, built once. Raises OpFailed."""
        if source not in self._programs:
            if len(self._programs) >= _PROGRAMS_MAX:
                self._programs.pop(next(iter(self._programs)))
            self._programs[source] = self.backend.build(source)
        return self._programs[source]


class Call:
    """The memory of one call on its device, counted in the lease's quota."""

    def __init__(self, calls: Calls, quota: Quota, held: ExitStack) -> None:
        """`held` frees the memory."""
        self._calls = calls
        self._backend = calls.backend
        self._quota = quota
        self._held = held

    def memory(self, size: int) -> DeviceMemory:
        """Zeroed memory. Raises OpFailed(ENOMEM)."""
        memory = self._backend.allocate(self._quota, max(1, size))
        self._held.callback(memory.close)
        return memory

    def stored(self, data: BufferLike) -> DeviceMemory:
        """A copy of host memory. Raises OpFailed(ENOMEM)."""
        view = memoryview(data).cast("B")
        memory = self.memory(view.nbytes)
        if view.nbytes:
            memory.write(view)
        return memory

    def launch(
        self, source: str, kernel: str, arguments: Sequence[Bound], items: int, group: int
    ) -> None:
        """Start a kernel on at least `items` work-items, in groups. Raises OpFailed."""
        bound = self._calls.program(source).kernel(kernel, arguments)
        bound.enqueue((-(-items // group) * group,), (group,))

    def finish(self) -> None:
        """Wait for all launches. Raises OpFailed(EIO)."""
        self._backend.finish()

    def result(self, memory: DeviceMemory) -> memoryview:
        """The device's memory after all launches, for the caller. Raises OpFailed(EIO)."""
        self.finish()
        return memory.result()


def calls_of(context: Context) -> Calls:
    """The kernels of the context's device. Starts threads: never before a fork."""
    key = f"kernels of {context.kind} {context.device}"
    return context.warm.get(key, lambda: Calls(context.open_backend()))

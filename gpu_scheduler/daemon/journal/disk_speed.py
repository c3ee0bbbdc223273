"""Whether the own disk is fast enough to put into it in the event loop, and how that is measured.

Only puts in the loop's own thread are measured: one in another thread also waits for the
interpreter. The time that the thread waited for a processor does not count: on a busy machine it is
milliseconds, by which every disk would seem slow.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

#: Puts that are usually faster than this run in the event loop: a thread and back would cost more
#: (0.3-0.9 ms on two busy cores). A slow disk blocks it for one write in each probe alone.
INLINE_S_MAX = 0.001
#: A longer put counts as one of this length: the next puts may be as fast as before.
STALL_S = 3 * INLINE_S_MAX
#: A disk that was slow is tried again so many times its last put later, and not before.
PROBE_RATIO, PROBE_S_MIN = 1000, 1.0


class ProcessorWait:
    """Seconds that the calling thread has waited for a processor so far; 0 where it is not known.

    By the kernel's schedstat (Linux); the thread is that of the first call.
    """

    def __init__(self) -> None:
        self._fd: int | None = None

    def __call__(self) -> float:
        if self._fd is None:
            self._fd = -1
            with suppress(OSError):
                self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        return 0.0 if self._fd < 0 else int(os.pread(self._fd, 64, 0).split()[1]) / 1e9

    def close(self) -> None:
        if self._fd is not None and self._fd >= 0:
            os.close(self._fd)
        self._fd = None


class DiskSpeed:
    """The usual time of a put, a moving average of those in the event loop."""

    def __init__(
        self, waited_s: Callable[[], float], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._waited_s = waited_s
        self._now_s = now_s
        self._usual_s = 0.0
        self._probe_s = 0.0

    @property
    def is_prompt(self) -> bool:
        """Whether the next put may run in the event loop."""
        return self._usual_s < INLINE_S_MAX or self._now_s() >= self._probe_s

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure a put in the event loop."""
        began_s, waited_s = self._now_s(), self._waited_s()
        yield
        took_s = self._now_s() - began_s - (self._waited_s() - waited_s)
        weight = 0.1 if self._usual_s < INLINE_S_MAX else 1.0  # one try decides after slow ones
        self._usual_s += (min(took_s, STALL_S) - self._usual_s) * weight
        self._probe_s = self._now_s() + max(PROBE_S_MIN, PROBE_RATIO * took_s)

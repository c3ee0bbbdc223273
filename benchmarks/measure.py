"""Times and memory of work in this process."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path


def times_s(
    work: Callable[[], object], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """The time of each call of a work, by a clock."""
    found = []
    for _ in range(rounds):
        began_s = clock()
        work()
        found.append(clock() - began_s)
    return found


def seconds(work: Callable[[], object], rounds: int) -> float:
    """The median time of a work."""
    return statistics.median(times_s(work, rounds))


def median_s(call: Callable[[], object], count: int) -> float:
    """The median time of `count` calls, after a few to warm up."""
    times_s(call, min(3, count))
    return seconds(call, count)


async def seconds_of(work: Callable[[], Awaitable[object]]) -> float:
    """The time of a work that waits."""
    began_s = time.perf_counter()
    await work()
    return time.perf_counter() - began_s


def resident_mib() -> float:
    """Memory of this process, after a collection of its garbage."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_s(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

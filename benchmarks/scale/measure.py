"""Times, memory and ratios, as the benchmarks of the large system state them."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks import report


def seconds(work: Callable[[], object], rounds: int) -> float:
    """The median time of a work."""
    found = []
    for _ in range(rounds):
        began_s = time.perf_counter()
        work()
        found.append(time.perf_counter() - began_s)
    return statistics.median(found)


async def seconds_of(work: Callable[[], Awaitable[object]], rounds: int) -> float:
    """The median time of a work that waits."""
    found = []
    for _ in range(rounds):
        began_s = time.perf_counter()
        await work()
        found.append(time.perf_counter() - began_s)
    return statistics.median(found)


def resident_mib() -> float:
    """Memory of this process, after a collection of its garbage."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def compared(
    metric: str, value: float, unit: str, baseline: str, baseline_value: float
) -> report.Figure:
    """A figure beside its limit, which was measured in the same unit."""
    return report.Figure(
        metric=metric,
        value=value,
        unit=unit,
        baseline=baseline,
        baseline_value=baseline_value,
        ratio=value / baseline_value,
    )


def alone(metric: str, value: float, unit: str) -> report.Figure:
    """A figure that is compared with nothing."""
    return report.Figure(metric=metric, value=value, unit=unit)

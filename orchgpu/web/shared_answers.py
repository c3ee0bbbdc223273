"""Answers of the scheduler and of the history that all browsers share, each kept for moments.

Many browsers that look at the same page ask once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from corekit.aio.clock import Clock
from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import Value
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.warm import workload_key, workload_label
from orchgpu.history.hosts import HostUse
from orchgpu.history.reader import DeviceSpans, HistoryReader, Series, Window

#: A workload is known once its first job has ended.
LABELS_KEPT_S = 20.0


class Workloads:
    """The workloads whose times the scheduler has learned, with those of earlier revisions."""

    def __init__(self, client: SchedulerClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._labels: Mapping[str, str] = {}
        self._until_s = 0.0

    async def labels(self) -> Mapping[str, str]:
        """Published key → `label_key` of its workload; the last answer while none comes."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._until_s:
            self._until_s = now_s + LABELS_KEPT_S
            try:
                found = (await self._client.workloads()).workloads
            except AppError:
                return self._labels
            self._labels = {
                workload_key(one.tenant, one.workload): label_key(one.tenant, one.workload)
                for one in found
            }
        return self._labels


def label_key(tenant: str, workload: str) -> str:
    """The same for all revisions of a function of one tenant."""
    return f"{tenant}/{workload_label(workload)}"


#: The longest and the shortest interval, and the one without a condition.
SINCE_S_MAX, SINCE_S_MIN, SINCE_S = 7 * 86_400.0, 60.0, 3600.0
#: Devices of one answer: those that were used longest.
DEVICES_MAX = 200
#: Points of a series.
POINTS = 240
#: A reading serves all browsers for this long.
ACTIVITY_KEPT_S = 5.0


class Activity(Value):
    """The devices and measures of one interval."""

    devices: Sequence[DeviceSpans]
    devices_total: int
    series: Series
    hosts: HostUse | None  #: that come and go, in the steps of `series`


class ActivityReader:
    """Readings of the history, at most one at a time for each interval."""

    def __init__(self, history: Path | None, clock: Clock) -> None:
        self._history = history
        self._clock = clock
        self._kept: dict[float, tuple[float, Activity]] = {}
        self._reading = asyncio.Lock()

    async def of(self, since_s: float) -> Activity:
        """The activity of the last `since_s` seconds.

        Raises INVALID for another interval, UNAVAILABLE without a history.
        """
        if not SINCE_S_MIN <= since_s <= SINCE_S_MAX:
            raise invalid(f"since_s must lie in {SINCE_S_MIN:g}…{SINCE_S_MAX:g}")
        async with self._reading:
            now_s = self._clock.monotonic_s()
            oldest_s = now_s - ACTIVITY_KEPT_S
            self._kept = {of: one for of, one in self._kept.items() if oldest_s < one[0]}
            if since_s not in self._kept:
                until_s = self._clock.wall_s()
                window = Window(since_s=until_s - since_s, until_s=until_s)
                self._kept[since_s] = (now_s, await asyncio.to_thread(self._read, window))
            return self._kept[since_s][1]

    def _read(self, window: Window) -> Activity:
        if self._history is None:
            text = "the console knows no history: start `orchgpu collect`, and the console with "
            raise AppError(ErrorCode.UNAVAILABLE, f"{text}--store FILE")
        with HistoryReader(self._history) as reader:
            devices, total = reader.most_used(window, DEVICES_MAX)
            series = reader.series(window, (window.until_s - window.since_s) / POINTS)
            hosts = reader.hosts(window, series.step_s)
        ordered = sorted(devices, key=lambda one: one.device)
        return Activity(devices=ordered, devices_total=total, series=series, hosts=hosts)

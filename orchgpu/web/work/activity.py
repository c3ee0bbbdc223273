"""Use of the devices and measures over time, out of the history; one reading for all browsers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from corekit.aio.clock import Clock
from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import Value
from orchgpu.history.reader import DeviceSpans, HistoryReader, LeaseSpan, Series, Window
from orchgpu.web.model.fleet import Fleet
from orchgpu.web.model.viewers import Viewer

#: The longest and the shortest interval, and the one without a condition.
SINCE_S_MAX, SINCE_S_MIN, SINCE_S = 7 * 86_400.0, 60.0, 3600.0
#: Devices of one answer: those that were used longest.
DEVICES_MAX = 200
#: Leases of one device in it: the newest.
SPANS_MAX = 200
#: Points of a series.
POINTS = 240
#: A reading serves all browsers for this long.
KEPT_S = 5.0


class Activity(Value):
    """The devices and measures of one interval."""

    devices: Sequence[DeviceSpans]
    devices_total: int
    series: Series


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
            self._kept = {of: one for of, one in self._kept.items() if now_s < one[0] + KEPT_S}
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
        ordered = sorted(devices, key=lambda one: one.device)
        return Activity(devices=ordered, devices_total=total, series=series)


def activity_json(found: Activity, viewer: Viewer, fleet: Fleet) -> dict[str, object]:
    """The activity as the viewer may read it; devices are named as the fleet names them."""
    rows = [
        {**_named(one, fleet), "spans": [_span(span, viewer) for span in one.spans[-SPANS_MAX:]]}
        for one in found.devices
    ]
    return {"devices": rows, "devices_total": found.devices_total, "series": found.series}


def _named(one: DeviceSpans, fleet: Fleet) -> dict[str, str]:
    """Name and model of a device: of the fleet's, else, for one that left, of its last lease."""
    present = fleet.device(one.host, one.device)
    if present is not None:
        return {"device": f"{one.host}/{present.index}", "model": present.model}
    name, _, model = one.name.partition(" ")
    return {"device": name or one.device, "model": model}


def _span(span: LeaseSpan, viewer: Viewer) -> dict[str, object]:
    theirs = viewer.sees_all or (viewer.tenant is not None and viewer.tenant == span.tenant)
    return {
        "start_s": span.start_s,
        "end_s": span.end_s,
        "job": span.job,
        "function": span.function if theirs else None,
        "tenant": span.tenant,
        "cold": span.cold,
        "reason": span.reason,
    }

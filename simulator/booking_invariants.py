"""Invariants of bookings after every event: calendars within devices, indexes, steps of runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from corekit.ids import DeviceId
from gpu_scheduler.core.admission.slo.calendar import SAME_S
from gpu_scheduler.core.inventory.devices import COMPUTE_PERMILLE_MAX
from gpu_scheduler.core.queue.bookings import (
    BOOK,
    ON,
    RUN,
    Booking,
    BookingIndex,
    index_of,
    read_booking,
    read_run,
)
from gpu_scheduler.core.state.state import State

#: Two times of one moment that were summed in another order.
_APART_S = 2 * SAME_S


def check_bookings(state: State) -> Iterator[str]:
    """Every violation as one sentence; a policy without bookings has none."""
    if not any(name.startswith(BOOK) for name in state.memory.values):
        return
    booked = state.memory.kind(BOOK)
    devices = state.memory.kind(ON).values
    if devices.keys() != booked.values.keys():
        yield "a booking has no device, or a device is noted for no booking"
    bookings = {job: read_booking(str(text)) for job, text in booked.values.items()}
    by_device: dict[str, list[Booking]] = {}
    by_run: dict[str, int] = {}
    fresh = BookingIndex()
    for job, one in bookings.items():
        fresh.change(job, one, DeviceId(str(devices.get(job))))
        by_run[one.run] = by_run.get(one.run, 0) + 1
        if not (one.granted or one.late):
            by_device.setdefault(str(devices.get(job)), []).append(one)
    on = state.memory.kind(ON)
    index = index_of(booked, on)
    for device, cached in index.planned.items():
        if cached != fresh.planned_on(device, on.names.get(device, ())):
            yield f"{device}: its bookings are not those of a fresh index"
    if (index.of_run, index.ends_s) != (fresh.of_run, fresh.ends_s):
        yield "the index of the bookings is not that of a fresh one"
    for run, text in state.memory.kind(RUN).values.items():
        left, steps = read_run(str(text)).left, by_run.pop(run, 0)
        if left != steps:
            yield f"run {run} has {left} steps left, but {steps} bookings"
    for run in by_run:
        yield f"run {run} has bookings, but no promise"
    for name, planned in by_device.items():
        yield from _calendar(state, name, planned)


def _calendar(state: State, device: str, planned: Sequence[Booking]) -> Iterator[str]:
    """The bookings of a device that wait for their start fit on it at once."""
    entry = state.inventory.devices.get(DeviceId(device))
    if entry is None:
        return
    for first in planned:
        at_once = [
            one
            for one in planned
            if one.start_s <= first.start_s + SAME_S and one.until_s > first.start_s + _APART_S
        ]
        memory_mib = sum(one.memory_mib for one in at_once)
        permille = sum(one.permille for one in at_once)
        if memory_mib > entry.device.memory_mib or permille > COMPUTE_PERMILLE_MAX:
            yield f"{device}: {memory_mib} MiB and {permille} ‰ are booked at once"
        if len(at_once) > 1 and any(one.exclusive for one in at_once):
            yield f"{device}: an exclusive booking overlaps another one"

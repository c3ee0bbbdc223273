"""The base of policies that give promises: booked steps first, ordinary requests around them.

A booked step gets its own device: at its start, or before it where it is in the way of no other
booking. An ordinary request runs on a device with bookings only if its stated length ends before
the next of them, and evicts no worker that one counts on. Without bookings the policy serves the
oldest request that fits.

A step that runs longer than stated delays the bookings behind it on its device, by no more than
that. A step whose request comes after its start keeps its place while it is in the way of no
other run's booking; else it has lost it (`late`): it runs as an ordinary request of its known
length, so that it delays no other.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from math import inf
from typing import ClassVar, NamedTuple

from corekit.ids import DeviceId
from gpu_scheduler.core.admission.slo.calendar import SAME_S
from gpu_scheduler.core.placement.eviction import resident_key
from gpu_scheduler.core.queue.bookings import BOOK, Booking, Bookings, job_of, need_of
from gpu_scheduler.core.queue.policy import (
    Admission,
    Choice,
    Declaration,
    HeldReason,
    Pause,
    Policy,
    PromiseAsked,
)
from gpu_scheduler.core.queue.view import Values, View
from gpu_scheduler.protocol.changes import Scalar, Waiting

#: A pause may be as short as the steps of a simulation.
_PAUSE_S_MIN = 0.0001
#: A booked step that waits for its device for so long after its time may use another one.
OVERDUE_S = 60.0


class _Due(NamedTuple):
    """A booked step whose request waits."""

    booking: Booking
    job: str
    waiting: Waiting
    device: DeviceId


class BookingPolicy(Policy):
    """Serves bookings on time; a policy defines how it admits."""

    promises: ClassVar[bool] = True
    pause_s_min: ClassVar[float] = _PAUSE_S_MIN

    def declare(self, values: Values) -> Declaration:  # noqa: ARG002 - the same for all
        return Declaration(
            work_conserving=False,
            wait_bound="",
            starves="requests without a promise, while promised ones keep coming",
            decision_cost="a step for each booked request that waits, each group, and 256 devices",
        )

    @abstractmethod
    def admit(self, view: View, asked: PromiseAsked) -> Admission:
        """The promise for a run, or its refusal."""

    def decide(self, view: View) -> Choice | Pause:
        bookings = Bookings(view)
        if not len(bookings):
            return _oldest(view)
        remember: dict[str, Scalar | None] = {}
        late: list[_Due] = []
        until_s = inf  # wall clock
        for due in sorted(_due(view, bookings)):
            if due.booking.late or _lost_its_place(view, due, bookings):
                late.append(due)
                continue
            if _may_begin(view, due, bookings):
                return Choice(due.waiting.attempt, (due.device,), _begun(view, due))
            if due.booking.start_s > view.wall_s:
                until_s = min(until_s, due.booking.start_s)
            else:  # its device is late
                until_s = min(until_s, due.booking.until_s + OVERDUE_S + SAME_S)
        for due in late:
            if not due.booking.late:
                remember[BOOK + due.job] = due.booking._replace(late=True).text()
        choice = self._beside(view, bookings, late)
        if choice is not None:
            return choice._replace(remember={**remember, **choice.remember})
        until_s = min(until_s, _next_end_s(view, bookings))
        at_s = None if until_s == inf else view.at_s + until_s - view.wall_s
        return Pause(at_s, remember)

    def _beside(self, view: View, bookings: Bookings, late: list[_Due]) -> Choice | None:
        """A request without a place of its own, where it is in the way of no booking."""
        for due in late:
            device = _beside_device(view, bookings, due.waiting, due.booking.length_s)
            if device is not None:
                return Choice(due.waiting.attempt, (device,), _begun(view, due, late=True))
        for group in view.fitting_groups():
            entries = (view.state.queue.entries[key[3]] for key in group.keys)
            waiting = next((one for one in entries if bookings.of(job_of(one)) is None), None)
            if waiting is None:
                continue
            if waiting.request.count == 1:
                device = _beside_device(view, bookings, waiting, waiting.lease_s)
                devices: tuple[DeviceId, ...] = () if device is None else (device,)
            else:
                placed = view.place(waiting) or ()
                free = all(
                    _is_free(view, bookings, waiting, one, waiting.lease_s) for one in placed
                )
                devices = placed if free else ()
            if devices:
                return Choice(waiting.attempt, devices)
        return None

    def held(self, view: View, waiting: Waiting) -> HeldReason | None:
        bookings = Bookings(view)
        booking = bookings.of(job_of(waiting))
        if booking is not None and not booking.late and booking.start_s > view.wall_s:
            in_s = booking.start_s - view.wall_s
            device = view.name(bookings.device_of(job_of(waiting)))
            return HeldReason(f"it is booked on {device} in {in_s:.3g} s", view.at_s + in_s)
        if booking is None and len(bookings) and view.place(waiting) is not None:
            if waiting.lease_s is None:
                return HeldReason("devices are booked for promised runs, and it states no length")
            return HeldReason("its length would end after the next booking of each device")
        return None


def _oldest(view: View) -> Choice | Pause:
    for group in view.fitting_groups():
        waiting = view.first(group)
        devices = view.place(waiting)
        if devices is not None:
            return Choice(waiting.attempt, devices)
    return Pause()


def _due(view: View, bookings: Bookings) -> Iterator[_Due]:
    for job, waiting in bookings.waiting_jobs():
        booking, device = bookings.of(job), bookings.device_of(job)
        servable = not view.state.queue.is_ineligible(waiting.attempt)
        if booking is not None and servable and view.is_allowed(waiting):
            yield _Due(booking, job, waiting, device)


def _lost_its_place(view: View, due: _Due, bookings: Bookings) -> bool:
    """True when the step was not there at its start, or its run or device is lost."""
    run = bookings.run(due.booking.run)
    if run is None or run.cause != "-" or not view.is_known(due.device):
        return True
    booking, now_s = due.booking, view.wall_s
    if booking.start_s <= now_s and not view.serves(due.waiting, due.device):
        return True
    if now_s > booking.until_s + OVERDUE_S:
        return True
    missed = due.waiting.waiting_since_s > booking.start_s + SAME_S
    return missed and not _delays_none(view, due, bookings)


def _delays_none(view: View, due: _Due, bookings: Bookings) -> bool:
    """True when a step that missed its start is in the way of no other run's booking.

    Later steps of its own run begin after it in any case.
    """
    booking, now_s = due.booking, view.wall_s
    return not any(
        other.run != booking.run and other.start_s < now_s + booking.length_s - SAME_S
        for _, other in bookings.booked_on(due.device)
        if not other.granted
    )


def _may_begin(view: View, due: _Due, bookings: Bookings) -> bool:
    booking, now_s = due.booking, view.wall_s
    if not view.fits(due.waiting, due.device):
        return False
    if booking.start_s <= now_s + SAME_S:
        return True
    if booking.batch_max or (booking.warm and not view.is_warm(due.waiting.request, due.device)):
        return False
    calendar = bookings.calendar(due.device, due.job)
    if calendar.conflict_s(booking.need, now_s, now_s + booking.length_s) is not None:
        return False
    # an earlier end leaves its worker idle for longer, and another one may need it
    counted_on = [
        one.start_s
        for one in calendar.uses
        if one.warm and one.workload == booking.workload and one.start_s > now_s
    ]
    idle_s = max(counted_on, default=now_s) - now_s - booking.length_s
    return idle_s < calendar.keeping.idle_s_max


def _begun(view: View, due: _Due, *, late: bool = False) -> Mapping[str, Scalar | None]:
    return {BOOK + due.job: due.booking.begun(view.wall_s)._replace(late=late).text()}


def _beside_device(
    view: View, bookings: Bookings, waiting: Waiting, length_s: float | None
) -> DeviceId | None:
    placed = view.place(waiting)
    for device in (*(placed or ()), *view.sample(waiting)) if placed else ():
        if _is_free(view, bookings, waiting, device, length_s):
            return device
    return None


def _is_free(
    view: View, bookings: Bookings, waiting: Waiting, device: DeviceId, length_s: float | None
) -> bool:
    """True when the request ends before the next booking of this device."""
    if not any(True for _ in bookings.booked_on(device)):
        return True
    calendar, request = bookings.calendar(device, job_of(waiting)), view.clamped(waiting)
    need = need_of(request, calendar.memory_mib)
    if not calendar.keeps(resident_key(request), need.memory_mib):
        return False
    length_s = inf if length_s is None else length_s
    return calendar.conflict_s(need, view.wall_s, view.wall_s + length_s) is None


def _next_end_s(view: View, bookings: Bookings) -> float:
    """The next moment at which a booking that is not requested is over (wall clock)."""
    if next(view.waiting(), None) is None:
        return inf
    return bookings.next_end_s() + 2 * SAME_S

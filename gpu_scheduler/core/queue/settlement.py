"""The ends of promised steps and runs: bookings are removed, promises are kept or missed.

It is asked after every event that released leases. What changes is part of the same entry.
"""

from __future__ import annotations

from itertools import islice

from gpu_scheduler.core.admission.slo.calendar import SAME_S
from gpu_scheduler.core.queue.bookings import (
    BOOK,
    ON,
    RUN,
    Booking,
    Bookings,
    RunPromise,
    counted,
    job_of_lease,
)
from gpu_scheduler.core.queue.decide import QueueTransaction, remember
from gpu_scheduler.core.queue.view import View
from gpu_scheduler.core.state.state import LeaseEntry
from gpu_scheduler.model import EndReason
from gpu_scheduler.promises import MissCause
from gpu_scheduler.protocol import answers
from gpu_scheduler.protocol.changes import Scalar

#: Bookings without a lease whose time has passed that one settlement looks at, at most: steps that
#: wait beyond their time stay, and there may be many of them.
_SWEPT_MAX = 256
_DONE = (None, EndReason.DONE, EndReason.RELEASED, EndReason.EXPIRED, EndReason.CAP)
_CAUSES = {
    EndReason.HOST_LOST: MissCause.HOST_LOST,
    EndReason.HOST_RESTARTED: MissCause.HOST_LOST,
    EndReason.DEVICE_BAD: MissCause.HOST_LOST,
    EndReason.PREEMPTED: MissCause.PREEMPTED,
    EndReason.REVOKED: MissCause.PREEMPTED,
}


def settle(tx: QueueTransaction) -> None:
    """Follow the leases that this event released, and bookings whose time has passed."""
    released, tx.released = tx.released, []
    if not tx.state.memory.kind(BOOK).values:
        return
    for entry in released:
        _released(tx, entry)
    _sweep(tx)


def waive(tx: QueueTransaction, run: str) -> None:
    """End the promise of a run by its holder's wish: its bookings are free. Idempotent."""
    bookings = _bookings(tx)
    if bookings.run(run) is None:
        return
    changed: dict[str, Scalar | None] = {RUN + run: None, **counted(bookings.view, "waived")}
    for job in bookings.of_run(run):
        changed |= {ON + job: None, BOOK + job: None}
    _remember(tx, changed)
    tx.capacity_freed = True


def waive_step(tx: QueueTransaction, run: str, job: str) -> None:
    """End the booking of a step that is not needed any more; its run is promised as before."""
    bookings = _bookings(tx)
    booking = bookings.of(job)
    if booking is None or booking.run != run or booking.granted:
        return
    promise = bookings.run(run)
    _step_over(tx, job, booking, promise, MissCause.LATE, f"step {job} was the last, and late")
    tx.capacity_freed = True


def withdraw_all(tx: QueueTransaction) -> None:
    """Miss every live promise: the policy that gave them is no longer in force."""
    bookings = _bookings(tx)
    for name in list(bookings.view.remembered(RUN).values):
        tx.capacity_freed = True
        _notify(tx, name, MissCause.WITHDRAWN, "another policy is in force")


def _view(tx: QueueTransaction) -> View:
    tx.asked = None
    return tx.view()


def _bookings(tx: QueueTransaction) -> Bookings:
    return Bookings(_view(tx))


def _remember(tx: QueueTransaction, changed: dict[str, Scalar | None]) -> None:
    tx.drawn = 0
    remember(tx, changed)


def _released(tx: QueueTransaction, entry: LeaseEntry) -> None:
    job, bookings = job_of_lease(entry), _bookings(tx)
    booking = bookings.of(job)
    if booking is None or not booking.granted:
        return
    run, reason = bookings.run(booking.run), entry.lease.end_reason
    if reason in (EndReason.NOT_ACCEPTED, EndReason.WITHDRAWN):
        # it may have begun before its time, which another run has booked since
        _remember(tx, {BOOK + job: booking._replace(granted=False, late=True).text()})
        return
    if reason not in _DONE:
        cause = _CAUSES.get(reason, MissCause.FAILED)
        changed: dict[str, Scalar | None] = {
            BOOK + job: booking._replace(granted=False, late=True).text()
        }
        if run is not None and run.cause == "-":
            changed[RUN + booking.run] = run._replace(cause=cause.value).text()
        _remember(tx, changed)
        return
    _step_over(tx, job, booking, run, MissCause.LATE, f"step {job} ended late")


def _step_over(
    tx: QueueTransaction,
    job: str,
    booking: Booking,
    run: RunPromise | None,
    cause: MissCause,
    why: str,
) -> None:
    """Remove the booking of a step; with the last one the promise is kept or missed."""
    changed: dict[str, Scalar | None] = {ON + job: None, BOOK + job: None}
    if run is None:
        _remember(tx, changed)
        return
    if cause is MissCause.NOT_REQUESTED:
        first = cause.value if run.cause == "-" else run.cause
        run = run._replace(skipped=run.skipped + 1, cause=first)
    if run.left > 1:
        _remember(tx, {**changed, RUN + booking.run: run._replace(left=run.left - 1).text()})
        return
    changed[RUN + booking.run] = None
    due_s = booking.latest_s if booking.final else run.due_s
    in_time = tx.wall_s <= due_s + SAME_S and not run.skipped
    missed = None if in_time else MissCause(run.cause) if run.cause != "-" else cause
    view = _view(tx)
    _remember(tx, {**changed, **counted(view, "kept" if missed is None else f"missed_{missed}")})
    if missed is not None:
        _notify(tx, booking.run, missed, why, tx.wall_s - due_s)


def _notify(
    tx: QueueTransaction, run: str, cause: MissCause, why: str, late_s: float = 0.0
) -> None:
    push = answers.PromisePush(run=run, cause=cause, why=why, late_s=max(0.0, late_s))
    for session in tx.state.watchers:
        tx.push(session, push)


def _sweep(tx: QueueTransaction) -> None:
    """End the bookings of steps that were not requested in their time."""
    bookings = _bookings(tx)
    for job, booking in list(islice(bookings.past(), _SWEPT_MAX)):
        if bookings.waiting(job) is None:
            why = f"step {job} requested no device in its time"
            cause = MissCause.NOT_REQUESTED
            _step_over(tx, job, booking, bookings.run(booking.run), cause, why)

"""The bookings of promised steps: values in the memory of a policy that gives promises.

    on/JOB     the device of a booking; the index of the memory gives the bookings of a device
    book/JOB   its times and its share, then the name of its run
    run/RUN    when the promise was given, until when it holds, its cost, steps that are left
    count/…    promises that were given, kept, missed

Times are of the wall clock, so that a restart moves none. They change with the decisions of the
policy and with the ends of leases (settlement.py), and replay makes them again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import inf
from operator import attrgetter
from typing import NamedTuple

from corekit.ids import DeviceId, JobId, attempt_id
from gpu_scheduler.core.admission.slo.calendar import SAME_S, Calendar, Keeping, Need, Use
from gpu_scheduler.core.admission.slo.plan import Batch
from gpu_scheduler.core.inventory.devices import COMPUTE_PERMILLE_MAX
from gpu_scheduler.core.placement.eviction import resident_key
from gpu_scheduler.core.queue.view import View
from gpu_scheduler.core.state.policy_memory import MemoryKind
from gpu_scheduler.core.state.state import LeaseEntry, State
from gpu_scheduler.model import Request, Sharing
from gpu_scheduler.protocol.changes import Scalar, Waiting

ON, BOOK, RUN, COUNT = "on/", "book/", "run/", "count/"
#: An execution that takes longer than stated is expected to take this much longer, at least.
_OVERRUN_S_MIN = 0.001
_CACHED_MAX = 65_536


class Booking(NamedTuple):
    """The booking of one step of a run on one device."""

    start_s: float
    end_s: float  #: its execution is over
    until_s: float  #: the device is free again
    latest_s: float  #: the end that breaks no promise of its run
    memory_mib: int
    permille: int
    exclusive: bool
    warm: bool  #: it counts on a warm worker
    granted: bool  #: its lease lives
    late: bool  #: it has lost its place, and runs only where it is in the way of no other
    batch_max: int  #: most members of its batch; 0 = none
    workload: str  #: published key; "" = none
    run: str
    final: bool = False  #: no step with a device follows: `latest_s` is the end of its promise

    @property
    def need(self) -> Need:
        """Its part of the device."""
        return Need(self.memory_mib, self.permille, self.exclusive)

    @property
    def length_s(self) -> float:
        """The time for which it uses the device."""
        return self.until_s - self.start_s

    def use(self) -> Use:
        """Its place in a calendar."""
        return Use(self.start_s, self.until_s, self.need, self.workload or None, self.warm)

    def begun(self, now_s: float) -> Booking:
        """The same booking, whose lease begins now."""
        return self._replace(
            start_s=now_s,
            end_s=now_s + self.end_s - self.start_s,
            until_s=now_s + self.length_s,
            granted=True,
        )

    def text(self) -> str:
        """The value in the memory; `read_booking` is the inverse."""
        times = (self.start_s, self.end_s, self.until_s, self.latest_s)
        flags = "".join(
            mark
            for mark, is_set in zip(
                _FLAGS,
                (self.exclusive, self.warm, self.granted, self.late, self.final),
                strict=True,
            )
            if is_set
        )
        parts = (*map(repr, times), self.memory_mib, self.permille, flags or "-", self.batch_max)
        return " ".join((*map(str, parts), self.workload or "-", self.run))


_FLAGS = "xwglf"


@lru_cache(maxsize=_CACHED_MAX)
def read_booking(text: str) -> Booking:
    """The booking of a value in the memory."""
    start, end, until, latest, memory, permille, flags, batch, workload, run = text.split(" ", 9)
    exclusive, warm, granted, late, final = (mark in flags for mark in _FLAGS)
    return Booking(
        float(start),
        float(end),
        float(until),
        float(latest),
        int(memory),
        int(permille),
        exclusive,
        warm,
        granted,
        late,
        int(batch),
        "" if workload == "-" else workload,
        run,
        final,
    )


class RunPromise(NamedTuple):
    """The promise of one run."""

    given_s: float
    due_s: float  #: infinite without an objective of latency
    cost_usd: float
    left: int  #: steps that are not over
    skipped: int = 0  #: steps that never ran: it cannot be kept any more
    cause: str = "-"  #: the first thing that went wrong; "-" = nothing
    fingerprint: str = ""  #: of its steps and its objective of cost; "" = not known
    tenant: str = ""  #: of its requests; "" = not known

    def text(self) -> str:
        """The value in the memory."""
        times = f"{self.given_s!r} {self.due_s!r} {self.cost_usd!r}"
        whose = f"{self.fingerprint or '-'} {self.tenant}"  # a tenant may have spaces
        return f"{times} {self.left} {self.skipped} {self.cause} {whose}".rstrip()


def read_run(text: str) -> RunPromise:
    """The promise of a value in the memory."""
    given, due, cost, left, skipped, cause, *more = text.split(" ", 7)
    numbers = float(given), float(due), float(cost), int(left), int(skipped)
    mark, tenant = (*more, "", "")[:2]
    return RunPromise(*numbers, cause, "" if mark == "-" else mark, tenant)


class Planned(NamedTuple):
    """The bookings of one device that have their place."""

    starts: list[tuple[float, str]]  #: ascending: start and job of those without a lease
    uses: list[Use]  #: of the same
    granted: dict[str, None]

    def add(self, job: str, booking: Booking) -> None:
        """Add a booking at its place; one that is late has none."""
        if booking.granted and not booking.late:
            self.granted[job] = None
        elif not booking.late:
            at = bisect_left(self.starts, (booking.start_s, job))
            self.starts.insert(at, (booking.start_s, job))
            self.uses.insert(at, booking.use())

    def remove(self, job: str, booking: Booking) -> None:
        """Remove a booking that was added."""
        if booking.granted and not booking.late:
            del self.granted[job]
        elif not booking.late:
            at = bisect_left(self.starts, (booking.start_s, job))
            del self.starts[at], self.uses[at]


class BookingIndex:
    """The bookings by run, those without a lease by the end of their time, and by device."""

    def __init__(self) -> None:
        self.planned: dict[DeviceId, Planned] = {}  #: of devices that were looked at
        self.of_run: dict[str, dict[str, None]] = {}
        self.ends_s: list[tuple[float, str]] = []  #: ascending: until when a device is booked
        self._known: dict[str, tuple[Booking, DeviceId]] = {}

    def change(self, job: str, booking: Booking | None, device: DeviceId) -> None:
        """Replace the booking of a job, or remove it (None)."""
        before = self._known.pop(job, None)
        if before is not None:
            self._remove(job, *before)
        if booking is None:
            return
        self._known[job] = booking, device
        self.of_run.setdefault(booking.run, {})[job] = None
        if not booking.granted:
            insort(self.ends_s, (booking.until_s, job))
        if device in self.planned:
            self.planned[device].add(job, booking)

    def _remove(self, job: str, before: Booking, device: DeviceId) -> None:
        jobs = self.of_run[before.run]
        del jobs[job]
        if not jobs:
            del self.of_run[before.run]
        if not before.granted:
            del self.ends_s[bisect_left(self.ends_s, (before.until_s, job))]
        if device in self.planned:
            self.planned[device].remove(job, before)

    def planned_on(self, device: DeviceId, jobs: Iterable[str]) -> Planned:
        """The bookings of a device, whose jobs are given, in the order of their start."""
        found = self.planned.get(device)
        if found is None:
            found = self.planned[device] = Planned([], [], {})
            for job in jobs:
                found.add(job, self._known[job][0])
        return found


def index_of(kind: MemoryKind, devices: MemoryKind) -> BookingIndex:
    """The index of the bookings, brought up to date."""
    index = kind.index
    if not isinstance(index, BookingIndex):
        index = kind.index = BookingIndex()
        kind.changed = dict.fromkeys(kind.values)
    for job in kind.changed or ():
        text, device = kind.values.get(job), DeviceId(str(devices.values.get(job)))
        index.change(job, read_booking(text) if isinstance(text, str) else None, device)
    kind.changed = {}
    return index


def job_of(waiting: Waiting) -> str:
    """The job of a request: its holder, or the name of its reservation."""
    return waiting.holder or waiting.attempt


def job_of_lease(entry: LeaseEntry) -> str:
    """The job of a lease."""
    return entry.lease.holder or entry.lease.attempt


def need_of(request: Request, whole_mib: int) -> Need:
    """The part of a device of this size that a request takes."""
    memory_mib = request.memory_on_mib(whole_mib)
    if request.sharing is Sharing.EXCLUSIVE:
        return Need(memory_mib, COMPUTE_PERMILLE_MAX, exclusive=True)
    return Need(memory_mib, round(10 * request.compute_guarantee_pct))


class Bookings:
    """All bookings, as one view sees them."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.now_s = view.wall_s
        kind = view.remembered(BOOK)
        self._devices = view.remembered(ON)
        self._booked, self.index = kind.values, index_of(kind, self._devices)
        self._calendars: dict[DeviceId, Calendar] = {}

    def __len__(self) -> int:
        return len(self._booked)

    def of(self, job: str) -> Booking | None:
        """The booking of a job."""
        text = self._booked.get(job)
        return read_booking(text) if isinstance(text, str) else None

    def device_of(self, job: str) -> DeviceId:
        """The device of a booked job."""
        return DeviceId(str(self._devices.values[job]))

    def run(self, name: str) -> RunPromise | None:
        """The promise of a run."""
        text = self.view.remembered(RUN).values.get(name)
        return read_run(text) if isinstance(text, str) else None

    def jobs(self) -> Iterator[str]:
        """All booked jobs, the first booked first."""
        return iter(self._booked)

    def of_run(self, run: str) -> tuple[str, ...]:
        """The booked jobs of a run."""
        return tuple(self.index.of_run.get(run, ()))

    def past(self) -> Iterator[tuple[str, Booking]]:
        """The bookings without a lease whose time has passed, the first that ended first."""
        for until_s, job in self.index.ends_s:
            if until_s >= self.now_s - SAME_S:
                return
            booking = self.of(job)
            if booking is not None:
                yield job, booking

    def next_end_s(self) -> float:
        """The next end of a booking that has its place and no lease; infinite without one."""
        ends_s = self.index.ends_s
        for at in range(bisect_left(ends_s, (self.now_s, "")), len(ends_s)):
            until_s, job = ends_s[at]
            booking = self.of(job)
            if booking is not None and not booking.late:
                return until_s
        return inf

    def waiting(self, job: str) -> Waiting | None:
        """The request of a job in the queue."""
        state = self.view.state
        holder, entries = JobId(job), state.queue.entries
        record = state.records.get(holder)
        newest = 0 if record is None else record.attempt
        # the next one, too: a request is evaluated before its record has it
        names = (job, attempt_id(holder, newest), attempt_id(holder, newest + 1))
        return next((entries[name] for name in names if name in entries), None)

    def waiting_jobs(self) -> Iterator[tuple[str, Waiting]]:
        """The booked jobs whose request is in the queue."""
        entries = self.view.state.queue.entries
        if len(entries) < len(self._booked):
            for one in entries.values():
                if job_of(one) in self._booked:
                    yield job_of(one), one
            return
        for job in self._booked:
            if (waiting := self.waiting(job)) is not None:
                yield job, waiting

    def is_over(self, job: str, booking: Booking) -> bool:
        """True when the time of a booking has passed without a request or a lease."""
        past = booking.until_s < self.now_s - SAME_S and not booking.granted
        return past and self.waiting(job) is None

    # ------------------------------------------------------------------ devices

    def booked_on(self, device: DeviceId) -> Iterator[tuple[str, Booking]]:
        """The bookings of a device that have their place, granted ones included."""
        for job in self._devices.names.get(device, ()):
            booking = self.of(job)
            if booking is not None and not (booking.late or self.is_over(job, booking)):
                yield job, booking

    def calendar(self, device: DeviceId, without: str | None = None) -> Calendar:
        """The calendar of a device, without the booking of one job."""
        if without is not None:
            return self._calendar(device, without)
        if device not in self._calendars:
            self._calendars[device] = self._calendar(device, None)
        return self._calendars[device]

    def _calendar(self, device: DeviceId, without: str | None) -> Calendar:
        state = self.view.state
        entry = state.inventory.devices[device]
        found = Calendar(
            device,
            entry.device.memory_mib,
            COMPUTE_PERMILLE_MAX,
            keeping(self.view, entry.device.memory_mib),
        )
        for id_, resident in state.inventory.residents.of(device).items():
            key = id_ if resident.workload in found.residents else resident.workload
            found.residents[key] = resident.memory_mib
        uses: list[Use] = []
        for lease in self.view.leases(device):
            booking = self.of(job_of_lease(lease))
            if booking is None or not booking.granted:
                uses.append(self._ordinary(lease, entry.device.memory_mib))
            elif booking.late:
                uses.append(self._running(booking))
        uses += self._booked_uses(device, without)
        uses.sort(key=attrgetter("start_s"))
        found.uses = uses
        return found

    def _booked_uses(self, device: DeviceId, without: str | None) -> list[Use]:
        """The places of the bookings of a device; those that begin later are not looked at."""
        planned = self.index.planned_on(device, self._devices.names.get(device, ()))
        granted = (self.of(job) for job in planned.granted)
        uses = [self._running(booking) for booking in granted if booking is not None]
        at = bisect_left(planned.starts, (self.now_s, ""))
        for _, job in planned.starts[:at]:
            booking = self.of(job)
            if booking is not None and job != without and not self.is_over(job, booking):
                uses.append(self._moved(booking))
        later = planned.starts[at:] if without is not None else ()
        own = next((i for i, (_, job) in enumerate(later, at) if job == without), None)
        return uses + (
            planned.uses[at:] if own is None else planned.uses[at:own] + planned.uses[own + 1 :]
        )

    def _ordinary(self, entry: LeaseEntry, whole_mib: int) -> Use:
        """An ordinary lease until its stated length is over."""
        need, length_s = need_of(entry.request, whole_mib), entry.lease_s
        began_s = self.now_s if entry.active_s is None else entry.active_s
        end_s = inf if length_s is None else max(self.now_s, began_s + length_s)
        return Use(entry.granted_s, end_s, need, resident_key(entry.request))

    def _running(self, booking: Booking) -> Use:
        use = booking.use()
        if use.end_s > self.now_s:
            return use
        return use._replace(end_s=self.now_s + max(_OVERRUN_S_MIN, booking.length_s / 10))

    def _moved(self, booking: Booking) -> Use:
        """A booking whose start has passed uses its device from now on."""
        return booking.use()._replace(start_s=self.now_s, end_s=self.now_s + booking.length_s)

    def batches(self, calendar: Calendar, workload: str) -> Sequence[Batch]:
        """The batches of a workload on a device that have not begun and take more members."""
        members: dict[float, list[Booking]] = {}
        for _, one in self.booked_on(calendar.device):
            if one.workload == workload and one.batch_max and not one.granted:
                members.setdefault(one.start_s, []).append(one)
        return [
            Batch(
                name=f"{calendar.device} {start_s!r} {workload}",
                device=calendar.device,
                start_s=start_s,
                end_s=max(one.end_s for one in those),
                until_s=max(one.until_s for one in those),
                members=len(those),
                members_max=min(one.batch_max for one in those),
                latest_s=min(one.latest_s for one in those),
                warm=any(one.warm for one in those),
            )
            for start_s, those in members.items()
            if start_s > self.now_s
        ]

    def members_of(self, device: DeviceId, start_s: float, workload: str) -> list[str]:
        """The jobs of a batch."""
        return [
            job
            for job, one in self.booked_on(device)
            if one.workload == workload and one.start_s == start_s and one.batch_max
        ]


def keeping(view: View, whole_mib: int) -> Keeping:
    """The limits within which a device of this size keeps warm workers."""
    parameters = view.state.parameters
    return Keeping(
        parameters.warm_workers_max,
        parameters.warm_idle_s_max,
        whole_mib * parameters.warm_memory_pct_max // 100,
    )


def promise_counts(state: State) -> dict[str, int]:
    """The promises that the policy in force gave, by outcome: given, kept, waived, missed_CAUSE."""
    return {name: int(value) for name, value in state.memory.kind(COUNT).values.items()}


def counted(view: View, name: str, more: int = 1) -> dict[str, Scalar | None]:
    """A count that is higher by `more`."""
    return {COUNT + name: int(view.recalled_number(COUNT + name)) + more}

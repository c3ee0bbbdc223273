"""A plan for a run: a device and a start for each step, so that its objectives are met.

The placements of the slice are tried, except those in which the pick rule can find nothing better:
steps in their order, each on the device of its class that gives it a warm worker, a place in a
waiting batch or a new worker in time. Of the plans that end in time the pick rule takes one:
`lightest` uses the least device time, idle gaps and loading included, relative to the devices of
each class; `earliest` ends first; `cheapest` costs least; `random` is the rule of the thesis.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import NamedTuple

from corekit.ids import DeviceId
from gpu_scheduler.core.admission.slo.calendar import SAME_S, Calendar, Need, Use
from gpu_scheduler.core.admission.slo.frontier import Feeders, Placement
from gpu_scheduler.core.admission.slo.options import NO_DEVICE, ClassKey, Option

PICKS = ("lightest", "random", "earliest", "cheapest")
#: Most placements of one slice that are tried, evenly chosen.
TRIED_MAX = 24
_ROUNDING = 1e-9  #: seconds, dollars, or device time


class PlanStep(NamedTuple):
    """A step as the planner needs it."""

    options: tuple[Option, ...]
    needs: Mapping[ClassKey, Need]  #: by class: a share in percent depends on the device
    workload: str | None  #: published key
    batch_max: int = 0  #: most members of a batch; 0 = it joins none
    unfit: frozenset[DeviceId] = frozenset()  #: sampled devices that cannot serve it
    way_s: float = 0.0  #: from the end of the steps before it until it may begin


class Batch(NamedTuple):
    """A booking of a workload that has not begun and takes more members."""

    name: str
    device: DeviceId
    start_s: float
    end_s: float
    until_s: float
    members: int
    members_max: int
    latest_s: float  #: the end that breaks no promise of its members
    warm: bool = False  #: it counts on a warm worker


class Booked(NamedTuple):
    """The place of one step in a plan."""

    device: DeviceId
    where: ClassKey
    start_s: float
    end_s: float  #: its execution is over
    until_s: float  #: the device is free again
    warm: bool
    batch: str | None  #: the batch that it joins
    latest_s: float  #: the end that breaks no promise of its run
    spent_s: float  #: device time, with the idle gap before it
    final: bool = True  #: no step with a device follows it


class Plan(NamedTuple):
    """Bookings of all steps."""

    steps: tuple[Booked, ...]
    end_s: float
    cost_usd: float
    weight: float  #: device time relative to the devices of each class


class Devices(NamedTuple):
    """The devices that one plan may use: the sample of each class, and how many there are.

    A calendar is asked for when a plan first looks at its device. It is copied when a step is added
    to it, so that each placement begins with the same.
    """

    sampled: Mapping[ClassKey, Sequence[DeviceId]]
    counts: Mapping[ClassKey, int]
    calendar: Callable[[DeviceId], Calendar]
    batches: Callable[[Calendar, str], Sequence[Batch]]


class _Least(NamedTuple):
    """The least times and cost of a step on one class, whatever the device."""

    where: ClassKey
    spent_s: float
    length_s: float
    cost_usd: float


#: Start, end, the moment at which the device is free again, warm, batch, device time.
_Place = tuple[float, float, float, bool, str | None, float]


class Planner:
    """Plans of one run at one moment."""

    def __init__(
        self,
        steps: Sequence[PlanStep],
        feeders: Feeders,
        devices: Devices,
        now_s: float,
        due_s: float,
        cost_usd_max: float = inf,
    ) -> None:
        self.steps, self.feeders, self.devices = steps, feeders, devices
        self.now_s, self.due_s, self.cost_usd_max = now_s, due_s, cost_usd_max
        self._later = [
            [i for i, own in enumerate(feeders) if step in own] for step in range(len(steps))
        ]
        self._least = [[_least(step, option) for option in step.options] for step in steps]
        self._lasts_s: dict[ClassKey, float] = {}
        #: The calendars of the sampled devices that can serve a step, by step and class.
        self._candidates: dict[tuple[int, ClassKey], list[Calendar]] = {}

    def best(
        self, placements: Sequence[Placement], pick: str, draw: Callable[[], float]
    ) -> tuple[Plan | None, float]:
        """The plan of the pick rule, or None with the earliest end of all that were tried.

        Placements are planned in the order of the least that the rule can find in them, until that
        is more than what was found.
        """
        tried = _spread(placements)
        least = self._least_of(tried, pick)
        found: list[tuple[tuple[float, float], int, Plan]] = []
        earliest_s = inf
        for i in sorted(range(len(tried)), key=least.__getitem__):
            best = found[0][0][0] + _ROUNDING if found else inf
            if least[i] > best:
                break
            if pick == "lightest" and least[i] + self._idle(tried[i]) > best:
                continue
            for thrifty in (True, False):
                plan = self.plan(tried[i], thrifty=thrifty)
                earliest_s = min(earliest_s, inf if plan is None else plan.end_s)
                if plan is not None and self._meets(plan):
                    insort(found, (_score(plan, pick), i, plan))
                    break
        if not found:
            return None, earliest_s
        chosen = int(draw() * len(found)) if pick == "random" else 0
        return self._with_latest(found[chosen][2]), earliest_s

    def _least_of(self, placements: Sequence[Placement], pick: str) -> list[float]:
        """The least that the first number of the score of each placement can be."""
        if pick == "random":
            return [0.0] * len(placements)
        counts = self.devices.counts
        found: list[float] = []
        for placement in placements:
            own = [of_step[i] for of_step, i in zip(self._least, placement.options, strict=True)]
            if pick == "earliest":
                found.append(max(end_s for _, end_s in self._least_times_s(own)))
            elif pick == "cheapest":
                found.append(sum(one.cost_usd for one in own))
            else:
                found.append(sum(one.spent_s / counts.get(one.where, 1) for one in own))
        return found

    def _least_times_s(self, least: Sequence[_Least]) -> list[tuple[float, float]]:
        """The first start and end of each step, if it waits for no device."""
        found: list[tuple[float, float]] = []
        for step, one in enumerate(least):
            ready_s = max((found[i][1] for i in self.feeders[step]), default=self.now_s)
            ready_s += self.steps[step].way_s
            found.append((ready_s, ready_s + one.length_s))
        return found

    def _idle(self, placement: Placement) -> float:
        """The idle time before its first steps of each class, at least, relative as the weight.

        The first one on a class begins no sooner than its feeders end, and no device of the sample
        is in use for longer than the last of them.
        """
        least = [own[i] for own, i in zip(self._least, placement.options, strict=True)]
        first_s: dict[ClassKey, float] = {}
        for one, (start_s, _) in zip(least, self._least_times_s(least), strict=True):
            if one.where != NO_DEVICE:
                first_s[one.where] = min(start_s, first_s.get(one.where, inf))
        counts = self.devices.counts
        return sum(
            max(0.0, start_s - SAME_S - self._last_s(where)) / counts.get(where, 1)
            for where, start_s in first_s.items()
            if start_s - SAME_S > self.now_s
        )

    def _last_s(self, where: ClassKey) -> float:
        """The moment from which on no sampled device of a class is in use."""
        if where not in self._lasts_s:
            calendars = map(self.devices.calendar, self.devices.sampled.get(where, ()))
            ends_s = (use.end_s for calendar in calendars for use in calendar.uses)
            self._lasts_s[where] = max(ends_s, default=self.now_s)
        return max(self.now_s, self._lasts_s[where])

    def _meets(self, plan: Plan) -> bool:
        in_budget = plan.cost_usd <= self.cost_usd_max + _ROUNDING
        return in_budget and plan.end_s <= self.due_s + SAME_S

    def plan(self, placement: Placement, *, thrifty: bool) -> Plan | None:
        """The plan of one placement; None when a class has no device.

        `thrifty`: each step takes the device on which it spends least, while those after it still
        end in time; else the one on which it ends first.
        """
        options = [step.options[i] for step, i in zip(self.steps, placement.options, strict=True)]
        least = [own[i] for own, i in zip(self._least, placement.options, strict=True)]
        tails_s = self._tails_s(options)
        calendars: dict[DeviceId, Calendar] = {}
        joined: set[str] = set()  # batches: a second member of the run would move the first
        booked: list[Booked] = []
        for step, option in enumerate(options):
            ready_s = max((booked[i].end_s for i in self.feeders[step]), default=self.now_s)
            ready_s += self.steps[step].way_s
            if option.where == NO_DEVICE:
                booked.append(without_device(option, ready_s))
                continue
            latest_s = self.due_s - tails_s[step] if thrifty else -inf
            place = self._place(step, option, least[step], ready_s, latest_s, calendars, joined)
            if place is None:
                return None
            booked.append(place)
            self._use(step, place, calendars, joined)
        return self._plan(booked, options)

    def _tails_s(self, options: Sequence[Option]) -> list[float]:
        """The time from the end of each step to the end of the run, if all steps load."""
        found = [0.0] * len(options)
        for step in reversed(range(len(options))):
            found[step] = max(
                (found[i] + self.steps[i].way_s + options[i].cold_s for i in self._later[step]),
                default=0.0,
            )
        return found

    def _place(
        self,
        step: int,
        option: Option,
        least: _Least,
        ready_s: float,
        latest_s: float,
        calendars: Mapping[DeviceId, Calendar],
        joined: Collection[str],
    ) -> Booked | None:
        own, late_s = self.steps[step], latest_s + SAME_S
        batched = own.batch_max and own.workload is not None and option.batch_item_s is not None
        least_key = _key(ready_s + least.length_s, least.spent_s, late_s)
        best: tuple[tuple[bool, float, float], DeviceId, _Place] | None = None
        for sampled in self._sampled(step, option.where):
            calendar = calendars.get(sampled.device, sampled)
            places = self._in_batches(own, option, ready_s, calendar, joined) if batched else []
            alone = self._alone(own, option, ready_s, calendar)
            for place in places if alone is None else [*places, alone]:
                key = _key(place[1], place[-1], late_s)
                if best is None or key < best[0]:
                    best = key, calendar.device, place
            if best is not None and best[0] <= least_key:
                break  # no other device can be better
        if best is None:
            return None
        _, device, (start_s, end_s, until_s, warm, batch, spent_s) = best
        return Booked(device, option.where, start_s, end_s, until_s, warm, batch, inf, spent_s)

    def _sampled(self, step: int, where: ClassKey) -> list[Calendar]:
        """The calendars of the devices of a class that can serve a step."""
        found = self._candidates.get((step, where))
        if found is None:
            unfit, devices = self.steps[step].unfit, self.devices
            found = self._candidates[step, where] = [
                devices.calendar(one) for one in devices.sampled.get(where, ()) if one not in unfit
            ]
        return found

    def _in_batches(
        self,
        own: PlanStep,
        option: Option,
        ready_s: float,
        calendar: Calendar,
        joined: Collection[str],
    ) -> list[_Place]:
        """The places of a step in the waiting batches of one device."""
        batches = self.devices.batches(calendar, own.workload or "")
        found = (
            _in_batch(one, option, own.batch_max, own.needs[option.where], ready_s, calendar)
            for one in batches
            if one.name not in joined
        )
        return [one for one in found if one is not None]

    def _alone(
        self, own: PlanStep, option: Option, ready_s: float, calendar: Calendar
    ) -> _Place | None:
        """The place of a step on a worker of its own on one device, a warm one where it is."""
        need = own.needs[option.where]
        if not calendar.keeps(own.workload, need.memory_mib):
            return None
        loading_s, execution_s = option.loading_s, option.execution_s
        if loading_s and own.workload is not None:
            busy_s = execution_s + option.release_s
            start_s = calendar.earliest_s(need, ready_s, busy_s)
            if start_s == inf:  # nor is there a place for longer
                return None
            if calendar.warm_at(own.workload, need.memory_mib, start_s, self.now_s):
                gap_s = self._gap_s(calendar, ready_s, start_s)
                end_s, until_s = start_s + execution_s, start_s + busy_s
                return start_s, end_s, until_s, True, None, gap_s + busy_s
        busy_s = loading_s + execution_s + option.release_s
        start_s = calendar.earliest_s(need, ready_s, busy_s)
        if start_s == inf:
            return None
        end_s, until_s = start_s + loading_s + execution_s, start_s + busy_s
        gap_s = self._gap_s(calendar, ready_s, start_s)
        return start_s, end_s, until_s, False, None, gap_s + busy_s

    def _gap_s(self, calendar: Calendar, ready_s: float, start_s: float) -> float:
        """None before a step that waits: it begins when another use ends."""
        return 0.0 if start_s > ready_s else calendar.gap_s(start_s, self.now_s)

    def _use(
        self, step: int, place: Booked, calendars: dict[DeviceId, Calendar], joined: set[str]
    ) -> None:
        calendar = calendars.get(place.device)
        if calendar is None:
            calendar = calendars[place.device] = self.devices.calendar(place.device).copy()
        own = self.steps[step]
        need = own.needs[place.where]
        if place.batch is not None:
            joined.add(place.batch)
            calendar.prolong(own.workload, place.start_s, place.until_s)
        calendar.add(Use(place.start_s, place.until_s, need, own.workload, place.warm))

    def _plan(self, booked: Sequence[Booked], options: Sequence[Option]) -> Plan:
        end_s = max(place.end_s for place in booked)
        counts = self.devices.counts
        with_device = [place for place in booked if place.where != NO_DEVICE]
        weight = sum(place.spent_s / counts[place.where] for place in with_device)
        return Plan(tuple(booked), end_s, cost_of(booked, options), weight)

    def _with_latest(self, plan: Plan) -> Plan:
        """The plan, with the latest end of each step."""
        booked = list(plan.steps)
        for step in reversed(range(len(booked))):
            later = self._later[step]
            latest_s = min((self._begins_by(booked[i], i) for i in later), default=self.due_s)
            final = all(booked[i].where == NO_DEVICE and booked[i].final for i in later)
            booked[step] = booked[step]._replace(latest_s=latest_s, final=final)
        return plan._replace(steps=tuple(booked))

    def _begins_by(self, place: Booked, step: int) -> float:
        """The moment by which the steps before this one must have ended."""
        if place.where == NO_DEVICE:
            return place.latest_s - (place.end_s - place.start_s)
        return place.start_s - self.steps[step].way_s


def _least(step: PlanStep, option: Option) -> _Least:
    """On a warm worker or in a batch, where there may be one; it waits for nothing."""
    where = option.where
    if where == NO_DEVICE:
        return _Least(where, 0.0, option.execution_s, option.cost_usd)
    if step.workload is None:
        return _Least(where, option.cold_s + option.release_s, option.cold_s, option.cold_usd)
    length_s, cost_usd = option.execution_s, min(option.cost_usd, option.cold_usd)
    spent_s = length_s + option.release_s
    if step.batch_max and option.batch_item_s is not None:
        spent_s = min(spent_s, option.batch_item_s)
        length_s = min(length_s, option.batch_item_s - SAME_S)
    return _Least(where, spent_s, length_s, cost_usd)


def without_device(option: Option, ready_s: float) -> Booked:
    """The place of a step that needs no device."""
    end_s = ready_s + option.execution_s
    return Booked(DeviceId(""), NO_DEVICE, ready_s, end_s, end_s, False, None, inf, 0.0)


def cost_of(booked: Sequence[Booked], options: Sequence[Option]) -> float:
    """The cost of all steps, with the loading of those that count on no warm worker."""
    return sum(
        option.cost_usd if place.warm or place.batch is not None else option.cold_usd
        for place, option in zip(booked, options, strict=True)
    )


def _in_batch(
    batch: Batch, option: Option, batch_max: int, need: Need, ready_s: float, calendar: Calendar
) -> _Place | None:
    """The place of a further member; None when one of the members' promises would break."""
    added_s = option.batch_item_s or 0.0
    own_s = option.execution_s if batch.warm else option.cold_s
    end_s = max(batch.end_s + added_s, batch.start_s + own_s + batch.members * added_s)
    until_s = max(batch.until_s + added_s, end_s + option.release_s)
    if ready_s > batch.start_s + SAME_S or end_s > batch.latest_s + SAME_S:
        return None
    if batch.members >= min(batch.members_max, batch_max):
        return None
    members = batch.members + 1
    together = Need(need.memory_mib * members, need.permille * members, need.exclusive)
    if calendar.conflict_s(need, batch.start_s, batch.until_s) is not None:
        return None
    if (
        until_s > batch.until_s
        and calendar.conflict_s(together, batch.until_s, until_s) is not None
    ):
        return None
    spent_s = max(added_s, until_s - batch.until_s)
    return batch.start_s, end_s, until_s, False, batch.name, spent_s


def _spread(placements: Sequence[Placement]) -> Sequence[Placement]:
    if len(placements) <= TRIED_MAX:
        return placements
    step = (len(placements) - 1) / (TRIED_MAX - 1)
    return [placements[round(i * step)] for i in range(TRIED_MAX)]


def _key(end_s: float, spent_s: float, late_s: float) -> tuple[bool, float, float]:
    """The less, the better: in time, least device time, first end; late, the first end."""
    late = end_s > late_s
    return late, end_s if late else spent_s, end_s


def _score(plan: Plan, pick: str) -> tuple[float, float]:
    """The less, the better."""
    if pick == "random":
        return 0.0, 0.0
    if pick == "earliest":
        return plan.end_s, plan.cost_usd
    if pick == "cheapest":
        return plan.cost_usd, plan.end_s
    return plan.weight, plan.cost_usd

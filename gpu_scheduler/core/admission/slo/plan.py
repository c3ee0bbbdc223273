"""The plan of a run: a device and a start for each step, so that its objectives are met.

Every placement of the slice is tried: steps in their order, each on the device of its class that
gives it a warm worker, a place in a waiting batch or a new worker in time. Of the plans that end in
time the pick rule takes one: `lightest` uses the least device time, idle gaps and loading included,
relative to the devices of each class; `earliest` ends first; `cheapest` costs least; `random` is
the rule of the thesis.
"""

from __future__ import annotations

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
_ROUNDING_USD = 1e-9


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


class Devices:
    """The devices that one plan may use: the sample of each class, and how many there are.

    Calendars are copied when a step is added to them, so that each placement begins with the same.
    """

    def __init__(
        self,
        sampled: Mapping[ClassKey, Sequence[Calendar]],
        counts: Mapping[ClassKey, int],
        batches: Callable[[Calendar, str], Sequence[Batch]],
    ) -> None:
        self.sampled, self.counts, self.batches = sampled, counts, batches


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

    def best(
        self, placements: Sequence[Placement], pick: str, draw: Callable[[], float]
    ) -> tuple[Plan | None, float]:
        """The plan of the pick rule, or None with the earliest end of all that were tried."""
        found: list[Plan] = []
        earliest_s = inf
        for placement in _spread(placements):
            for thrifty in (True, False):
                plan = self.plan(placement, thrifty=thrifty)
                earliest_s = min(earliest_s, inf if plan is None else plan.end_s)
                if plan is not None and self._meets(plan):
                    found.append(plan)
                    break
        if not found:
            return None, earliest_s
        return _picked(found, pick, draw), earliest_s

    def _meets(self, plan: Plan) -> bool:
        in_budget = plan.cost_usd <= self.cost_usd_max + _ROUNDING_USD
        return in_budget and plan.end_s <= self.due_s + SAME_S

    def plan(self, placement: Placement, *, thrifty: bool) -> Plan | None:
        """The plan of one placement; None when a class has no device.

        `thrifty`: each step takes the device on which it spends least, while those after it still
        end in time; else the one on which it ends first.
        """
        options = [step.options[i] for step, i in zip(self.steps, placement.options, strict=True)]
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
            place = self._place(step, option, ready_s, latest_s, calendars, joined)
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
        ready_s: float,
        latest_s: float,
        calendars: Mapping[DeviceId, Calendar],
        joined: Collection[str],
    ) -> Booked | None:
        best: tuple[tuple[float, ...], Booked] | None = None
        for sampled in self.devices.sampled.get(option.where, ()):
            if sampled.device in self.steps[step].unfit:
                continue
            calendar = calendars.get(sampled.device, sampled)
            for place in self._places(step, option, ready_s, calendar, joined):
                late = place.end_s > latest_s + SAME_S
                key = (late, place.end_s if late else place.spent_s, place.end_s)
                if best is None or key < best[0]:
                    best = key, place
        return None if best is None else best[1]

    def _places(
        self,
        step: int,
        option: Option,
        ready_s: float,
        calendar: Calendar,
        joined: Collection[str],
    ) -> list[Booked]:
        """The places of a step on one device: in a waiting batch, and on a worker of its own."""
        own, need = self.steps[step], self.steps[step].needs[option.where]
        found: list[Booked] = []
        if own.batch_max and own.workload is not None and option.batch_item_s is not None:
            for batch in self.devices.batches(calendar, own.workload):
                if batch.name not in joined:
                    place = _in_batch(batch, option, own.batch_max, need, ready_s, calendar)
                    found += [] if place is None else [place]
        if not calendar.keeps(own.workload, need.memory_mib):
            return found
        for warm in (True, False):
            loading_s = 0.0 if warm else option.loading_s
            busy_s = loading_s + option.execution_s + option.release_s
            start_s = calendar.earliest_s(need, ready_s, busy_s)
            if start_s == inf:
                continue
            if warm and option.loading_s:
                memory = need.memory_mib
                if not calendar.warm_at(own.workload, memory, start_s, self.now_s):
                    continue
            end_s = start_s + loading_s + option.execution_s
            until_s = start_s + busy_s
            spent_s = calendar.gap_s(start_s, self.now_s) + busy_s
            counts_on = warm and option.loading_s > 0
            found.append(
                Booked(
                    calendar.device,
                    option.where,
                    start_s,
                    end_s,
                    until_s,
                    counts_on,
                    None,
                    inf,
                    spent_s,
                )
            )
            break
        return found

    def _use(
        self, step: int, place: Booked, calendars: dict[DeviceId, Calendar], joined: set[str]
    ) -> None:
        calendar = calendars.get(place.device)
        if calendar is None:
            sampled = self.devices.sampled[place.where]
            calendar = next(one for one in sampled if one.device == place.device).copy()
            calendars[place.device] = calendar
        own = self.steps[step]
        need = own.needs[place.where]
        if place.batch is not None:
            joined.add(place.batch)
            calendar.prolong(own.workload, place.start_s, place.until_s)
        calendar.add(Use(place.start_s, place.until_s, need, own.workload, place.warm))

    def _plan(self, booked: list[Booked], options: Sequence[Option]) -> Plan:
        for step in reversed(range(len(booked))):
            later = self._later[step]
            latest_s = min((self._begins_by(booked[i], i) for i in later), default=self.due_s)
            final = all(booked[i].where == NO_DEVICE and booked[i].final for i in later)
            booked[step] = booked[step]._replace(latest_s=latest_s, final=final)
        end_s = max(place.end_s for place in booked)
        counts = self.devices.counts
        with_device = [place for place in booked if place.where != NO_DEVICE]
        weight = sum(place.spent_s / counts[place.where] for place in with_device)
        return Plan(tuple(booked), end_s, cost_of(booked, options), weight)

    def _begins_by(self, place: Booked, step: int) -> float:
        """The moment by which the steps before this one must have ended."""
        if place.where == NO_DEVICE:
            return place.latest_s - (place.end_s - place.start_s)
        return place.start_s - self.steps[step].way_s


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
) -> Booked | None:
    """The place of a further member; None when one of the members' promises would break."""
    added_s = option.batch_item_s or 0.0
    end_s, until_s = batch.end_s + added_s, batch.until_s + added_s
    if ready_s > batch.start_s + SAME_S or end_s > batch.latest_s + SAME_S:
        return None
    if batch.members >= min(batch.members_max, batch_max):
        return None
    members = batch.members + 1
    together = Need(need.memory_mib * members, need.permille * members, need.exclusive)
    if calendar.conflict_s(need, batch.start_s, batch.until_s) is not None:
        return None
    if added_s and calendar.conflict_s(together, batch.until_s, until_s) is not None:
        return None
    return Booked(
        batch.device, option.where, batch.start_s, end_s, until_s, False, batch.name, inf, added_s
    )


def _spread(placements: Sequence[Placement]) -> Sequence[Placement]:
    if len(placements) <= TRIED_MAX:
        return placements
    step = (len(placements) - 1) / (TRIED_MAX - 1)
    return [placements[round(i * step)] for i in range(TRIED_MAX)]


def _picked(plans: list[Plan], pick: str, draw: Callable[[], float]) -> Plan:
    if pick == "random":
        return plans[int(draw() * len(plans))]
    if pick == "earliest":
        return min(plans, key=lambda plan: (plan.end_s, plan.cost_usd))
    if pick == "cheapest":
        return min(plans, key=lambda plan: (plan.cost_usd, plan.end_s))
    return min(plans, key=lambda plan: (plan.weight, plan.cost_usd))

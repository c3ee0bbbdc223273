"""Admission of promised runs: options, frontier, slice and plan, from what the policy sees.

1. the options of each step on the classes of known devices, by stated or learned times
2. the frontier of all placements, with and without loading, and the slice that meets the
   objectives; an empty one is impossible: no device that becomes free could help
3. a plan on a seeded sample of the available devices; none in time is busy
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from math import inf

from corekit.ids import DeviceId
from gpu_scheduler.core.admission.slo.estimate import (
    critical_steps,
    expected_end_s,
    on_free_devices,
)
from gpu_scheduler.core.admission.slo.frontier import Feeders, Placement, frontier, within
from gpu_scheduler.core.admission.slo.options import (
    NO_DEVICE,
    ClassKey,
    Option,
    options_of,
    without_device,
)
from gpu_scheduler.core.admission.slo.plan import (
    Booked,
    Devices,
    Plan,
    Planner,
    PlanStep,
    cost_of,
)
from gpu_scheduler.core.inventory.devices import DeviceClass, is_feasible
from gpu_scheduler.core.inventory.index import DeviceGroup
from gpu_scheduler.core.placement.eviction import resident_key
from gpu_scheduler.core.queue.bookings import (
    BOOK,
    ON,
    RUN,
    Booking,
    Bookings,
    RunPromise,
    counted,
    need_of,
)
from gpu_scheduler.core.queue.policy import MEMORY_MAX, Admission, PromiseAsked
from gpu_scheduler.core.queue.view import View
from gpu_scheduler.model import LENGTH_S_MAX, Request
from gpu_scheduler.promises import Estimate, PlannedStep, PromisedStep, StepTimes, Tradeoff
from gpu_scheduler.protocol.changes import Scalar

#: The executions from which times are learned for a promise, at least.
RUNS_MIN = 5
#: The quantile of the first estimate: as likely too early as too late.
MEDIAN = 0.5
#: Values of the memory for one step, and for its run with the counts.
_VALUES_OF_STEP, _VALUES_OF_RUN = 2, 8
#: Most placements of a frontier that an answer lists.
_LISTED_MAX = 32


class Promising:
    """The admission of one run."""

    def __init__(
        self,
        view: View,
        asked: PromiseAsked,
        *,
        pick: str,
        sample: int = 8,
        quantile: float = 0.95,
    ) -> None:
        self.view, self.asked, self.pick, self.sample = view, asked, pick, sample
        self.quantile, self.bookings = quantile, Bookings(view)
        if asked.slo is None:
            self.pick = "earliest"  # nothing is promised: what the devices can do
        #: The classes of devices that can serve each step.
        self.classes = [self._classes(step) for step in asked.steps]
        self._timed: dict[float, tuple[list[float], list[tuple[Option, ...]]]] = {}
        self.ways_s, self.options = self._times(quantile)
        place = {step.name: index for index, step in enumerate(asked.steps)}
        self.feeders: Feeders = tuple(
            tuple(sorted(place[name] for name in step.after)) for step in asked.steps
        )

    def answer(self, *, whole: bool = False) -> Admission:
        """The promise or its refusal. `whole`: all steps on one kind of device (Clockwork)."""
        unknown = next((i for i, options in enumerate(self.options) if not options), None)
        if unknown is not None:
            return Admission(self._unknown(unknown), possible=False)
        warm, cold = self._frontier(loading=False), self._frontier(loading=True)
        listed = tuple(
            Tradeoff(latency_s=one.latency_s, cost_usd=one.cost_usd) for one in cold[:_LISTED_MAX]
        )
        placements = [*self._slice(warm), *self._slice(cold)]
        if not placements:
            best = " or ".join(_tradeoff_text(one) for one in _ends(warm))
            text = f"no placement meets {_slo_text(self.asked)}; at best, on free devices: {best}"
            free = self._on_free_devices(cold[0])
            return free._replace(why=text, possible=False, frontier=listed)
        if whole:
            placements = self._whole()
        placements = list({one.options: one for one in placements}.values())
        return self._planned(placements, cold[0])._replace(frontier=listed)

    # ------------------------------------------------------------------ placements

    def _times(self, quantile: float) -> tuple[list[float], list[tuple[Option, ...]]]:
        """The way of each step and its options, at one quantile of what was learned.

        The way of a step without a device is its execution.
        """
        if quantile not in self._timed:
            self._timed[quantile] = self._times_at(quantile)
        return self._timed[quantile]

    def _times_at(self, quantile: float) -> tuple[list[float], list[tuple[Option, ...]]]:
        learned = self.view.state.learned_times
        ways_s: list[float] = []
        options: list[tuple[Option, ...]] = []
        for step, classes in zip(self.asked.steps, self.classes, strict=True):
            tenant, workload = step.request.tenant, step.request.workload
            runs_min = 1 if step.way_s is None else RUNS_MIN
            way_s = learned.way_s(tenant, workload, quantile, runs_min=runs_min)
            if way_s is None:
                way_s = step.way_s or 0.0
            ways_s.append(way_s if step.has_device else 0.0)
            if step.has_device:
                options.append(options_of(step, classes, partial(self._learned, quantile)))
            else:
                options.append((without_device(step, way_s),))
        return ways_s, options

    def _classes(self, step: PromisedStep) -> list[DeviceClass]:
        if not step.has_device:
            return []
        index = self.view.state.inventory.index
        return [one for one in index.classes() if is_feasible(step.request, one)]

    def _learned(self, quantile: float, step: PromisedStep, model: str) -> StepTimes | None:
        request = step.request
        times = self.view.state.learned_times.of(request.tenant, request.workload, model)
        if times is None or times.runs < RUNS_MIN:
            return None
        execution_s = times.execution_s(quantile)
        if execution_s is None:
            return None
        held_s = execution_s + (times.start_s(quantile) or 0.0)
        loading_s = times.loading_s(quantile) or 0.0
        return StepTimes(execution_s=min(held_s, LENGTH_S_MAX), loading_s=loading_s)

    def _unknown(self, number: int) -> str:
        step = self.asked.steps[number]
        if not self.classes[number]:
            return f"step {step.name} fits no known device"
        what = "no times are stated for the devices that it fits"
        if not step.times:
            what = f"fewer than {RUNS_MIN} runs of its workload have ended: state its times"
        return f"step {step.name}: {what}"

    def _frontier(self, *, loading: bool) -> tuple[Placement, ...]:
        prices = tuple(
            tuple(
                (way_s + one.cold_s, one.cold_usd)
                if loading
                else (way_s + one.execution_s, one.cost_usd)
                for one in options
            )
            for way_s, options in zip(self.ways_s, self.options, strict=True)
        )
        return frontier(prices, self.feeders)

    def _slice(self, found: Sequence[Placement]) -> Sequence[Placement]:
        return within(found, self.asked.latency_s, self.asked.cost_usd)

    def _whole(self) -> list[Placement]:
        """The placements with all steps on one kind and model, without regard to loading."""
        found: list[Placement] = []
        named = [[one.where for one in options] for options in self.options]
        for where in dict.fromkeys(one for names in named for one in names):
            if not all(where in names or names == [NO_DEVICE] for names in named):
                continue
            choice = tuple(names.index(where) if where in names else 0 for names in named)
            single = tuple(
                ((way_s + options[i].execution_s, options[i].cost_usd),)
                for way_s, options, i in zip(self.ways_s, self.options, choice, strict=True)
            )
            one = frontier(single, self.feeders)[0]._replace(options=choice)
            found += self._slice([one])
        return found

    # ------------------------------------------------------------------ plan

    def _planned(self, placements: Sequence[Placement], fastest: Placement) -> Admission:
        """The plan, or estimates of `fastest` with the reason why there is none now."""
        view, now_s = self.view, self.view.wall_s
        latency_s, cost_usd = self.asked.latency_s, self.asked.cost_usd
        due_s = inf if latency_s is None else now_s + latency_s
        devices = self._devices()
        steps = [self._plan_step(number, devices) for number in range(len(self.asked.steps))]
        cost_usd_max = inf if cost_usd is None else cost_usd
        planner = Planner(steps, self.feeders, devices, now_s, due_s, cost_usd_max)
        plan, earliest_s = planner.best(placements, self.pick, view.draw)
        if plan is None:
            text = (
                "no available device is known"
                if earliest_s == inf
                else (f"devices are booked: the earliest end is in {earliest_s - now_s:.3g} s")
            )
            end_in_s = None if earliest_s == inf else earliest_s - now_s
            return self._on_free_devices(fastest)._replace(why=text, end_in_s=end_in_s)
        values = len(view.memory) + _VALUES_OF_STEP * len(steps) + _VALUES_OF_RUN
        if values > MEMORY_MAX:
            full = f"{len(self.bookings)} steps are booked, the most that are remembered"
            return self._on_free_devices(fastest)._replace(why=full)
        end_in_s = plan.end_s - now_s
        return self._estimated(plan.steps)._replace(
            why=f"promised: it ends in {end_in_s:.3g} s at the latest",
            admitted=True,
            steps=tuple(
                self._planned_step(step, place)
                for step, place in zip(self.asked.steps, plan.steps, strict=True)
                if step.has_device
            ),
            end_in_s=end_in_s,
            cost_usd=plan.cost_usd,
            remember=self._remember(plan, due_s),
        )

    def _on_free_devices(self, placement: Placement) -> Admission:
        """The estimates of a placement, if no step waits for a device."""
        now_s = self.view.wall_s
        chosen = [own[i] for own, i in zip(self.options, placement.options, strict=True)]
        return self._estimated(on_free_devices(chosen, self.ways_s, self.feeders, now_s))

    def _estimated(self, booked: Sequence[Booked]) -> Admission:
        """An answer that has nothing yet but the estimates of these places."""
        now_s = self.view.wall_s
        estimates: list[Estimate] = []
        for quantile in (MEDIAN, self.quantile):
            same = quantile == self.quantile
            ways_s, options = (self.ways_s, self.options) if same else self._times(quantile)
            chosen = [
                next((one for one in own if one.where == place.where), None)
                for own, place in zip(options, booked, strict=True)
            ]
            known = [one for one in chosen if one is not None]
            if len(known) < len(chosen):
                continue
            end_s = expected_end_s(booked, self.ways_s, self.feeders, now_s, (known, ways_s))
            cost_usd = cost_of(booked, known)
            estimates.append(Estimate(quantile=quantile, end_in_s=end_s - now_s, cost_usd=cost_usd))
        names = [self.asked.steps[i].name for i in critical_steps(booked, self.feeders)]
        return Admission("", estimates=tuple(estimates), critical=tuple(names))

    def _plan_step(self, number: int, devices: Devices) -> PlanStep:
        step, classes = self.asked.steps[number], self.classes[number]
        options, inventory = self.options[number], self.view.state.inventory
        unfit: frozenset[DeviceId] = frozenset()
        if len(classes) < sum(1 for _ in inventory.index.classes()):
            unfit = frozenset(
                one
                for sampled in devices.sampled.values()
                for one in sampled
                if inventory.state_of(one).device_class not in classes
            )
        sizes = {ClassKey(one.kind.value, one.model): one.memory_mib for one in classes}
        needs = {
            one.where: need_of(step.request, sizes[one.where]) for one in options if step.has_device
        }
        workload, batch_max = resident_key(step.request), _batch_max(step.request)
        return PlanStep(options, needs, workload, batch_max, unfit, self.ways_s[number])

    def _devices(self) -> Devices:
        """A seeded sample of the available devices of each class, and those that are warm."""
        groups: dict[ClassKey, list[DeviceGroup]] = {}
        for group in self.view.state.inventory.index.groups.values():
            made = group.device_class
            if any(made in classes for classes in self.classes):
                groups.setdefault(ClassKey(made.kind.value, made.model), []).append(group)
        sampled: dict[ClassKey, list[DeviceId]] = {}
        counts: dict[ClassKey, int] = {}
        for where in sorted(groups):
            available = [one for group in groups[where] for one in _available(group)]
            counts[where] = max(1, len(available))
            few = len(available) <= self.sample
            sampled[where] = available if few else self._sampled(available)
        return Devices(sampled, counts, self.bookings.calendar, self.bookings.batches)

    def _sampled(self, devices: list[DeviceId]) -> list[DeviceId]:
        first = int(self.view.draw() * len(devices))
        drawn = [devices[(first + i) % len(devices)] for i in range(self.sample)]
        warm = list(self._warm())
        known = frozenset(devices if warm else ())
        some = islice((one for one in warm if one in known), self.sample)
        return list(dict.fromkeys(chain(drawn, some)))

    def _warm(self) -> Iterator[DeviceId]:
        residents = self.view.state.inventory.residents
        for step in self.asked.steps:
            key = resident_key(step.request)
            index = None if key is None else residents.with_workload(key)
            for group in () if index is None else index.groups.values():
                yield from _available(group)

    # ------------------------------------------------------------------ answer and memory

    def _planned_step(self, step: PromisedStep, place: Booked) -> PlannedStep:
        entry = self.view.state.inventory.devices[place.device]
        return PlannedStep(
            name=step.name,
            job=step.job,
            host=entry.host,
            device=place.device,
            kind=place.where.kind,
            model=place.where.model,
            start_in_s=place.start_s - self.view.wall_s,
            end_in_s=place.end_s - self.view.wall_s,
            warm=place.warm,
        )

    def _remember(self, plan: Plan, due_s: float) -> Mapping[str, Scalar | None]:
        asked = self.asked
        booked = sum(step.has_device for step in asked.steps)
        if not booked:  # no device can be late
            return {}
        found: dict[str, Scalar | None] = counted(self.view, "given")
        run = RunPromise(
            self.view.wall_s,
            due_s,
            plan.cost_usd,
            booked,
            fingerprint=asked.fingerprint,
            tenant=asked.steps[0].request.tenant,
        )
        found[RUN + asked.run] = run.text()
        for step, options, place in zip(asked.steps, self.options, plan.steps, strict=True):
            if not step.has_device:
                continue
            whole_mib = self.view.state.inventory.devices[place.device].device.memory_mib
            need = need_of(step.request, whole_mib)
            workload = resident_key(step.request) or ""
            joins = (
                next(one for one in options if one.where == place.where).batch_item_s is not None
            )
            if place.batch is not None:
                found |= self._prolonged(place, workload)
            booking = Booking(
                *place[2:5],
                latest_s=place.latest_s,
                memory_mib=need.memory_mib,
                permille=need.permille,
                exclusive=need.exclusive,
                warm=place.warm,
                granted=False,
                late=False,
                batch_max=_batch_max(step.request) if joins else 0,
                workload=workload,
                run=asked.run,
                final=place.final,
            )
            found[ON + step.job] = place.device
            found[BOOK + step.job] = booking.text()
        return found

    def _prolonged(self, place: Booked, workload: str) -> Iterator[tuple[str, Scalar]]:
        """The members of a batch with its new end."""
        for job in self.bookings.members_of(place.device, place.start_s, workload):
            booking = self.bookings.of(job)
            if booking is not None:
                changed = booking._replace(end_s=place.end_s, until_s=place.until_s)
                yield BOOK + job, changed.text()


def _available(group: DeviceGroup) -> Iterator[DeviceId]:
    if not group.unavailable:
        return iter(group.devices)
    gone = {device for devices in group.unavailable.values() for device in devices}
    return (device for device in group.devices if device not in gone)


def _batch_max(request: Request) -> int:
    batch = request.batch
    return batch.size_max if batch is not None and batch.joins else 0


def _ends(found: Sequence[Placement]) -> Sequence[Placement]:
    return found if len(found) < 3 else (found[0], found[-1])


def _tradeoff_text(one: Placement) -> str:
    return f"{one.latency_s:.3g} s for ${one.cost_usd:.3g}"


def _slo_text(asked: PromiseAsked) -> str:
    latency = None if asked.latency_s is None else f"{asked.latency_s:.3g} s"
    cost = None if asked.cost_usd is None else f"${asked.cost_usd:.3g}"
    return " and ".join(one for one in (latency, cost) if one is not None)

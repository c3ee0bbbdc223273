"""The public values of a promise: the objectives of a run, and its steps with their times.

A promise is given or refused when it is requested (`admit`), before any step begins. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from typing import Annotated

from corekit.errors import invalid
from corekit.values import Checked, Meta, Value, checked, field
from gpu_scheduler.model import LENGTH_S_MAX, Name, Request

STEPS_MAX = 64  #: most steps of one run
CLASSES_MAX = 64  #: most kinds and models for which one step states times
COST_MAX_USD = 1e9
#: The key of a time on devices without a time of their own.
ANY_DEVICE = "*"

TimeS = Annotated[float, Meta(ge=0, le=LENGTH_S_MAX)]
CostUsd = Annotated[float, Meta(ge=0, le=COST_MAX_USD)]
UsdPerS = Annotated[float, Meta(ge=0, le=COST_MAX_USD)]


class Slo(Checked):
    """The objectives of one run: at least one of the two."""

    #: From the request of the promise to the end of the last step, in seconds.
    latency_s: Annotated[float, Meta(gt=0, le=LENGTH_S_MAX)] | None = None
    cost_usd: CostUsd | None = None  #: of all steps together

    def __post_init__(self) -> None:
        checked(self)
        if self.latency_s is None and self.cost_usd is None:
            raise invalid("slo needs latency_s, cost_usd or both")


class StepTimes(Checked):
    """The times and the cost of one step on one kind or model of device."""

    execution_s: TimeS  #: of a lease: with the start of a function that holds it
    loading_s: TimeS = 0.0  #: before the execution, on a device without a warm worker
    release_s: TimeS = 0.0  #: after it, until the device is free again
    cost_usd: CostUsd = 0.0
    #: Added to an execution by each further member of a batch; None = the step joins none.
    batch_item_s: TimeS | None = None


class PromisedStep(Checked):
    """One step of a run: the device that it needs, the steps before it, its times."""

    name: Name
    #: The holder of its attempts (op `attempt`), or the name of its reservation (op `reserve`).
    job: Name
    #: Of one device; a count of 0: the step needs none, and only its way takes time.
    request: Request
    after: Annotated[tuple[Name, ...], Meta(max_length=STEPS_MAX)] = ()  #: names of earlier steps
    #: By model or kind of device, or `*`; empty: the learned times of its workload.
    times: Annotated[Mapping[Name, StepTimes], Meta(max_length=CLASSES_MAX)] = field(
        default_factory=dict
    )
    #: Time of the step outside of its lease and its waiting: from the end of the steps before it
    #: (or the request of the promise) to its reservation, and from the end of its lease to its
    #: result. It counts until five jobs of its workload have shown it. None: the learned quantile
    #: counts from the first one on; 0 before it.
    way_s: TimeS | None = None
    #: Dollars for each second that the step holds its device, by model, kind or `*`; for a step
    #: without a device, of its way. Counts where `times` states no cost.
    usd_per_s: Annotated[Mapping[Name, UsdPerS], Meta(max_length=CLASSES_MAX)] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        checked(self)
        if self.request.count > 1:
            raise invalid(f"step {self.name}: a promised step has one device, or none")
        if not self.request.count and self.times:
            raise invalid(f"step {self.name}: a step without a device has a way_s, but no times")

    @property
    def has_device(self) -> bool:
        """False: it needs no device."""
        return self.request.count > 0


class PlannedStep(Value):
    """The booking of one step."""

    name: str
    job: str
    host: str
    device: str
    kind: str
    model: str
    start_in_s: float  #: from now
    end_in_s: float  #: from now: its execution is over
    warm: bool  #: on a worker that has loaded its workload by then


class Tradeoff(Value):
    """The latency and the cost of one placement of all steps, on free devices."""

    latency_s: float
    cost_usd: float


class Estimate(Value):
    """The expected end and cost of a run, if its times are those of one quantile."""

    quantile: float
    end_in_s: float  #: from now
    cost_usd: float | None = None


class MissCause(StrEnum):
    """The reason why a promise was not kept. A closed set; only LATE is a wrong promise."""

    LATE = "LATE"  #: a step took longer than its times, or began late behind one that did
    NOT_REQUESTED = "NOT_REQUESTED"  #: a step did not request its device in time
    FAILED = "FAILED"  #: a step's lease ended before its work
    HOST_LOST = "HOST_LOST"  #: a host or a device was lost
    PREEMPTED = "PREEMPTED"  #: a device was needed for a higher priority, or drained
    WITHDRAWN = "WITHDRAWN"  #: another policy is in force


def ordered_steps(steps: tuple[PromisedStep, ...]) -> tuple[PromisedStep, ...]:
    """The steps, each after those before it; of these, those with less memory first.

    Raises INVALID for a cycle, a name or job that is used twice, and an unknown step.
    """
    by_name = {step.name: step for step in steps}
    if len(by_name) < len(steps) or len({step.job for step in steps}) < len(steps):
        raise invalid("two steps have the same name or the same job")
    for step in steps:
        for name in step.after:
            if name not in by_name:
                raise invalid(f"step {step.name} is after {name!r}, which is not a step of the run")
    sorter = TopologicalSorter({step.name: step.after for step in steps})
    try:
        sorter.prepare()
    except CycleError as error:
        raise invalid(f"steps wait for each other: {' → '.join(error.args[1])}") from None
    found: list[PromisedStep] = []
    while sorter.is_active():
        ready = [by_name[name] for name in sorter.get_ready()]
        ready.sort(key=lambda step: (step.request.memory_mib, step.name))
        found += ready
        sorter.done(*(step.name for step in ready))
    return tuple(found)

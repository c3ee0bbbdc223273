"""The options of a step: its times, memory and cost on each class of device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from gpu_scheduler.core.inventory.devices import DeviceClass
from gpu_scheduler.promises import ANY_DEVICE, PromisedStep, StepTimes

T = TypeVar("T")


class ClassKey(NamedTuple):
    """A class of devices, as times distinguish them."""

    kind: str
    model: str


#: The place of a step that needs no device.
NO_DEVICE = ClassKey("", "")


class Option(NamedTuple):
    """One step on one class of device."""

    where: ClassKey
    loading_s: float  #: without a warm worker
    execution_s: float
    release_s: float
    cost_usd: float  #: with a warm worker
    batch_item_s: float | None = None  #: of each further member of a batch; None = joins none
    loading_usd: float = 0.0  #: more without a warm worker

    @property
    def cold_s(self) -> float:
        """Loading and execution."""
        return self.loading_s + self.execution_s

    @property
    def cold_usd(self) -> float:
        """The cost without a warm worker."""
        return self.cost_usd + self.loading_usd


#: The learned times of a step on a device model; None = too few runs.
Learned = Callable[[PromisedStep, str], StepTimes | None]


def options_of(
    step: PromisedStep, classes: Iterable[DeviceClass], learned: Learned
) -> tuple[Option, ...]:
    """The options of a step on classes that can serve it: times as stated, else as learned.

    A class without either is not an option. Steps with stated times use no learned ones.
    """
    found: dict[ClassKey, Option] = {}
    for one in classes:
        where = ClassKey(one.kind.value, one.model)
        times = _of_class(step.times, where) if step.times else learned(step, one.model)
        if where not in found and times is not None:
            found[where] = _option(where, times, _of_class(step.usd_per_s, where) or 0.0)
    return tuple(found[where] for where in sorted(found))


def without_device(step: PromisedStep, way_s: float) -> Option:
    """The only option of a step that needs no device: it takes its way, and nothing else."""
    rate = step.usd_per_s.get(ANY_DEVICE, 0.0)
    return Option(NO_DEVICE, 0.0, way_s, 0.0, rate * way_s)


def _option(where: ClassKey, times: StepTimes, usd_per_s: float) -> Option:
    cost_usd, loading_usd = times.cost_usd, 0.0
    if not cost_usd:
        cost_usd = usd_per_s * (times.execution_s + times.release_s)
        loading_usd = usd_per_s * times.loading_s
    return Option(
        where,
        times.loading_s,
        times.execution_s,
        times.release_s,
        cost_usd,
        times.batch_item_s,
        loading_usd,
    )


def _of_class(values: Mapping[str, T], where: ClassKey) -> T | None:
    """The value of the model, else of the kind, else of any device."""
    keys = (where.model, where.kind, ANY_DEVICE)
    return next((values[key] for key in keys if key in values), None)

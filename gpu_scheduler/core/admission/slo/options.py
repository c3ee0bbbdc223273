"""The options of a step: its times, memory and cost on each class of device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from gpu_scheduler.core.inventory.devices import DeviceClass
from gpu_scheduler.promises import ANY_DEVICE, PromisedStep, StepTimes


class ClassKey(NamedTuple):
    """A class of devices, as times distinguish them."""

    kind: str
    model: str


class Option(NamedTuple):
    """One step on one class of device."""

    where: ClassKey
    loading_s: float  #: without a warm worker
    execution_s: float
    release_s: float
    cost_usd: float
    batch_item_s: float | None = None  #: of each further member of a batch; None = joins none

    @property
    def cold_s(self) -> float:
        """Loading and execution."""
        return self.loading_s + self.execution_s


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
        times = _stated(step, where) if step.times else learned(step, one.model)
        if where not in found and times is not None:
            found[where] = Option(
                where,
                times.loading_s,
                times.execution_s,
                times.release_s,
                times.cost_usd,
                times.batch_item_s,
            )
    return tuple(found[where] for where in sorted(found))


def _stated(step: PromisedStep, where: ClassKey) -> StepTimes | None:
    for key in (where.model, where.kind, ANY_DEVICE):
        if key in step.times:
            return step.times[key]
    return None

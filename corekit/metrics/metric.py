"""The definition of one metric: name, type, unit, bounded labels, help."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """The type of a metric, as Prometheus names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Unit(StrEnum):
    """The unit of a metric's values."""

    NONE = "1"  #: a number of things, or 0 and 1
    SECONDS = "s"
    BYTES = "bytes"
    MEBIBYTES = "MiB"
    PERCENT = "%"
    CELSIUS = "°C"
    WATTS = "W"


@dataclass(frozen=True, slots=True)
class Label:
    """A label of a metric, with the bound on the number of its values."""

    name: str
    bound: str  #: the set of its values, or their largest number


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric that a program exposes. The catalogue has every one."""

    name: str
    kind: Kind
    help: str
    labels: tuple[Label, ...] = ()
    unit: Unit = Unit.NONE
    buckets: tuple[float, ...] = ()  #: of a histogram: upper bounds, rising, without +Inf

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(label.name for label in self.labels)

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its samples."""
        if self.kind is not Kind.HISTOGRAM:
            return (self.name,)
        return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))


@dataclass(frozen=True, slots=True)
class Section:
    """The metrics of one program, in the order of their definition."""

    program: str
    metrics: list[Metric] = field(default_factory=list)

    def metric(
        self,
        name: str,
        kind: Kind,
        text: str,
        labels: tuple[Label, ...] = (),
        unit: Unit = Unit.NONE,
        buckets: tuple[float, ...] = (),
    ) -> Metric:
        """Define a metric of this program."""
        made = Metric(name, kind, text, labels, unit, buckets)
        self.metrics.append(made)
        return made

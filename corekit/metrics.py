"""Metrics of all programs: one catalogue of names, and their text in Prometheus' format 0.0.4.

`metrics.csv` is the only place that names metrics: docs/reference/metrics.md is made from it
(`python -m tools.metrics_table`), and tests compare it with what programs expose. A label's bound
keeps the number of series known in advance.

The text is ours and comes line by line, because one scrape of the scheduler may have 100,000 lines
between two grants: `prometheus_client` takes 2.9 times as long for 10,000 samples (57 ms) and makes
them in one piece, and a count by labels takes 1.03 µs there instead of 0.12.
"""

from __future__ import annotations

import csv
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Values of the metric's labels, in its order.
LabelValues = tuple[str, ...]
#: A sample: the values of the labels, and its value.
Sample = tuple[LabelValues, float]


class Kind(StrEnum):
    """The type of a metric, as Prometheus names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric that a program exposes."""

    program: str
    name: str
    kind: Kind
    unit: str  #: "1": a number of things, or 0 and 1
    labels: Mapping[str, str]  #: each with the set of its values, or their largest number
    help: str

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its samples."""
        if self.kind is not Kind.HISTOGRAM:
            return (self.name,)
        return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))


def _catalogue() -> Iterator[Metric]:
    """The metrics of the table; `@name` among the labels stands for a group of them."""
    groups: dict[str, dict[str, str]] = {}
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as table:
        for row in csv.DictReader(table, delimiter="|"):
            labels: dict[str, str] = {}
            for label in filter(None, row["labels"].split("; ")):
                name, _, bound = label.partition(": ")
                labels |= groups.get(name, {name: bound})
            name, help_ = row["name"], row["meaning"]
            if row["program"] == "labels":
                groups[name] = labels
            else:
                yield Metric(row["program"], name, Kind(row["type"]), row["unit"], labels, help_)


#: All metrics by name, in the order of the table. The monitor is a part of gpud, and a program of
#: its own.
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _catalogue()}


# ---------------------------------------------------------------------- text


def family(name: str, samples: Iterable[Sample]) -> Iterator[str]:
    """A metric with labels."""
    yield from _head(name)
    names = tuple(METRICS[name].labels)
    for values, value in samples:
        yield f"{name}{_labels(names, values)} {value}"


def single(name: str, value: float) -> Iterator[str]:
    """A metric without labels."""
    return family(name, [((), value)])


def counts(name: str, counter: Counter[str]) -> Iterator[str]:
    """A metric with one label, from a counter by its values."""
    return family(name, (((value,), count) for value, count in sorted(counter.items())))


@dataclass(slots=True)
class Observations:
    """The observations of one series of a histogram."""

    bounds: tuple[float, ...]  #: of its buckets, rising, without +Inf
    buckets: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.buckets = [0] * (len(self.bounds) + 1)

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def observe(self, value: float) -> None:
        """Add one observation."""
        self.buckets[bisect_left(self.bounds, value)] += 1
        self.total += value


def histogram(name: str, series: Iterable[tuple[LabelValues, Observations]]) -> Iterator[str]:
    """A histogram, with cumulative buckets."""
    yield from _head(name)
    names = tuple(METRICS[name].labels)
    for values, seen in series:
        below = 0
        for bound, count in zip((*seen.bounds, "+Inf"), seen.buckets, strict=True):
            below += count
            labels = _labels((*names, "le"), (*values, str(bound)))
            yield f"{name}_bucket{labels} {below}"
        yield f"{name}_sum{_labels(names, values)} {seen.total}"
        yield f"{name}_count{_labels(names, values)} {below}"


def _head(name: str) -> Iterator[str]:
    yield f"# HELP {name} {METRICS[name].help}"
    yield f"# TYPE {name} {METRICS[name].kind.value}"


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    pairs = zip(names, values, strict=True)
    inner = ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)
    return f"{{{inner}}}" if inner else ""


def _escaped(value: str) -> str:
    if value.isalnum():  # most are
        return value
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

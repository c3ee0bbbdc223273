"""Prometheus' text (exposition format 0.0.4): one family of samples per metric. Pure.

Families are made line by line, because one program may have 100,000 lines.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from corekit.metrics.metric import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Values of the metric's labels, in its order.
LabelValues = tuple[str, ...]
#: A sample: the values of the labels, and its value.
Sample = tuple[LabelValues, float]


def family(metric: Metric, samples: Iterable[Sample]) -> Iterator[str]:
    """A metric with labels."""
    yield from _head(metric)
    for values, value in samples:
        yield f"{metric.name}{_labels(metric.label_names, values)} {value}"


def single(metric: Metric, value: float) -> Iterator[str]:
    """A metric without labels."""
    yield from _head(metric)
    yield f"{metric.name} {value}"


@dataclass(slots=True)
class Observations:
    """The observations of one series of a histogram."""

    bounds: tuple[float, ...]
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


def histogram(metric: Metric, series: Iterable[tuple[LabelValues, Observations]]) -> Iterator[str]:
    """A histogram, with cumulative buckets."""
    yield from _head(metric)
    names = metric.label_names
    for values, seen in series:
        below = 0
        for bound, count in zip((*metric.buckets, "+Inf"), seen.buckets, strict=True):
            below += count
            labels = _labels((*names, "le"), (*values, str(bound)))
            yield f"{metric.name}_bucket{labels} {below}"
        yield f"{metric.name}_sum{_labels(names, values)} {seen.total}"
        yield f"{metric.name}_count{_labels(names, values)} {below}"


def counts(metric: Metric, counter: Counter[str]) -> Iterator[str]:
    """A metric with one label, from a counter by its values."""
    return family(metric, (((value,), count) for value, count in sorted(counter.items())))


def _head(metric: Metric) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.help}"
    yield f"# TYPE {metric.name} {metric.kind.value}"


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    if not names:
        return ""
    pairs = zip(names, values, strict=True)
    inner = ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)
    return f"{{{inner}}}"


def _escaped(value: str) -> str:
    if value.isalnum():  # most are
        return value
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

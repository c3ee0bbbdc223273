"""CloudWatch's embedded metric format: metrics as JSON in lines of the log.

Where the log of an orchestrator goes to CloudWatch Logs, CloudWatch makes metrics of these lines
without a call. Specification:
https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from corekit.metrics import METRICS, Kind, LabelValues
from orchgpu.replica.metrics import Family, Histogram

#: CloudWatch's names of units; a unit that it lacks is `None` there.
_UNITS = {"1": "Count", "s": "Seconds", "bytes": "Bytes", "%": "Percent"}
#: Labels by name and value: the dimensions of one line.
Dimensions = tuple[tuple[str, str], ...]


class EmbeddedMetrics:
    """Makes the lines of one program. Counters become what was added since the last lines."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._totals: dict[tuple[str, LabelValues], float] = {}

    def lines(
        self, families: Iterable[Family], histograms: Iterable[Histogram], wall_s: float
    ) -> Iterator[dict[str, object]]:
        """One object for each set of dimensions."""
        found: dict[Dimensions, dict[str, tuple[float, str]]] = {}
        for name, samples in families:
            rises = METRICS[name].kind is Kind.COUNTER
            for labels, value in samples:
                added = self._added(name, labels, value, rises=rises)
                found.setdefault(_dimensions(name, labels), {})[name] = (added, _unit(name))
        for name, series in histograms:
            for labels, seen in series:
                of = found.setdefault(_dimensions(name, labels), {})
                for part, value, unit in (
                    (f"{name}_sum", seen.total, _unit(name)),
                    (f"{name}_count", seen.count, "Count"),
                ):
                    of[part] = (self._added(part, labels, value, rises=True), unit)
        for dimensions, values in sorted(found.items()):
            yield self._line(dimensions, values, wall_s)

    def _added(self, name: str, labels: LabelValues, value: float, *, rises: bool) -> float:
        if not rises:
            return value
        before = self._totals.get((name, labels), 0)
        self._totals[name, labels] = value
        return value - before

    def _line(
        self, dimensions: Dimensions, values: Mapping[str, tuple[float, str]], wall_s: float
    ) -> dict[str, object]:
        definitions = [{"Name": name, "Unit": unit} for name, (_, unit) in values.items()]
        directive = {
            "Namespace": self._namespace,
            "Dimensions": [[name for name, _ in dimensions]],
            "Metrics": definitions,
        }
        about = {"Timestamp": round(wall_s * 1000), "CloudWatchMetrics": [directive]}
        figures = {name: value for name, (value, _) in values.items()}
        return {"_aws": about, **dict(dimensions), **figures}


def _dimensions(name: str, labels: LabelValues) -> Dimensions:
    return tuple(zip(METRICS[name].labels, labels, strict=True))


def _unit(name: str) -> str:
    return _UNITS.get(METRICS[name].unit, "None")

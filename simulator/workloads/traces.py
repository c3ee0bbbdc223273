"""Loads from published traces: Azure Functions 2019 and 2021, Alibaba's GPU cluster of 2023.

The layouts are those of the published files; the rows of several files of one layout may be joined
by hand. Times are relative to the first request. The traces know no GPU model's load time: the run
states it.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from corekit.errors import invalid
from simulator.workloads.model import ANY_DEVICE, Arrival, Timing, Workload

MINUTE_S = 60.0
#: Characters of a hash that name a function or tenant.
_HASH = 12
_PARTS = (0, 1, 25, 50, 75, 99, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests of a trace with the workloads that they name: a source of an open load."""

    rows: tuple[Arrival, ...]  #: by time, the first at 0
    workloads: Mapping[str, Workload]
    start_s: float = 0.0
    speed: float = 1.0  #: 2 = arrivals in half the time; executions are not scaled

    def arrivals(self, stream: random.Random, until_s: float) -> Iterator[Arrival]:
        for row in self.rows:
            at_s = self.start_s + row.at_s / self.speed
            if at_s >= until_s:
                return
            loading = stream.gauss(0.0, 1.0)
            yield replace(row, at_s=at_s, loading_normal=loading)


def table(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a CSV file. Raises INVALID without these columns, NOT_FOUND without the file."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as text:
            reader = csv.DictReader(text)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                wanted = ", ".join(columns)
                text_ = f"{path} lacks the columns {', '.join(missing)}; its layout has {wanted}"
                raise invalid(text_)
            return list(reader)
    except OSError as error:
        raise invalid(f"{path} cannot be read: {error.strerror}") from error


def _number(row: Mapping[str, str], column: str, path: Path, line: int) -> float:
    try:
        return float(row[column] or 0)
    except (TypeError, ValueError):
        text = f"{path}:{line}: {column} {row[column]!r} is not a number"
        raise invalid(text) from None


def azure_2019(
    invocations: Path,
    durations: Path,
    memory: Path | None,
    template: Workload,
    *,
    functions_max: int,
    seed: int = 1,
) -> Trace:
    """Azure Functions 2019: invocations per minute, percentiles of durations and of memory.

    Within a minute the requests are spread evenly at random; an execution is drawn from the
    percentiles of its function. Memory is that of the application.
    """
    lengths = _lengths_2019(durations)
    sizes_mib = {} if memory is None else _sizes_2019(memory)
    rows = table(invocations, ("HashOwner", "HashApp", "HashFunction", "Trigger", "1"))
    minutes = [column for column in rows[0] if column.isdigit()] if rows else []
    counted = [
        (sum(_number(row, m, invocations, line) for m in minutes), line, row)
        for line, row in enumerate(rows, 2)
        if row["HashFunction"] in lengths
    ]
    counted.sort(key=lambda one: (-one[0], one[1]))
    found: list[Arrival] = []
    workloads: dict[str, Workload] = {}
    for _, line, row in counted[:functions_max]:
        name, tenant = row["HashFunction"][:_HASH], row["HashOwner"][:_HASH]
        memory_mib = sizes_mib.get(row["HashApp"], template.memory_mib)
        workloads[name] = replace(template, name=name, tenant=tenant, memory_mib=memory_mib)
        stream = random.Random(f"{seed}/{row['HashFunction']}")
        curve = lengths[row["HashFunction"]]
        for minute in minutes:
            for _ in range(int(_number(row, minute, invocations, line))):
                at_s = (int(minute) - 1 + stream.random()) * MINUTE_S
                length_s = _on_curve(curve, stream.random())
                found.append(Arrival(at_s=at_s, workload=name, tenant=tenant, execution_s=length_s))
    return _trace(found, workloads)


def _lengths_2019(path: Path) -> dict[str, list[float]]:
    """Function → seconds at the percentiles `_PARTS`."""
    columns = [f"percentile_Average_{part}" for part in _PARTS]
    return {
        row["HashFunction"]: [_number(row, column, path, line) / 1000 for column in columns]
        for line, row in enumerate(table(path, ("HashFunction", *columns)), 2)
    }


def _sizes_2019(path: Path) -> dict[str, int]:
    rows = table(path, ("HashApp", "AverageAllocatedMb"))
    return {
        row["HashApp"]: round(_number(row, "AverageAllocatedMb", path, line))
        for line, row in enumerate(rows, 2)
    }


def _on_curve(curve: Sequence[float], part: float) -> float:
    """The value at a part of 0…1, linear between the percentiles."""
    percent = part * 100
    for low, high, a, b in zip(_PARTS, _PARTS[1:], curve, curve[1:], strict=False):
        if percent <= high:
            return a + (b - a) * (percent - low) / (high - low)
    return curve[-1]


def azure_2021(path: Path, template: Workload, *, functions_max: int) -> Trace:
    """Azure Functions 2021: one line per invocation, with its end and duration in seconds."""
    rows = table(path, ("app", "func", "end_timestamp", "duration"))
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["func"]] = counts.get(row["func"], 0) + 1
    kept = sorted(counts, key=lambda name: (-counts[name], name))[:functions_max]
    found: list[Arrival] = []
    workloads: dict[str, Workload] = {}
    for line, row in enumerate(rows, 2):
        if row["func"] in kept:
            name, tenant = row["func"][:_HASH], row["app"][:_HASH]
            length_s = _number(row, "duration", path, line)
            at_s = _number(row, "end_timestamp", path, line) - length_s
            workloads[name] = replace(template, name=name, tenant=tenant)
            found.append(Arrival(at_s=at_s, workload=name, tenant=tenant, execution_s=length_s))
    return _trace(found, workloads)


def alibaba_2023(path: Path, template: Workload, *, device_mib: int) -> Trace:
    """Alibaba's GPU cluster 2023 (`openb_pod_list`): pods with devices or thousandths of one.

    A pod occupies its devices from its creation for the time that it ran. Memory is its part of a
    device of `device_mib`. Pods without a GPU or without an end are left out.
    """
    columns = ("name", "num_gpu", "gpu_milli", "qos", "creation_time", "deletion_time")
    found: list[Arrival] = []
    workloads: dict[str, Workload] = {}
    for line, row in enumerate(table(path, columns), 2):
        count = int(_number(row, "num_gpu", path, line))
        milli = int(_number(row, "gpu_milli", path, line))
        created_s, deleted_s = (_number(row, name, path, line) for name in columns[4:])
        begun_s = _number(row, "scheduled_time", path, line) if row.get("scheduled_time") else 0.0
        length_s = deleted_s - (begun_s or created_s)
        if count < 1 or milli < 1 or length_s <= 0:
            continue
        name, tenant = f"{count}x{milli}", row["qos"] or template.tenant
        workloads[name] = replace(
            template,
            name=name,
            count=count,
            compute_pct=max(1, milli // 10),
            memory_mib=device_mib * milli // 1000,
        )
        found.append(Arrival(at_s=created_s, workload=name, tenant=tenant, execution_s=length_s))
    return _trace(found, workloads)


def _trace(found: Iterable[Arrival], workloads: Mapping[str, Workload]) -> Trace:
    rows = sorted(found, key=lambda arrival: arrival.at_s)
    if not rows:
        raise invalid("the trace has no request that the run can use")
    first_s = rows[0].at_s
    shifted = tuple(replace(row, at_s=row.at_s - first_s) for row in rows)
    return Trace(rows=shifted, workloads=workloads)


def template_of(loading_s: float, memory_mib: int, compute_pct: int) -> Workload:
    """The workload that a trace's own workloads are copies of."""
    return Workload(
        name="trace",
        loading={ANY_DEVICE: Timing(median_s=loading_s)},
        memory_mib=memory_mib,
        compute_pct=compute_pct,
    )

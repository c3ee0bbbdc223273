"""Results for people and programs: tables, JSON, CSV lines of requests."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from corekit.cli.table import Column
from simulator.workloads.experiments import Outcome, Result
from simulator.workloads.jobs import Job
from simulator.workloads.measures import Interval, number_text

#: Figure → its column in tables.
COLUMNS: Mapping[str, str] = {
    "requests": "REQUESTS",
    "cold": "COLD",
    "hit_pct": "HIT %",
    "wait_mean_s": "WAIT s",
    "wait_p99_s": "P99 s",
    "wait_max_s": "MAX s",
    "latency_p50_s": "LATENCY p50 s",
    "utilisation_pct": "USE %",
    "throughput_per_s": "DONE/s",
}
#: Columns of a line for each request.
FIELDS = (
    "attempt",
    "workload",
    "tenant",
    "outcome",
    "devices",
    "cold",
    "asked_s",
    "granted_s",
    "opened_s",
    "loading_s",
    "execution_s",
    "ended_s",
    "wait_s",
)


def line_of(job: Job) -> dict[str, object]:
    """One request by the names of `FIELDS`."""
    return {
        "attempt": job.attempt,
        "workload": job.workload.name,
        "tenant": job.tenant,
        "outcome": job.outcome,
        "devices": list(job.devices),
        "cold": job.cold,
        "asked_s": job.asked_s,
        "granted_s": job.granted_s,
        "opened_s": job.opened_s,
        "loading_s": job.loading_s,
        "execution_s": job.execution_s,
        "ended_s": job.ended_s,
        "wait_s": None if job.opened_s is None else job.waited_s,
    }


def write_requests(jobs: Iterable[Job], path: Path) -> None:
    """A line for each request: JSON lines for `.jsonl`, else CSV."""
    with path.open("w", encoding="utf-8", newline="") as text:
        if path.suffix == ".jsonl":
            text.writelines(json.dumps(line_of(job)) + "\n" for job in jobs)
        else:
            _write_csv(text, FIELDS, map(_csv_row, jobs))


def _csv_row(job: Job) -> list[object]:
    line = line_of(job)
    return [" ".join(job.devices) if name == "devices" else line[name] for name in FIELDS]


def write_results(results: Sequence[Result], path: Path, swept: str = "") -> None:
    """A CSV line for each setting and figure, with its confidence interval."""
    names = ("policy", *((swept,) if swept else ()), "figure", "mean", "low", "high", "seeds")
    rows = [
        [
            result.point.policy,
            *((result.point.value,) if swept else ()),
            figure,
            found.mean,
            found.low,
            found.high,
            found.samples,
        ]
        for result in results
        for figure, found in result.intervals.items()
    ]
    with path.open("w", encoding="utf-8", newline="") as text:
        _write_csv(text, names, rows)


def _write_csv(text: TextIO, names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)


def columns(first: Sequence[str]) -> tuple[Column, ...]:
    """The columns of a table; the figures at its end are dropped first on a narrow terminal."""
    figures = [
        Column(name=name, drop_order=len(COLUMNS) - place if place > 3 else 0)
        for place, name in enumerate(COLUMNS.values())
    ]
    return (*(Column(name=name) for name in first), *figures)


def row_of(figures: Mapping[str, Interval]) -> tuple[str, ...]:
    """The figures of `COLUMNS`, each with half the width of its confidence interval."""
    return tuple(str(figures[name]) for name in COLUMNS)


def outcome_row(outcome: Outcome) -> tuple[str, ...]:
    """The figures of one run."""
    return tuple(number_text(outcome.figures[name]) for name in COLUMNS)


def result_json(result: Result, swept: str = "") -> dict[str, object]:
    """One setting as JSON."""
    return {
        "policy": result.point.policy,
        **({swept: result.point.value} if swept else {}),
        "seeds": [outcome.seed for outcome in result.outcomes],
        "traces": {str(outcome.seed): outcome.trace for outcome in result.outcomes},
        "figures": {
            name: {"mean": found.mean, "low": found.low, "high": found.high}
            for name, found in result.intervals.items()
        },
    }

"""The arithmetic of scale: from figures of docs/reference/benchmarks.md to cores, bytes and limits.

`python -m tools.scale_table` writes its tables into docs/explanation/scale.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from corekit.budget import Budget
from gpu_scheduler.parameters import TENANTS_MAX, Parameters

JOBS_PER_HOUR, DEVICES, DEVICES_PER_HOST = 1_000_000, 10_000, 8
HOUR_S = 3600
#: A process that uses more of a core has no room for bursts.
USABLE = 0.7
#: Synced groups of a cycle of `scheduler.cycles`, and of a job (`scheduler.job_cost`).
CYCLE_GROUPS, JOB_GROUPS = 2, 6


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure of the page, and its baseline, if it has one."""

    value: float
    baseline: float | None


class Figures:
    """The figures of the page, by benchmark and metric. Raises KeyError for one that is missing."""

    def __init__(self, page: str) -> None:
        self._found: dict[tuple[str, str], Measured] = {}
        self.loads: dict[str, str] = {}  #: of the machine before each benchmark ran
        benchmark = ""
        for line in page.splitlines():
            if line.startswith("## "):
                benchmark = line.removeprefix("## ").strip()
            elif match := re.match(r"At .*, load (.+)\.$", line):
                self.loads[benchmark] = match[1]
            elif match := _ROW.match(line):
                baseline = re.search(r": (\S+)$", match["baseline"] or "")
                self._found[benchmark, match["metric"]] = Measured(
                    float(match["value"]), None if baseline is None else float(baseline[1])
                )

    def __call__(self, benchmark: str, metric: str) -> float:
        return self._found[benchmark, metric].value

    def product(self, benchmark: str, metric: str) -> float:
        """A ratio times its baseline: the value that the ratio was made of."""
        found = self._found[benchmark, metric]
        assert found.baseline is not None, metric
        return found.value * found.baseline


_ROW = re.compile(
    r"^\| (?P<metric>\w+) \| (?P<value>[-\d.e+]+)[^|]*\|(?: (?P<baseline>[^|]*?) \|)?"
)


@dataclass(frozen=True, slots=True)
class Scale:
    """Costs by measured slopes, for a rate of jobs and a number of devices."""

    figures: Figures
    jobs_per_hour: float = JOBS_PER_HOUR
    devices: int = DEVICES

    @property
    def jobs_per_s(self) -> float:
        return self.jobs_per_hour / HOUR_S

    @property
    def hosts(self) -> int:
        return math.ceil(self.devices / DEVICES_PER_HOST)

    @property
    def reports_per_s(self) -> float:
        return self.hosts / Budget().host_report_s

    @property
    def report_ms(self) -> float:
        """Processor time of ssgmd for one report of a host."""
        cores = self.figures("scheduler.fleet", "daemon_cores")
        return 1000 * cores / self.figures("scheduler.fleet", "reports_per_s")

    @property
    def job_ms(self) -> float:
        """Of a busy ssgmd for one job, at most: the daemon of a small system at its highest rate,
        where calls share wakes and syncs, and the core of this size.

        The core of the small system is in it twice.
        """
        return self.figures("scale.rate", "scheduler_ms_per_job_most") + self.core_ms

    @property
    def core_ms(self) -> float:
        """Of the core alone for one job, on `DEVICES`."""
        return self.figures("scale.hour", "core_us_per_job") / 1000

    @property
    def scheduler_cores(self) -> float:
        return (self.jobs_per_s * self.job_ms + self.reports_per_s * self.report_ms) / 1000

    def of_program_ms(self, name: str) -> float:
        """Processor time of another program for one job."""
        return self.figures("scheduler.job_cost", f"{name}_cpu_ms_per_job")

    @property
    def split_jobs_per_hour(self) -> float:
        """Jobs an hour at which one ssgmd uses `USABLE` of its core, with so many devices."""
        left = USABLE - self.reports_per_s * self.report_ms / 1000
        return HOUR_S * 1000 * left / self.job_ms

    @property
    def split_devices(self) -> float:
        """Devices at which it does, with so many jobs."""
        left = USABLE - self.jobs_per_s * self.job_ms / 1000
        per_host = self.report_ms / 1000 / Budget().host_report_s
        return DEVICES_PER_HOST * left / per_host

    def log_jobs_per_hour(self, engine: str) -> float:
        """Jobs whose calls a journal in that log stores in an hour, 32 calls at once."""
        cycles_per_s = self.figures.product("scheduler.cycles", f"{engine}_group_ratio_32")
        return HOUR_S * cycles_per_s * CYCLE_GROUPS / JOB_GROUPS


Row = Sequence[str]


def costs(scale: Scale) -> Iterator[Row]:
    """Each part: its slope, how often a second has it, and the result."""
    rate, figures = scale.jobs_per_s, scale.figures
    jobs = f"{rate:.0f} jobs"
    minutes = figures("scale.hour", "simulated_minutes")
    core = f"its core, {minutes:g} minutes simulated with {DEVICES:,} devices"
    daemon_ms = scale.job_ms - scale.core_ms
    most = figures("scale.rate", "jobs_per_s_most")
    busy = f"busy (at {most:.0f} jobs/s): wire, journal, a small core"
    for part, own_ms in ((busy, daemon_ms), (core, scale.core_ms)):
        yield (f"`ssgmd`: {part}", f"{own_ms:.2f} ms a job", jobs, _cores(rate * own_ms / 1000))
    yield (
        f"`ssgmd`: {scale.hosts:,} hosts report",
        f"{scale.report_ms:.2f} ms a report",
        f"{scale.reports_per_s:.0f} reports",
        _cores(scale.reports_per_s * scale.report_ms / 1000),
    )
    yield ("**`ssgmd` in all**", "", "", f"**{_cores(scale.scheduler_cores)}**, one process")
    own_ms = scale.of_program_ms("orchestrator")
    cores = rate * own_ms / 1000
    replicas = math.ceil(cores / USABLE)
    text = f"{_cores(cores)}: {replicas} replicas"
    yield ("orchestrators", f"{own_ms:.1f} ms a job", jobs, text)
    for name in ("console", "collector"):
        own_ms = scale.of_program_ms(name)
        yield (name, f"{own_ms:.1f} ms a job", jobs, _cores(rate * own_ms / 1000))
    own_ms = scale.of_program_ms("gpud")
    on_host = rate * own_ms / 1000 / scale.hosts
    yield (
        "`gpud`, without its workers",
        f"{own_ms:.1f} ms a job",
        jobs,
        f"{on_host:.4f} of a host",
    )
    written = figures("scale.hour", "journal_bytes_per_job")
    text = f"{rate * written / 1e6:.1f} MB/s, {HOUR_S * rate * written / 1e9:.1f} GB an hour"
    yield ("journal", f"{written:,.0f} bytes a job", jobs, text)
    records = figures("scale.hour", "records")
    mib, took_s = figures("scale.hour", "recovered_mib"), figures("scale.hour", "recovered_s")
    text = f"{mib:,.0f} MiB; a start reads it in {took_s:.0f} s"
    yield ("state in memory", f"{scale.devices:,} devices, {records:,.0f} records", "", text)


def limits(scale: Scale) -> Iterator[Row]:
    """Each limit of one scheduler, and the rate or number at which it is reached."""
    parameters = Parameters()
    least = f"{scale.split_jobs_per_hour / 1e6:.2f} million jobs an hour"
    yield (
        f"{USABLE:.0%} of a core for `ssgmd`",
        f"**{least}** on {scale.devices:,} devices",
        "a second cell",
    )
    text = f"{scale.split_devices:,.0f} devices, with a million jobs an hour"
    if scale.split_devices < 0:
        text = "no number: a million jobs an hour are too many by themselves"
    yield ("the same, by devices", text, "a second cell; or longer `host_report_s`")
    most = scale.figures("scale.rate", "jobs_per_s_most") * HOUR_S / 1e6
    text = f"{most:.2f} million jobs an hour, beside its driver on the same two cores"
    yield ("the most that was served", text, "a second cell")
    emulated = {"dynamodb": "the embedded cloud's DynamoDB", "s3": "the embedded cloud's S3"}
    for engine, name in {"postgres": "PostgreSQL on this machine", **emulated}.items():
        rate = scale.log_jobs_per_hour(engine) / 1e6
        text = f"{rate:.2f} million jobs an hour, with 32 calls at once"
        yield (f"a journal in {name}", text, "more calls at once share an append")
    p99_ms = scale.figures("scheduler.decision", "decision_p99_ms_10000x100000")
    text = f"{p99_ms:.2f} ms for 99 % of decisions at 10,000 devices × 100,000 waiting requests"
    yield ("one decision", text, "none is needed at this size")
    past_min = 60 * (parameters.records_max or 0) / scale.jobs_per_hour
    text = f"{parameters.records_max:,}: the last {past_min:.0f} minutes of a million jobs an hour"
    yield ("`records_max`", text, "more memory; the collector has the rest of the past")
    yield ("`leases_max`", f"{parameters.leases_max:,} live leases", "`ssgm set`")
    yield ("`waiting_max`", f"{parameters.waiting_max:,} waiting requests", "`ssgm set`")
    text = (
        f"{(parameters.key_rate_per_s or 0) * HOUR_S / 1e6:.1f} million requests an hour of one key"
    )
    yield ("`key_rate_per_s`", text, "a key for each orchestrator")
    yield ("quotas and weights", f"{TENANTS_MAX:,} tenants", "a second cell")


def rungs(scale: Scale) -> Iterator[Row]:
    """The ladder: each rung, its limit and the figure that it comes from."""
    burst = scale.figures("dispatch", "burst_throughput") * HOUR_S
    yield (
        "laptop: `orchgpu up`",
        f"{_thousands(burst)} jobs an hour on two cores, functions included",
        "`dispatch`",
        "the cores of the machine",
    )
    one = USABLE * HOUR_S * 1000 / scale.of_program_ms("orchestrator")
    yield (
        "one account: `orchgpu infra`",
        f"{_thousands(one)} jobs an hour of one orchestrator",
        "`scheduler.job_cost`",
        "its core: add replicas; Lambda's concurrency",
    )
    loss = f"{Budget().granting_again_s:.2f} s and the work"
    log = min(scale.split_jobs_per_hour, scale.log_jobs_per_hour("dynamodb"))
    yield (
        "standby: a second `ssgmd`, journal in a log",
        f"{_thousands(log)} jobs an hour; a loss costs {loss} at most",
        "`scheduler.cycles`",
        "appends to the log, or the scheduler's core",
    )
    most = scale.split_jobs_per_hour
    yield (
        "fleet: hosts come and go, several orchestrators",
        f"{_thousands(most)} jobs an hour, {scale.devices:,} devices",
        "`scale.rate`, `scale.hour`",
        "one core of `ssgmd`",
    )
    yield (
        "cells: several of these systems",
        "the sum of the cells, which share nothing",
        "not measured together",
        "accounts and regions",
    )


def _cores(cores: float) -> str:
    return f"{cores:.2f} cores"


def _thousands(count: float) -> str:
    return f"{round(count, -3):,.0f}"

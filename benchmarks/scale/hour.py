"""An hour of 1,000,000 jobs on 10,000 devices: processor time of the scheduler's core.

    core_cores          processor seconds of the core in a second of that hour, entries encoded
    core_us_per_job     of all decisions but the reports of hosts, after the first sixth
    core_us_per_report  of one report of a host, every `host_report_s`
    job_growth_ratio    core_us_per_job in the last sixth / in the second sixth
    decision_…_ms       of all decisions; `us_OP` is the mean of each kind
    journal_bytes_per_job
    recovered_s         a fresh process reads and applies the state at the end, and grows by
    recovered_mib       (devices, leases, records of ended jobs)

The simulator (`simulator.workloads`) drives the production core: hosts with warm workers, Poisson
arrivals, a queue. Each job makes the calls of a real one: attempt, staged, and a renewal if it had
to wait; its session opens, frees its device and closes; its worker stays warm; the lease is cut;
the job finishes. Time is processor time of this thread, with garbage collection as in `ssgmd`.
Wire, journal file and the processes of `ssgmd` are not in it (`benchmarks.scale.rate`).

    python -m benchmarks.scale.hour [--json] [--minutes N] [--hosts N] [--jobs-per-hour N]

`--minutes 60` is the whole hour; fewer are its beginning, and rates are the same. Records of ended
jobs stop to grow in number after `records_max`, which is 12 minutes at this rate.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import report
from benchmarks.measure import resident_mib
from corekit.budget import Budget
from corekit.cli.progress import Bar
from corekit.ids import HostId, IdSource, JobId
from corekit.machine import Decision
from corekit.values import Value
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.collection import visited_once
from gpu_scheduler.model import GrantedLease, Usage
from gpu_scheduler.parameters import Parameters
from gpu_scheduler.policy_registry import installed_policies
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.changes import Entry, decode_entry, encode_entry
from simulator.workloads.engine import Engine
from simulator.workloads.jobs import Job, Running
from simulator.workloads.model import ANY_DEVICE, Arrival, HostSpec, Run, Timing, Workload

HOSTS, DEVICES_EACH, JOBS_PER_HOUR = 1250, 8, 1_000_000
TENANTS, WORKLOADS = 20, 50
#: Compute of a job, in percent of a device: half a device on average.
COMPUTE_PCT = (25, 50, 75)
#: Part of all compute that running jobs have on average.
OCCUPANCY = 0.8
SPREAD = 0.5  #: of execution: the mean is exp(SPREAD² / 2) of the median
START_S = 1.0  #: from a grant to the session
LOADING_S = 5.0
SEED = 1
PARTS = 6  #: of the time, for the growth


@dataclass
class Spent:
    """Processor time of decisions, and what they wrote."""

    took_s: array[float] = field(default_factory=lambda: array("d"))
    seconds: defaultdict[str, float] = field(  #: by kind of event
        default_factory=lambda: defaultdict(float)
    )
    count: Counter[str] = field(default_factory=Counter)
    journal_bytes: int = 0

    def add(self, kind: str, took_s: float, written: int) -> None:
        self.took_s.append(took_s)
        self.seconds[kind] += took_s
        self.count[kind] += 1
        self.journal_bytes += written

    @property
    def of_jobs_s(self) -> float:
        """Seconds of everything but the reports of hosts."""
        return sum(self.seconds.values()) - self.seconds["report"]


class TimedMachine(SchedulerMachine):
    """A machine in use, whose decisions are timed from now on."""

    def __init__(self, machine: SchedulerMachine) -> None:
        self.__dict__.update(machine.__dict__)
        self.spent = Spent()

    def handle(self, event: on.Event) -> Decision[Entry, do.Action]:
        began_s = time.thread_time()
        decision = super().handle(event)
        written = [encode_entry(entry) for entry in decision.changes]
        took_s = time.thread_time() - began_s
        self.spent.add(_kind(event), took_s, sum(map(len, written)))
        return decision


def _kind(event: on.Event) -> str:
    if isinstance(event, on.Asked):
        return ops.OP_NAMES[type(event.op)]
    if isinstance(event, on.HostAsked):
        if isinstance(event.op, host_ops.SessionChange):
            return event.op.state.value
        if isinstance(event.op, host_ops.Report) and event.op.residents:
            return "residents"
        return type(event.op).__name__.lower()
    return type(event).__name__.lower()


class Part(NamedTuple):
    """Of a part of the time."""

    took_s: float
    journal_bytes: float
    jobs: float  #: that ended


class Hour(Engine):
    """The engine with job records and reports of hosts, and with arrivals drawn one by one.

    Jobs are forgotten when they end, so that the engine's own memory stays small.
    """

    def __init__(self, run: Run, rate_per_s: float, bar: Bar) -> None:
        super().__init__(run, SEED, configured=Parameters())
        self._rate_per_s, self._bar = rate_per_s, bar
        self._stream = random.Random(f"{SEED}/arrivals")
        self._names = tuple(run.workloads)
        self._asked = 0
        self.done = 0
        self.waited_s: array[float] = array("d")
        self.timed = TimedMachine(self.machine)
        self.machine = self.timed
        self.parts: list[Part] = []

    def simulate(self) -> list[Job]:
        """Run for the duration; the jobs that have not ended."""
        report_s = Budget().host_report_s
        for number, host in enumerate(self.hosts):
            self.call_at(report_s * number / len(self.hosts), partial(self._host_reports, host, 0))
        self._draw()
        for part in range(PARTS):
            before = self._until_now()
            self.advance(self.run_.duration_s * (part + 1) / PARTS)
            pairs = zip(self._until_now(), before, strict=True)
            self.parts.append(Part(*(now - then for now, then in pairs)))
            self._bar.draw(part + 1, f"{self.done:,} jobs")
        return list(self._by_attempt.values())

    def _until_now(self) -> Part:
        return Part(self.timed.spent.of_jobs_s, self.timed.spent.journal_bytes, self.done)

    def _draw(self) -> None:
        at_s = self.now_s + self._stream.expovariate(self._rate_per_s)
        arrival = Arrival(
            at_s=at_s,
            workload=self._stream.choice(self._names),
            tenant=f"t{self._stream.randrange(TENANTS)}",
            execution_normal=self._stream.gauss(0.0, 1.0),
        )
        self.call_at(at_s, partial(self._arrive, arrival))

    def _arrive(self, arrival: Arrival) -> None:
        self._asked += 1
        workload = self.run_.workloads[arrival.workload]
        attempt = f"{self._asked:040x}:1"  # as the scheduler names it: job and number
        self.ask(workload.request(arrival.tenant), arrival, workload, attempt)
        self.jobs.clear()
        self._draw()

    def _host_reports(self, name: HostId, look: int) -> None:
        """The figures of all devices of a host, which differ from those of the report before."""
        usage = tuple(
            Usage(device=device, memory_used_mib=1000 + look % 1000, utilisation_pct=look % 100)
            for device in self.hosts[name].devices
        )
        self.ask_as_host(name, host_ops.Report(usage=usage))
        self.call_at(
            self.now_s + Budget().host_report_s, partial(self._host_reports, name, look + 1)
        )

    # ------------------------------------------------------------------ the calls of a real job

    def ask_op(self, op: ops.Op[Value]) -> list[do.Action]:
        """Request a lease for a job with a record."""
        if isinstance(op, ops.Reserve):
            holder, _, _ = op.attempt.partition(":")
            op = ops.Attempt(
                holder=JobId(holder),
                n=1,
                revision=0,
                request=op.request,
                handle=f"handle-{holder}",
                block=_block(holder),
            )
        return super().ask_op(op)

    def _begin(self, granted: GrantedLease) -> None:
        super()._begin(granted)
        job = self._by_attempt[granted.lease.attempt]
        self.waited_s.append(self.now_s - job.asked_s)
        holder, _, _ = job.attempt.partition(":")
        self.ask_op(ops.StagedOp(holder=JobId(holder), lease=granted.lease.id, connect_by_s=150.0))

    def _finish(self, running: Running) -> None:
        state = host_ops.SessionState.FREED
        freed = host_ops.SessionChange(
            lease=running.lease, state=state, nonce="n", loading_s=running.job.loading_s
        )
        self.ask_as_host(running.host, freed)
        super()._finish(running)
        self.ask_as_host(running.host, host_ops.Cut(lease=running.lease))
        holder, _, _ = running.job.attempt.partition(":")
        self.ask_op(ops.Finish(holder=JobId(holder), outcome="SUCCEEDED", reason="NONE", detail=""))
        del self._by_attempt[running.job.attempt]
        self.done += 1


def _block(holder: str) -> dict[str, Any]:
    """The orchestrator's part of a record: function and input."""
    source = {
        "bucket": "detect-in",
        "key": f"uploads/{holder}.jpg",
        "version_id": holder[-32:],
        "etag": holder[-32:],
        "size": 120_000,
        "event_name": "ObjectCreated:Put",
        "event_time": "2023-11-14T22:13:20.000Z",
    }
    return {"function": "detect", "input": source}


def run_of(hosts: int, jobs_per_hour: int, minutes: float) -> Run:
    """Devices and workloads; the length of a job gives the devices their occupancy."""
    devices, mean_pct = hosts * DEVICES_EACH, statistics.mean(COMPUTE_PCT)
    mean_s = OCCUPANCY * devices / (jobs_per_hour / 3600 * mean_pct / 100)
    execution = Timing(median_s=mean_s / 2.718281828459045 ** (SPREAD**2 / 2), spread=SPREAD)
    workloads = {
        f"w{number}": Workload(
            name=f"w{number}",
            execution={ANY_DEVICE: execution},
            loading={ANY_DEVICE: Timing(median_s=LOADING_S)},
            start=Timing(median_s=START_S),
            memory_mib=2048 * (1 + number % 4),
            compute_pct=COMPUTE_PCT[number % len(COMPUTE_PCT)],
        )
        for number in range(WORKLOADS)
    }
    spec = HostSpec(name="gpu", devices=DEVICES_EACH, hosts=hosts, memory_mib=40_960)
    return Run(hosts=(spec,), workloads=workloads, duration_s=60 * minutes, drain=False)


def simulated(hosts: int, jobs_per_hour: int, minutes: float, bar: Bar) -> Hour:
    """The beginning of the hour, of that many minutes."""
    hour = Hour(run_of(hosts, jobs_per_hour, minutes), jobs_per_hour / 3600, bar)
    hour.simulate()
    return hour


def recovered(path: Path) -> dict[str, float]:
    """Seconds and MiB of this process for the state in a file, entry by entry."""
    machine = SchedulerMachine(Budget(), IdSource(1), Parameters(), installed_policies())
    before_mib, began_s = resident_mib(), time.process_time()
    with path.open("rb") as file:
        for line in file:
            machine.apply(decode_entry(line))
    took_s = time.process_time() - began_s
    grown_mib = resident_mib() - before_mib
    return {
        "s": took_s,
        "mib": grown_mib,
        "records": len(machine.state.records),
        "bytes": path.stat().st_size,
    }


def _recovered_elsewhere(machine: SchedulerMachine) -> dict[str, float]:
    """The same in a process of its own, so that its memory can be measured."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        with path.open("wb") as file:
            file.writelines(encode_entry(Entry(parts=(one,))) + b"\n" for one in machine.parts())
        command = [sys.executable, "-m", "benchmarks.scale.hour", "--recover", str(path)]
        done = subprocess.run(command, cwd=report.ROOT, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def figures(hour: Hour, state: dict[str, float]) -> Iterator[report.Figure]:
    """All figures of a run."""
    spent, duration_s = hour.timed.spent, hour.run_.duration_s
    total_s, reports = sum(spent.seconds.values()), spent.count["report"]
    ordered_ms = [1000 * took_s for took_s in sorted(spent.took_s)]
    count = len(ordered_ms)
    _, *later = hour.parts  # in the first one, jobs begin that do not end yet
    jobs = sum(part.jobs for part in later)
    us_per_job = 1e6 * sum(part.took_s for part in later) / jobs
    first_us, last_us = (1e6 * part.took_s / part.jobs for part in (later[0], later[-1]))
    yield report.Figure("core_cores", total_s / duration_s, "cores")
    yield report.Figure("core_us_per_job", us_per_job, "µs")
    yield report.Figure("core_us_per_report", 1e6 * spent.seconds["report"] / reports, "µs")
    before = "µs of a job in the second sixth"
    ratio = last_us / first_us
    yield report.Figure(
        "job_growth_ratio", ratio, "", before, first_us, ratio=ratio, target="<= 1.5"
    )
    for name, at in (("p50", count // 2), ("p99", count * 99 // 100), ("longest", count - 1)):
        yield report.Figure(f"decision_{name}_ms", ordered_ms[at], "ms")
    for kind, number in sorted(spent.count.items()):
        if number >= hour.done // 2:
            yield report.Figure(f"us_{kind}", 1e6 * spent.seconds[kind] / number, "µs")
    written = sum(part.journal_bytes for part in later) / jobs
    yield report.Figure("journal_bytes_per_job", written, "bytes")
    waited_s = sorted(hour.waited_s)
    yield report.Figure("waited_p99_s", waited_s[len(waited_s) * 99 // 100], "s")
    yield report.Figure("simulated_minutes", duration_s / 60, "min")
    yield report.Figure("jobs", hour.done, "")
    yield report.Figure("devices", len(hour.devices), "")
    yield report.Figure("records", state["records"], "")
    yield report.Figure("recovered_s", state["s"], "s")
    yield report.Figure("recovered_mib", state["mib"], "MiB")
    yield report.Figure("state_mib", state["bytes"] / 2**20, "MiB")


def main() -> None:
    """Run and print."""
    parser = report.arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of the hour, from its begin")
    parser.add_argument(
        "--hosts", type=int, default=HOSTS, help=f"with {DEVICES_EACH} devices each"
    )
    parser.add_argument("--jobs-per-hour", type=int, default=JOBS_PER_HOUR)
    parser.add_argument("--recover", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.recover is not None:
        print(json.dumps(recovered(options.recover)))
        return
    bar = Bar(PARTS, quiet=options.json)
    with visited_once():
        hour = simulated(options.hosts, options.jobs_per_hour, options.minutes, bar)
    bar.clear()
    found = figures(hour, _recovered_elsewhere(hour.machine))
    report.show("scale.hour", list(found), as_json=options.json)


if __name__ == "__main__":
    main()

"""What leases ahead win: short jobs on one device whose functions start late.

`python -m benchmarks.advance [--json] [--jobs N] [--without]`. A standing queue of jobs that ask
for the whole device; the functions start by the events of their envelopes, which the cloud
delays. `busy` is the time in which the user's code had the device over the time for which leases
held it, without the first 3 and the last 2 leases. `--without`: only the half without leases ahead.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.report import Figure, arguments, show
from benchmarks.system import System, local_system
from contract.keys import job_id, result_key
from corekit.ids import JobId
from fdl.keys.jobs import JOB
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import JobLease, Record
from gpu_scheduler.protocol import ops

FIRST, LAST = 3, 2  #: leases that do not count: the queue fills, and runs empty
LOOK_EVERY_S = 0.2
LIMIT_S = 400.0
SCRIPT = "#!/bin/sh\nsleep {:g}\n: > $TMP_OUTPUT_DIR/done\n"
_NEAR = "none:event_s=0.2-1"
_FAR = "none:event_s=0.2-5,event_late_rate=0.02,event_late_s=30-90"


@dataclass(frozen=True)
class Case:
    """Jobs of one length in one weather."""

    metric: str
    job_s: float
    weather: str
    target: str | None = None


CASES = (
    Case("busy_2s", 2.0, _NEAR, ">= 0.95"),
    Case("busy_500ms", 0.5, _NEAR, ">= 0.85"),
    Case("busy_2s_late", 2.0, _FAR),
)


@dataclass(frozen=True)
class Use:
    """Seconds of one device, and of the functions that use it."""

    busy: float  #: part of the held time, in the steady state
    busy_all: float
    device_s: float  #: from the first booking to the last release
    function_wait_s: float


async def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--without", action="store_true", help="without leases ahead alone")
    parser.add_argument("--cases", default=",".join(case.metric for case in CASES))
    options = parser.parse_args()
    figures: list[Figure] = []
    for case in CASES:
        if case.metric in options.cases.split(","):
            figures += await _measured(case, options.jobs, only_without=options.without)
    show("advance", figures, as_json=options.json)


async def _measured(case: Case, jobs: int, *, only_without: bool) -> list[Figure]:
    with local_system("--weather", case.weather) as system:
        async with SchedulerClient(system.scheduler) as scheduler:
            memory_mib = await _one_device(scheduler)
            without = await _use(system, scheduler, case, jobs, "off", memory_mib)
            if only_without:
                return _figures(f"{case.metric}_without", without, None)
            ahead = await _use(system, scheduler, case, jobs, "auto", memory_mib)
    won_s = without.device_s - ahead.device_s
    figures = [
        *_figures(case.metric, ahead, case.target),
        *_figures(f"{case.metric}_without", without, None),
    ]
    if won_s > 0:
        paid = ahead.function_wait_s / won_s
        name = f"function_s_per_device_s_won{case.metric.removeprefix('busy')}"
        figures.append(Figure(name, paid, "ratio"))
    return figures


def _figures(metric: str, use: Use, target: str | None) -> list[Figure]:
    return [
        Figure(metric, use.busy, "ratio", target=target),
        Figure(f"{metric}_all", use.busy_all, "ratio"),
    ]


async def _one_device(scheduler: SchedulerClient) -> int:
    """Drain all CPU devices but one; returns its memory."""
    inventory = await scheduler.inventory()
    devices = [
        (host.host, view.device)
        for host in inventory.hosts
        for view in host.devices
        if view.device.kind == "cpu"
    ]
    for host, device in devices[1:]:
        await scheduler.ask(ops.Drain(host=host, device=device.id, revoke=False))
    return devices[0][1].memory_mib


async def _use(
    system: System,
    scheduler: SchedulerClient,
    case: Case,
    jobs: int,
    advance: str,
    memory_mib: int,
) -> Use:
    name = f"job{case.job_s * 1000:g}-{advance}"
    _deploy(system, name, case, advance, memory_mib)
    records = await _run(system, scheduler, name, jobs)
    bodies = [_times(system, name, record) for record in records]
    leases = [(_last(record), times) for record, times in zip(records, bodies, strict=True)]
    leases.sort(key=lambda one: held_from_s(one[0]))
    steady = leases[FIRST : len(leases) - LAST]
    first_s = held_from_s(leases[0][0])
    return Use(
        busy=_busy(steady),
        busy_all=_busy(leases),
        device_s=max(lease.freed_s or 0.0 for lease, _ in leases) - first_s,
        function_wait_s=sum(waited_s(lease) for lease, _ in leases),
    )


def _deploy(system: System, name: str, case: Case, advance: str, memory_mib: int) -> None:
    """Without leases ahead the key is left out where it is unknown: such a system has none."""
    terms = {} if advance == "off" and "advance" not in JOB.keys else {"advance": advance}
    gpu = {"memory": memory_mib, "kinds": ["cpu"]}
    job = {"start": "event", **terms}
    system.deploy(name, SCRIPT.format(case.job_s), timeout_s=300, gpu=gpu, job=job)


async def _run(system: System, scheduler: SchedulerClient, name: str, jobs: int) -> list[Record]:
    """Records of jobs that were all asked for at once, in any order."""
    s3 = system.client("s3")
    ids = []
    for number in range(jobs):
        made = s3.put_object(Bucket=f"{name}-in", Key=f"{number}", Body=b"x")
        ids.append(JobId(job_id(f"{name}-in", f"{number}", made["VersionId"], name)))
    async with asyncio.timeout(LIMIT_S):
        return [await finished(scheduler, job) for job in ids]


async def finished(scheduler: SchedulerClient, job: JobId) -> Record:
    while True:
        record = (await scheduler.ask(ops.RecordOf(holder=job))).record
        if record is not None and record.outcome is not None:
            if record.outcome != "SUCCEEDED":
                raise RuntimeError(f"{job}: {record.outcome} {record.reason}")
            return record
        await asyncio.sleep(LOOK_EVERY_S)


def _times(system: System, name: str, record: Record) -> Mapping[str, Any]:
    """The times of the user's code, as the runner wrote them."""
    key = result_key(JobId(record.holder))
    body = system.client("s3").get_object(Bucket=f"{name}-intermediate", Key=key)["Body"].read()
    times: Mapping[str, Any] = json.loads(body)["times"]
    return times


def _last(record: Record) -> JobLease:
    """The lease that its code had."""
    return record.leases[-1]


def held_from_s(lease: JobLease) -> float:
    return lease.granted_s if lease.booked_s is None else lease.booked_s


def waited_s(lease: JobLease) -> float:
    """At most so long did its function wait: from the grant until its shares were free."""
    return 0.0 if lease.booked_s is None else max(0.0, lease.booked_s - lease.granted_s)


def _busy(leases: Sequence[tuple[JobLease, Mapping[str, Any]]]) -> float:
    """The part of the held time in which the user's code ran; gaps between leases are not held."""
    code_s = sum(float(times["EEnd"] - times["EStart"]) for _, times in leases)
    held_s: float = sum((lease.freed_s or 0.0) - held_from_s(lease) for lease, _ in leases)
    return code_s / held_s


if __name__ == "__main__":
    asyncio.run(main())

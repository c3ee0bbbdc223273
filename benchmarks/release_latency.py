"""How long a device is held for jobs of 2 s: ours beside a port of the published loop.

`python -m benchmarks.release_latency [--json] [--jobs N]`. Both run the same 2 s of work on the
same cloud and scheduler, one device each, one after the other. `held_efficiency` is job seconds
over held seconds (job = the user's code, from its start to its end).
"""

from __future__ import annotations

import asyncio
import json
import time

import aioboto3

from benchmarks.floor import deploy_floor
from benchmarks.published_loop import ClassicSsgm, PublishedLoop
from benchmarks.report import Figure, arguments, show
from benchmarks.system import System, local_system
from contract.keys import job_id, result_key
from corekit.ids import JobId
from corekit.net.addresses import parse_address
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.protocol import ops

NAME = "two-seconds"
JOB_S = 2.0
SCRIPT = f"#!/bin/sh\nsleep {JOB_S:g}\n: > $TMP_OUTPUT_DIR/done\n"
_SLEEP = f"time.sleep({JOB_S})"


async def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--jobs", type=int, default=10, help="jobs of ours")
    parser.add_argument("--published-jobs", type=int, default=2, help="a minute each")
    options = parser.parse_args()
    with local_system() as system:
        ours = await _ours(system, options.jobs)
        theirs = await _theirs(system, options.published_jobs)
    show("release_latency", _figures(ours, theirs), as_json=options.json)


async def _ours(system: System, count: int) -> list[tuple[float, float]]:
    """(job seconds, held seconds) of every job; each has a device to itself, one at a time."""
    async with SchedulerClient(system.scheduler) as scheduler:
        devices = await device_mib(scheduler)
        system.deploy(NAME, SCRIPT, memory_mib=devices)
        await _run_ours(system, scheduler, "warm")
        return [await _run_ours(system, scheduler, f"job-{n}") for n in range(count)]


async def device_mib(scheduler: SchedulerClient) -> int:
    """Memory of the smaller device: a job that asks for it has a device of its own."""
    inventory = await scheduler.inventory()
    return min(
        view.device.memory_mib
        for host in inventory.hosts
        for view in host.devices
        if view.device.kind == "cpu"
    )


async def _run_ours(system: System, scheduler: SchedulerClient, key: str) -> tuple[float, float]:
    s3 = system.client("s3")
    made = s3.put_object(Bucket=f"{NAME}-in", Key=key, Body=b"x")
    job = job_id(f"{NAME}-in", key, made["VersionId"], NAME)
    granted_s = freed_s = 0.0
    while True:
        live = [lease for lease in await scheduler.leases() if lease.holder == job]
        holding = any(lease.state in ("RESERVED", "ACTIVE") for lease in live)
        now_s = time.monotonic()
        granted_s = granted_s or (now_s if holding else 0.0)
        if granted_s and not holding:
            freed_s = freed_s or now_s
        record = (await scheduler.ask(ops.RecordOf(holder=JobId(job)))).record
        if record is not None and record.outcome is not None:
            break
        await asyncio.sleep(0.002)
    if record.outcome != "SUCCEEDED":
        raise RuntimeError(f"{job}: {record.outcome} {record.reason}")
    body = s3.get_object(Bucket=f"{NAME}-intermediate", Key=result_key(job))["Body"].read()
    times = json.loads(body)["times"]
    return times["EEnd"] - times["EStart"], (freed_s or time.monotonic()) - granted_s


async def _theirs(system: System, count: int) -> list[tuple[float, float]]:
    deploy_floor(system, work=_SLEEP)
    ssgm = ClassicSsgm(*parse_address(system.scheduler), words=("-kinds", "cpu"))
    return await _run_published(system, ssgm, count)


async def _run_published(
    system: System, ssgm: ClassicSsgm, count: int
) -> list[tuple[float, float]]:
    session = aioboto3.Session()
    where = system.aws()
    async with session.client("s3", **where) as s3, session.client("sqs", **where) as sqs:
        url = (await sqs.get_queue_url(QueueName="floor-jobs"))["QueueUrl"]
        for number in range(count):
            await s3.put_object(Bucket="floor-in", Key=f"published-{number}.txt", Body=b"x")
        loop = PublishedLoop(
            s3, sqs, url, "floor-in", "floor-mid", "floor-out", ssgm.allocate, ssgm.release
        )
        await loop.run(count)
    return [(JOB_S, released - allocated) for allocated, released in loop.held]


def _figures(ours: list[tuple[float, float]], theirs: list[tuple[float, float]]) -> list[Figure]:
    def per_minute(runs: list[tuple[float, float]]) -> float:
        return 60.0 * len(runs) / sum(held for _, held in runs)

    ratio = per_minute(ours) / per_minute(theirs)
    efficiency = sum(job for job, _ in ours) / sum(held for _, held in ours)
    return [
        Figure(
            "jobs_per_device_minute_ratio",
            ratio,
            "ratio",
            "published loop, jobs per device minute",
            per_minute(theirs),
            target=">= 20",
        ),
        Figure("jobs_per_device_minute", per_minute(ours), "1/min"),
        Figure("held_efficiency", efficiency, "ratio", target=">= 0.95"),
    ]


if __name__ == "__main__":
    asyncio.run(main())

"""What orchestration costs: a no-op job on a warm function, beside the bare calls of `floor.py`.

`python -m benchmarks.dispatch [--json] [--jobs N] [--burst N]`. Ours and the floor take turns, one
job at a time; then each gets a burst. Slots: two hosts whose memory holds four such jobs each.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.floor import LOOK_EVERY_S, Floor, deploy_floor, running_floor
from benchmarks.report import Figure, arguments, show
from benchmarks.system import System, local_system
from contract.keys import job_id, result_key
from corekit.ids import JobId
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import Record
from gpu_scheduler.protocol import ops

NAME = "noop"
SLOTS = 8
SCRIPT = "#!/bin/sh\n: > $TMP_OUTPUT_DIR/done\n"
WARM_UP = 80  #: jobs at once: as many sandboxes as a burst needs are warm then


@dataclass
class Times:
    """Seconds of one kind of pipeline."""

    start: list[float] = field(default_factory=list)  #: PUT → user's code
    finished: list[float] = field(default_factory=list)  #: PUT → finished


async def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--burst", type=int, default=200)
    options = parser.parse_args()
    with local_system() as system:
        memory = await _slot_mib(system)
        system.deploy(NAME, SCRIPT, memory_mib=memory)
        deploy_floor(system)
        async with (
            SchedulerClient(system.scheduler) as scheduler,
            running_floor(system, SLOTS) as floor,
        ):
            await _own_many(system, scheduler, WARM_UP, "warm")
            await _floor_many(system, floor, WARM_UP, "warm")
            mark = system.orchestrator_log.stat().st_size
            before_s = system.orchestrator_cpu_s()
            ours, bare = await _turns(system, scheduler, floor, options.jobs)
            cpu_ms = (system.orchestrator_cpu_s() - before_s) / options.jobs * 1000
            own_ms = system.own_times_ms(mark)
            sync_ms = _sync_ms(system.home / "sync", options.jobs)
            own_s = await _own_many(system, scheduler, options.burst, "burst")
            floor_s = await _floor_many(system, floor, options.burst, "burst")
    figures = _figures(ours, bare, own_ms, options.burst / own_s, options.burst / floor_s)
    sync = Figure("bare_sync_p50_ms", statistics.median(sync_ms), "ms")
    cpu = Figure("orchestrator_cpu_ms_per_job", cpu_ms, "ms", target="<= 4")
    show("dispatch", [*figures, cpu, sync], as_json=options.json)


async def _slot_mib(system: System) -> int:
    async with SchedulerClient(system.scheduler) as scheduler:
        inventory = await scheduler.inventory()
    cpus = [
        view.device.memory_mib
        for host in inventory.hosts
        for view in host.devices
        if view.device.kind == "cpu"
    ]
    return min(cpus) // (SLOTS // len(cpus))


async def _turns(
    system: System, scheduler: SchedulerClient, floor: Floor, count: int
) -> tuple[Times, Times]:
    ours, bare = Times(), Times()
    s3 = system.client("s3")
    for number in range(count):
        await _own_one(s3, scheduler, f"turn-{number}", ours)
        await _floor_one(s3, floor, f"turn-{number}", bare)
    return ours, bare


async def _own_one(s3: Any, scheduler: SchedulerClient, key: str, times: Times) -> None:
    put_s = time.time()
    made = await asyncio.to_thread(s3.put_object, Bucket=f"{NAME}-in", Key=key, Body=b"x" * 1024)
    job = job_id(f"{NAME}-in", key, made["VersionId"], NAME)
    record = await _finished(scheduler, job)
    body = s3.get_object(Bucket=f"{NAME}-intermediate", Key=result_key(job))["Body"].read()
    times.start.append(json.loads(body)["times"]["EStart"] - put_s)
    times.finished.append(record.times["ENDED"] - put_s)


async def _finished(scheduler: SchedulerClient, job: str) -> Record:
    """The record of a job once it has ended."""
    give_up_s = time.monotonic() + 60.0
    while time.monotonic() < give_up_s:
        record = (await scheduler.ask(ops.RecordOf(holder=JobId(job)))).record
        if record is not None and record.outcome is not None:
            if record.outcome != "SUCCEEDED":
                raise RuntimeError(f"{job}: {record.outcome} {record.reason}")
            return record
        await asyncio.sleep(LOOK_EVERY_S)
    raise TimeoutError(f"{job} is not finished after a minute")


async def _floor_one(s3: Any, floor: Floor, key: str, times: Times) -> None:
    put_s = time.time()
    await asyncio.to_thread(s3.put_object, Bucket="floor-in", Key=key, Body=b"x" * 1024)
    finished_s = await floor.wait(key)
    times.start.append(await floor.started_at(key) - put_s)
    times.finished.append(finished_s - put_s)


def _put_many(system: System, bucket: str, names: list[str]) -> list[str]:
    s3 = system.client("s3")

    def put(name: str) -> str:
        made = s3.put_object(Bucket=bucket, Key=name, Body=b"x" * 1024)
        return str(made.get("VersionId", ""))

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(put, names))


async def _own_many(system: System, scheduler: SchedulerClient, count: int, prefix: str) -> float:
    names = [f"{prefix}-{n}" for n in range(count)]
    started_s = time.time()
    versions = await asyncio.to_thread(_put_many, system, f"{NAME}-in", names)
    ended = []
    for name, version in zip(names, versions, strict=True):
        record = await _finished(scheduler, job_id(f"{NAME}-in", name, version, NAME))
        ended.append(record.times["ENDED"])
    return max(ended) - started_s


async def _floor_many(system: System, floor: Floor, count: int, prefix: str) -> float:
    names = [f"{prefix}-{n}" for n in range(count)]
    started_s = time.time()
    await asyncio.to_thread(_put_many, system, "floor-in", names)
    return max([await floor.wait(name) for name in names]) - started_s


def _sync_ms(path: Path, count: int) -> list[float]:
    """Bare appends of 1 KiB made durable beside the journal: own time holds three such."""
    taken = []
    with path.open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, count * 1024)
        for _ in range(count):
            started_s = time.perf_counter()
            file.write(b"x" * 1024)
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - started_s) * 1000)
    return taken


def _figures(
    ours: Times, bare: Times, own_ms: list[float], own_rate: float, floor_rate: float
) -> list[Figure]:
    own_p99 = statistics.quantiles(own_ms, n=100)[98]
    burst = own_rate / floor_rate
    return [
        _ratio("put_to_start_p50_ratio", ours.start, bare.start),
        _ratio("put_to_finished_p50_ratio", ours.finished, bare.finished),
        Figure(
            "burst_throughput_ratio", burst, "ratio", "floor, jobs/s", floor_rate, target=">= 0.5"
        ),
        Figure("burst_throughput", own_rate, "jobs/s"),
        Figure("own_time_p99_ms", own_p99, "ms", target="<= 3"),
        Figure("own_time_p50_ms", statistics.median(own_ms), "ms"),
    ]


def _ratio(metric: str, ours: list[float], bare: list[float]) -> Figure:
    mine_ms, floor_ms = statistics.median(ours) * 1000, statistics.median(bare) * 1000
    ratio = mine_ms / floor_ms
    return Figure(
        metric, ratio, "ratio", f"floor, ms (ours {mine_ms:.1f} ms)", floor_ms, target="<= 1.5"
    )


if __name__ == "__main__":
    asyncio.run(main())

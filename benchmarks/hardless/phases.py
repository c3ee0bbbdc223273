"""Phases P0, P1, P2 of uploads through a whole local system, and the moments of every job."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.hardless.devices import OPERATION, TestSystem
from benchmarks.system import System, local_system
from contract.keys import job_id
from corekit.cli.progress import Bar
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import Record
from orchgpu.job_measures import moments_of

NAME = "detect"
#: The request of a job: the same with and without the VPU. With a guarantee of 25 % a device has
#: four leases: for each slot of a GPU one that runs, and one whose function is ready for the slot.
GPU: Mapping[str, Any] = {
    "kinds": ["cuda", "vpu"],
    "memory": 128,
    "placement": "spread",
    "compute": {"guarantee": 25},
}
SCRIPT = f"""#!/usr/bin/env -S python3 -S
import json, os
import remote_gpu.client as gpu
source = os.environ["INPUT_FILE_PATH"]
with open(source, "rb") as file:
    data = file.read()
with gpu.connect() as device:
    found = device.op("{OPERATION}", data, model="tiny-yolo").values["emulated"]
name = os.path.basename(source) + ".json"
with open(os.path.join(os.environ["TMP_OUTPUT_DIR"], name), "w") as file:
    json.dump(found, file)
"""
#: Jobs before the first phase: functions, and their programs, are warm then.
WARM_UP = 12
LOOK_EVERY_S = 1.0
#: Without a further end of a job, the run is over.
STALLED_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A length and a rate, both in unscaled seconds."""

    length_s: float
    rate_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One event and what became of it; moments in unscaled seconds since the first phase began."""

    moments: dict[str, float | None]
    succeeded: bool
    device: str = ""
    model: str = ""
    loading_ms: float = 0.0  #: unscaled
    ready_ms: float = 0.0  #: from the grant of its lease to the session of its function, real

    @property
    def on_vpu(self) -> bool:
        return "Movidius" in self.model


def offsets_s(phases: Sequence[Phase]) -> list[float]:
    """When each event is uploaded, since the first phase began."""
    found: list[float] = []
    begin_s = 0.0
    for phase in phases:
        count = round(phase.length_s * phase.rate_per_s)
        found += [begin_s + number / phase.rate_per_s for number in range(count)]
        begin_s += phase.length_s
    return found


async def run_phases(devices: TestSystem, phases: Sequence[Phase], *, quiet: bool) -> list[Job]:
    """All jobs of the phases on a system of its own."""
    with tempfile.TemporaryDirectory(prefix="hardless-") as folder:
        file = devices.write(Path(folder))
        with local_system("--emulate", str(file)) as system:
            system.deploy(NAME, SCRIPT, gpu=GPU)
            async with SchedulerClient(system.scheduler) as scheduler:
                warm = await _upload(system, [0.0] * WARM_UP, "warm")
                await _finished(scheduler, [job for job, _ in warm], lambda _: None)
                scaled = [offset * devices.time_scale for offset in offsets_s(phases)]
                bar = Bar(2 * len(scaled), quiet=quiet)
                uploaded = await _upload(system, scaled, "event", bar)
                jobs = [job for job, _ in uploaded]
                records = await _finished(
                    scheduler, jobs, lambda n: bar.draw(len(jobs) + n, f"{n} of {len(jobs)} ended")
                )
                bar.end()
            return await asyncio.to_thread(_jobs, system, uploaded, records, devices.time_scale)


async def _upload(
    system: System, offsets: Sequence[float], prefix: str, bar: Bar | None = None
) -> list[tuple[str, float]]:
    """The ids of the jobs, each with the wall clock of its upload."""
    s3 = system.client("s3")
    began_s = time.time()

    def put(number: int) -> tuple[str, float]:
        key, put_s = _key(prefix, number), time.time()
        made = s3.put_object(Bucket=f"{NAME}-in", Key=key, Body=key.encode())
        return job_id(f"{NAME}-in", key, made["VersionId"], NAME), put_s

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(8) as pool:
        running = []
        for number, offset_s in enumerate(offsets):
            await asyncio.sleep(max(0.0, began_s + offset_s - time.time()))
            running.append(loop.run_in_executor(pool, put, number))
            if bar is not None:
                bar.draw(number + 1, f"{number + 1} of {len(offsets)} uploaded")
        return list(await asyncio.gather(*running))


def _key(prefix: str, number: int) -> str:
    return f"{prefix}-{number:06d}"


async def _finished(
    scheduler: SchedulerClient, jobs: Sequence[str], show: Callable[[int], None]
) -> dict[str, Record]:
    """The records of the jobs once all have ended, or once none ends any more."""
    done: dict[str, Record] = {}
    heard_s = time.monotonic()
    while len(done) < len(jobs) and time.monotonic() < heard_s + STALLED_S:
        await asyncio.sleep(LOOK_EVERY_S)
        before, wanted = len(done), set(jobs)
        async for record in _records(scheduler):
            if record.outcome is not None and record.holder in wanted:
                done[record.holder] = record
        if len(done) > before:
            heard_s = time.monotonic()
            show(len(done))
    return done


async def _records(scheduler: SchedulerClient) -> AsyncIterator[Record]:
    after: str | None = None
    while page := await scheduler.records(after=after):
        for record in page:
            yield record
        after = page[-1].holder


def _jobs(
    system: System,
    uploaded: Sequence[tuple[str, float]],
    records: Mapping[str, Record],
    scale: float,
) -> list[Job]:
    """Every uploaded job with its moments; the device's own values are in its output."""
    s3 = system.client("s3")
    began_s = uploaded[0][1]

    def one(item: tuple[int, tuple[str, float]]) -> Job:
        number, (job, put_s) = item
        record = records.get(job)
        if record is None or record.outcome != "SUCCEEDED":
            times = {} if record is None else record.times
            moments = moments_of(put_s, times, {})
            return Job(moments=_unscaled(moments, began_s, scale), succeeded=False)
        key = f"{_key('event', number)}.json"
        found = json.loads(s3.get_object(Bucket=f"{NAME}-out", Key=key)["Body"].read())
        computed = {"EStart": found["started_s"], "EEnd": found["ended_s"]}
        return Job(
            moments=_unscaled(moments_of(put_s, record.times, computed), began_s, scale),
            succeeded=True,
            device=found["device"],
            model=found["model"],
            loading_ms=found["loading_ms"] / scale,
            ready_ms=(record.times["RUNNING"] - record.times["RESERVED"]) * 1000,
        )

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(one, enumerate(uploaded)))


def _unscaled(
    moments: dict[str, float | None], began_s: float, scale: float
) -> dict[str, float | None]:
    return {n: None if s is None else (s - began_s) / scale for n, s in moments.items()}

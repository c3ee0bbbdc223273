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
from corekit.ids import JobId
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import Record
from gpu_scheduler.protocol import ops
from orchgpu.jobs.measures import moments_of

#: With a guarantee of 25 % a device has four leases: for each slot of a GPU one that runs, and one
#: whose function is ready for the slot.
GUARANTEE_PCT = 25
LEASES = 100 // GUARANTEE_PCT  #: of a device at the same time
POLICY = "warm_first"
#: The workers of all leases of a device may stay warm.
WARM = {"warm_workers_max": "16", "warm_memory_pct_max": "100"}
_SCRIPT = """#!/usr/bin/env -S python3 -S
import json, os
import remote_gpu.client as gpu
source = os.environ["INPUT_FILE_PATH"]
with open(source, "rb") as file:
    data = file.read()
with gpu.connect() as device:
    found = device.op("OPERATION", data, model="WORKLOAD").values["emulated"]
name = os.path.basename(source) + ".json"
with open(os.path.join(os.environ["TMP_OUTPUT_DIR"], name), "w") as file:
    json.dump(found, file)
"""
#: Jobs of each workload before the first phase: functions, and their programs, are warm then.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of its own, and its workload: the n-th event is one of the n-th in turn."""

    name: str

    @property
    def workload(self) -> str:
        return f"tiny-yolo-{self.name}"

    @property
    def script(self) -> str:
        return _SCRIPT.replace("OPERATION", OPERATION).replace("WORKLOAD", self.workload)

    @property
    def gpu(self) -> dict[str, Any]:
        """The request of its jobs: the same with and without the VPU."""
        return {
            "kinds": ["cuda", "vpu"],
            "memory": 128,
            "placement": "spread",
            "compute": {"guarantee": GUARANTEE_PCT},
            "workload": self.workload,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """One event that was sent."""

    function: Function
    key: str
    job: str
    put_s: float  #: wall clock


def functions(count: int) -> list[Function]:
    """So many functions, each with a workload of its own."""
    return [Function(name=f"detect-{number + 1}") for number in range(count)]


def offsets_s(phases: Sequence[Phase]) -> list[float]:
    """When each event is uploaded, since the first phase began."""
    found: list[float] = []
    begin_s = 0.0
    for phase in phases:
        count = round(phase.length_s * phase.rate_per_s)
        found += [begin_s + number / phase.rate_per_s for number in range(count)]
        begin_s += phase.length_s
    return found


async def run_phases(
    devices: TestSystem, phases: Sequence[Phase], workloads: int, *, quiet: bool
) -> tuple[list[Job], list[Job]]:
    """The jobs before the phases, and those of the phases, on a system of its own."""
    used, scale = functions(workloads), devices.time_scale
    with tempfile.TemporaryDirectory(prefix="hardless-") as folder:
        file = devices.write(Path(folder))
        with local_system("--emulate", str(file)) as system:
            for function in used:
                system.deploy(function.name, function.script, gpu=function.gpu)
            async with SchedulerClient(system.scheduler) as scheduler:
                for name, value in {"policy": POLICY, **WARM}.items():
                    await scheduler.ask(ops.SetParameter(name=name, value=value))
                before = await _upload(system, used, [0.0] * WARM_UP * workloads, "warm")
                ended = await _finished(scheduler, before, lambda _: None)
                scaled = [offset * scale for offset in offsets_s(phases)]
                count, bar = len(scaled), Bar(2 * len(scaled), quiet=quiet)
                uploads = await _upload(system, used, scaled, "event", bar)
                records = await _finished(
                    scheduler, uploads, lambda n: bar.draw(count + n, f"{n} of {count} ended")
                )
                bar.clear()
            warm_up = await asyncio.to_thread(_jobs, system, before, ended, scale)
            return warm_up, await asyncio.to_thread(_jobs, system, uploads, records, scale)


async def _upload(
    system: System,
    used: Sequence[Function],
    offsets: Sequence[float],
    prefix: str,
    bar: Bar | None = None,
) -> list[Upload]:
    """The events, each uploaded at its time."""
    s3 = system.client("s3")
    began_s = time.time()

    def put(number: int) -> Upload:
        function, key, put_s = used[number % len(used)], f"{prefix}-{number:06d}", time.time()
        bucket = f"{function.name}-in"
        made = s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
        job = job_id(bucket, key, made["VersionId"], function.name)
        return Upload(function=function, key=key, job=job, put_s=put_s)

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(8) as pool:
        running = []
        for number, offset_s in enumerate(offsets):
            await asyncio.sleep(max(0.0, began_s + offset_s - time.time()))
            running.append(loop.run_in_executor(pool, put, number))
            if bar is not None:
                bar.draw(number + 1, f"{number + 1} of {len(offsets)} uploaded")
        return list(await asyncio.gather(*running))


async def _finished(
    scheduler: SchedulerClient, uploads: Sequence[Upload], show: Callable[[int], None]
) -> dict[str, Record]:
    """The records of the jobs once all have ended, or once none ends any more."""
    done: dict[str, Record] = {}
    heard_s, wanted = time.monotonic(), {upload.job for upload in uploads}
    while len(done) < len(wanted) and time.monotonic() < heard_s + STALLED_S:
        await asyncio.sleep(LOOK_EVERY_S)
        before = len(done)
        async for record in _records(scheduler):
            if record.outcome is not None and record.holder in wanted:
                done[record.holder] = record
        if len(done) > before:
            heard_s = time.monotonic()
            show(len(done))
    return done


async def _records(scheduler: SchedulerClient) -> AsyncIterator[Record]:
    after: JobId | None = None
    while page := (await scheduler.ask(ops.Records(after=after))).records:
        for record in page:
            yield record
        after = page[-1].holder


def _jobs(
    system: System, uploads: Sequence[Upload], records: Mapping[str, Record], scale: float
) -> list[Job]:
    """Every uploaded job with its moments; the device's own values are in its output."""
    s3 = system.client("s3")
    began_s = uploads[0].put_s

    def one(upload: Upload) -> Job:
        record = records.get(upload.job)
        if record is None or record.outcome != "SUCCEEDED":
            times = {} if record is None else record.times
            moments = moments_of(upload.put_s, times, {})
            return Job(moments=_unscaled(moments, began_s, scale), succeeded=False)
        output = s3.get_object(Bucket=f"{upload.function.name}-out", Key=f"{upload.key}.json")
        found = json.loads(output["Body"].read())
        computed = {"EStart": found["started_s"], "EEnd": found["ended_s"]}
        moments = moments_of(upload.put_s, record.times, computed)
        return Job(
            moments=_unscaled(moments, began_s, scale),
            succeeded=True,
            device=found["device"],
            model=found["model"],
            loading_ms=found["loading_ms"] / scale,
            ready_ms=(record.times["RUNNING"] - record.times["RESERVED"]) * 1000,
        )

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(one, uploads))


def _unscaled(
    moments: dict[str, float | None], began_s: float, scale: float
) -> dict[str, float | None]:
    return {n: None if s is None else (s - began_s) / scale for n, s in moments.items()}

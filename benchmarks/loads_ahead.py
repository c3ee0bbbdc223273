"""What loads for leases ahead win: workloads in turns on one device, each with a model to load.

`python -m benchmarks.loads_ahead [--json] [--jobs N]`. A standing queue of jobs of three workloads
in turns on one emulated device, which has memory for a lease and for two warm workers; each call
takes 1.5 s, and its model 2 s to load. Both halves have leases ahead and warm workers; only one has
loads ahead (`warm_loads_max`). `busy` is the time of the calls without their loading over the time
for which leases held the device, without the first two jobs of each workload and the last two jobs.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.advance import LIMIT_S, finished, held_from_s, waited_s
from benchmarks.report import Figure, arguments, show
from benchmarks.system import System, local_system
from contract.keys import job_id
from corekit.ids import JobId
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import JobLease
from gpu_scheduler.protocol import ops

CALL_S, LOADING_S = 1.5, 2.0
WORKLOADS = 3
FIRST, LAST = 2 * WORKLOADS, 2  #: jobs that do not count: times are learned, the queue runs empty
DEVICE = f"""
devices:
- kind: vpu
  model: benchmark
  memory_mib: 1000
  operations:
    detect: {{warm_ms: {CALL_S * 1000:g}, cold_ms: {LOADING_S * 1000:g}, memory_mib: 300}}
"""
GPU = {"kinds": ["vpu"], "memory": 400, "compute": {"guarantee": 100}}
SCRIPT = """#!/usr/bin/env -S python3 -S
import os
import remote_gpu.client as gpu
with gpu.connect() as device:
    device.op("detect", b"x", model="WORKLOAD")
open(os.path.join(os.environ["TMP_OUTPUT_DIR"], "done"), "w").close()
"""


@dataclass(frozen=True)
class Use:
    """The device with its jobs, in the steady state."""

    busy: float
    warm: float  #: part of the leases whose workers loaded nothing
    ahead: float  #: part of the leases whose workers had loaded before
    jobs_per_min: float
    function_wait_s: float  #: of each job


async def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--jobs", type=int, default=32)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="loads-ahead-") as folder:
        file = Path(folder) / "devices.yaml"
        file.write_text(DEVICE)
        with local_system("--weather", "none:event_s=0.2-1", "--emulate", str(file)) as system:
            figures = await _measured(system, options.jobs)
    show("loads_ahead", figures, as_json=options.json)


async def _measured(system: System, jobs: int) -> list[Figure]:
    figures: list[Figure] = []
    async with SchedulerClient(system.scheduler) as scheduler:
        await scheduler.ask(ops.SetParameter(name="policy", value="fifo"))
        for name, loads_max in (("without", 0), ("with", 1)):
            await scheduler.ask(ops.SetParameter(name="warm_loads_max", value=loads_max))
            use = await _use(system, scheduler, name, jobs)
            figures += [
                Figure(f"busy_{name}", use.busy, "ratio"),
                Figure(f"starts_warm_{name}", use.warm, "ratio"),
                Figure(f"loaded_ahead_{name}", use.ahead, "ratio"),
                Figure(f"jobs_per_min_{name}", use.jobs_per_min, "1/min"),
                Figure(f"function_wait_{name}", use.function_wait_s, "s"),
            ]
    return figures


async def _use(system: System, scheduler: SchedulerClient, name: str, jobs: int) -> Use:
    functions = [f"{name}-{number}" for number in range(WORKLOADS)]
    for function in functions:
        script, job = SCRIPT.replace("WORKLOAD", function), {"start": "event", "advance": "auto"}
        system.deploy(function, script, timeout_s=300, gpu=GPU | {"workload": function}, job=job)
    s3, ids = system.client("s3"), []
    for number in range(jobs):
        function = functions[number % WORKLOADS]
        made = s3.put_object(Bucket=f"{function}-in", Key=f"{number}", Body=b"x")
        ids.append(JobId(job_id(f"{function}-in", f"{number}", made["VersionId"], function)))
        while (await scheduler.ask(ops.RecordOf(holder=ids[-1]))).record is None:
            await asyncio.sleep(0.02)  # they are served in this order
    async with asyncio.timeout(LIMIT_S):
        records = [await finished(scheduler, job) for job in ids]
    leases = sorted((record.leases[-1] for record in records), key=held_from_s)
    return _figures(leases[FIRST : len(leases) - LAST])


def _figures(leases: Sequence[JobLease]) -> Use:
    held_s = sum((one.freed_s or 0.0) - held_from_s(one) for one in leases)
    whole_s = max(one.freed_s or 0.0 for one in leases) - held_from_s(leases[0])
    return Use(
        busy=CALL_S * len(leases) / held_s,
        warm=sum(one.loading_s == 0 for one in leases) / len(leases),
        ahead=sum(one.loaded_ahead_s is not None for one in leases) / len(leases),
        jobs_per_min=60 * len(leases) / whole_s,
        function_wait_s=sum(map(waited_s, leases)) / len(leases),
    )


if __name__ == "__main__":
    asyncio.run(main())

"""Jobs and devices under kill -9 of the orchestrator: ours beside a port of the published loop.

Both get the same files at once, 2 s of work each, on two devices; the orchestrating process is
killed four seconds after the start and twice more, and started again at once.

    NAME_done_pct          jobs with an output by the end of the time
    NAME_again             jobs that were started more than once
    NAME_left              devices still held at that moment
    NAME_held_s            device-seconds held until then

`python -m benchmarks.killed_loops [--json] [--jobs N] [--seconds S]`. What the published loop does
not finish within S is not lost in every case: a message that it had received comes back when its
visibility ends, after an hour.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aioboto3

from benchmarks.floor import deploy_floor
from benchmarks.published_loop import ClassicSsgm, PublishedLoop
from benchmarks.release_latency import SCRIPT, device_mib
from benchmarks.report import Figure, arguments, show
from benchmarks.system import System, local_system
from corekit.net.addresses import parse_address
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import Lease, LeaseState

NAME = "two-seconds"
#: Seconds after the uploads at which the process is killed.
KILLS_S = (4.0, 9.0, 14.0)
LOOK_EVERY_S = 0.1
RESTARTED_WITHIN_S = 60.0
#: What the bare function does: its work, and a mark for each time that it ran.
WORK = (
    's3.put_object(Bucket="floor-mid", Key=f"ran/{key}/{time.time()}", Body=b""); time.sleep(2.0)'
)
#: States of leases that hold a device: one that is ENDING has given it back, while its function
#: writes its outputs.
HOLDING = frozenset({LeaseState.RESERVED, LeaseState.ACTIVE})


@dataclass
class Outcome:
    """Jobs and devices of one loop at the end of its time."""

    jobs: int
    done: int = 0
    again: int = 0
    left: int = 0
    held_s: float = 0.0

    def figures(self, name: str) -> list[Figure]:
        return [
            Figure(f"{name}_done_pct", 100 * self.done / self.jobs, "%"),
            Figure(f"{name}_again", self.again, ""),
            Figure(f"{name}_left", self.left, ""),
            Figure(f"{name}_held_s", self.held_s, "s"),
        ]


async def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=180.0, help="of each loop, at most")
    parser.add_argument("--published", help="internal: serve as the published loop")
    options = parser.parse_args()
    if options.published:
        await _serve(System(home=Path(), environment={}, **json.loads(options.published)))
        return
    with local_system() as system:
        ours = await _ours(system, options.jobs, options.seconds)
        theirs = await _theirs(system, options.jobs, options.seconds)
    show(
        "killed_loops", [*ours.figures("ours"), *theirs.figures("published")], as_json=options.json
    )


# ---------------------------------------------------------------------- ours


async def _ours(system: System, jobs: int, seconds: float) -> Outcome:
    async with SchedulerClient(system.scheduler) as scheduler:
        system.deploy(NAME, SCRIPT, memory_mib=await device_mib(scheduler))

    def results() -> list[dict[str, Any]]:
        s3, bucket = system.client("s3"), f"{NAME}-intermediate"
        keys = _keys(s3, bucket, "results/")
        return [json.loads(s3.get_object(Bucket=bucket, Key=k)["Body"].read()) for k in keys]

    outcome = await _watched(
        system, f"{NAME}-in", jobs, seconds, lambda: len(results()), _kill_ours
    )
    outcome.again = sum(result["attempt"] > 1 for result in results())
    return outcome


def _kill_ours(system: System) -> None:
    """`orchgpu up` starts it again, and notes its new process."""
    killed, give_up_s = None, time.monotonic() + RESTARTED_WITHIN_S
    while killed is None:
        if time.monotonic() > give_up_s:
            raise TimeoutError(f"`orchgpu up` has no orchestrator for {RESTARTED_WITHIN_S:g} s")
        state = json.loads((system.home / "system.json").read_text())
        (pid,) = [one["pid"] for one in state["processes"] if one["name"] == "orchestrator"]
        with contextlib.suppress(ProcessLookupError, TypeError):  # between two processes
            os.kill(pid, signal.SIGKILL)
            killed = pid
        time.sleep(LOOK_EVERY_S)


# ---------------------------------------------------------------------- the published one


async def _theirs(system: System, jobs: int, seconds: float) -> Outcome:
    deploy_floor(system, work=WORK)
    s3, loop = system.client("s3"), _Process(system)
    try:
        outcome = await _watched(
            system,
            "floor-in",
            jobs,
            seconds,
            lambda: len(_keys(s3, "floor-out", "")),
            lambda _: loop.kill(),
        )
    finally:
        loop.end()
    runs = Counter(key.split("/")[1] for key in _keys(s3, "floor-mid", "ran/"))
    outcome.again = sum(times > 1 for times in runs.values())
    return outcome


class _Process:
    """The published loop as a program that is started again whenever it is killed."""

    def __init__(self, system: System) -> None:
        where = {"endpoint": system.endpoint, "scheduler": system.scheduler}
        module = (sys.executable, "-m", "benchmarks.killed_loops")
        self._command = (*module, "--published", json.dumps(where))
        self._process = subprocess.Popen(self._command)

    def kill(self) -> None:
        self.end()
        self._process = subprocess.Popen(self._command)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


async def _serve(system: System) -> None:
    ssgm = ClassicSsgm(*parse_address(system.scheduler), words=("-kinds", "cpu"))
    session, where = aioboto3.Session(), system.aws()
    async with session.client("s3", **where) as s3, session.client("sqs", **where) as sqs:
        url = (await sqs.get_queue_url(QueueName="floor-jobs"))["QueueUrl"]
        buckets = ("floor-in", "floor-mid", "floor-out")
        await PublishedLoop(s3, sqs, url, *buckets, ssgm.allocate, ssgm.release).run(sys.maxsize)


# ---------------------------------------------------------------------- both


async def _watched(
    system: System,
    bucket: str,
    jobs: int,
    seconds: float,
    done: Callable[[], int],
    kill: Callable[[System], None],
) -> Outcome:
    """Upload, kill at the stated moments, and look until all is done or the time is over."""
    s3, outcome = system.client("s3"), Outcome(jobs=jobs)
    for number in range(jobs):
        s3.put_object(Bucket=bucket, Key=f"job-{number}.txt", Body=b"x")
    began_s = looked_s = time.monotonic()
    kills = deque(KILLS_S)
    async with SchedulerClient(system.scheduler) as scheduler:
        while looked_s - began_s < seconds and (
            kills or outcome.left or outcome.done < outcome.jobs
        ):
            await asyncio.sleep(LOOK_EVERY_S)
            if kills and looked_s - began_s >= kills[0]:
                kills.popleft()
                await asyncio.to_thread(kill, system)
            outcome.done = await asyncio.to_thread(done)
            outcome.left = devices_held(await scheduler.leases())
            now_s = time.monotonic()
            outcome.held_s += outcome.left * (now_s - looked_s)
            looked_s = now_s
    return outcome


def devices_held(leases: Iterable[Lease]) -> int:
    """The devices that leases have; one granted ahead waits for those of other leases."""
    holding = [one for one in leases if one.state in HOLDING and not one.after]
    return len({(share.host, share.device) for one in holding for share in one.shares})


def _keys(s3: Any, bucket: str, prefix: str) -> list[str]:
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [entry["Key"] for page in pages for entry in page.get("Contents", ())]


if __name__ == "__main__":
    asyncio.run(main())

"""`kill -9` of each program while a lease waits ahead: no job is lost, none runs twice, and nothing
is left. Programs, moments and lengths are drawn."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.states import Reason
from gpu_scheduler.client import SchedulerClient
from orchgpu.jobs.known import Scheduled, scheduled
from orchgpu.jobs.waiting import reason_of_wait
from tests.e2e.live import FunctionSpec, Live, live_system, until
from tests.lease_overlaps import read_overlaps

HOST, MEMORY_MIB = "gpu-a", 2048
#: Functions start late, so that the next one is started while its predecessor runs.
WEATHER = "none:event_s=0.2-0.8"
SCRIPT = """#!/bin/sh
sleep {}
cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/"
"""
#: Attempts that a host or a function's process took with it count; a job meets a few such ends.
JOB = {"start": "event", "advance": 30, "attempts": 10}
GPU = {"memory": MEMORY_MIB}
FUNCTIONS = {
    "brief": FunctionSpec(SCRIPT.format(0.5), timeout=60, gpu=GPU, job=JOB),
    "longer": FunctionSpec(SCRIPT.format(1.5), timeout=60, gpu=GPU, job=JOB),
}
PROGRAMS = ("scheduler", HOST, "orchestrator", "function")
STANDING = 5  #: jobs that are not over


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A system with one device; its jobs have taught the scheduler their times."""
    with live_system(tmp_path_factory.mktemp("live"), weather=WEATHER) as system:
        system.start_together("cloud", "scheduler")
        for name in (HOST, "orchestrator"):
            system.start(name)
        system.deploy(FUNCTIONS)
        for name in FUNCTIONS:
            for number in range(3):
                job = system.upload(name, f"teaches-{number}")
                assert system.result(name, job).state == "SUCCEEDED"
        yield system


class Jobs:
    """A queue of jobs that is never empty."""

    def __init__(self, live: Live, seed: int, stream: random.Random) -> None:
        self._live = live
        self._seed = seed
        self._stream = stream
        self._ended: set[str] = set()  #: their records are forgotten after a while
        self.functions: dict[str, str] = {}  #: of each job

    def fill(self) -> None:
        """Upload inputs until enough jobs are not over."""
        steps = self._live.steps()
        self._ended.update(job for job in self.functions if steps.get(job) == "ENDED")
        for _ in range(STANDING + len(self._ended) - len(self.functions)):
            name = self._stream.choice(tuple(FUNCTIONS))
            job = self._live.upload(name, f"{self._seed}-{len(self.functions)}")
            self.functions[job] = name


def test_a_job_that_waits_ahead_says_so(live: Live) -> None:
    jobs = Jobs(live, 0, random.Random(0))
    shown = until("a job that waits ahead", functools.partial(shown_ahead, live, jobs))
    assert shown.waits is not None
    assert reason_of_wait(shown.waits) is Reason.AHEAD
    assert "is granted ahead: lease " in shown.waits.sentence
    assert f" on {HOST}/" in shown.waits.sentence
    assert f", behind {shown.waits.after[0]}, and expects its device in" in shown.waits.sentence
    for job, name in jobs.functions.items():
        assert live.result(name, job).state == "SUCCEEDED"
    live.quiet(*FUNCTIONS)


def shown_ahead(live: Live, jobs: Jobs) -> Scheduled | None:
    """A job that waits ahead, as `orchgpu job` reads it."""
    jobs.fill()
    return asyncio.run(_shown_ahead(str(live.ready["scheduler"]["socket"])))


async def _shown_ahead(address: str) -> Scheduled | None:
    async with SchedulerClient(address) as client:
        ahead = [lease.holder for lease in await client.leases() if lease.after]
        for job in ahead:
            found = None if job is None else await scheduled(client, job)
            if found is not None and found.waits is not None and found.waits.after:
                return found
    return None


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("seed", "kills"),
    [(1, len(PROGRAMS)), *(pytest.param(seed, 50, marks=pytest.mark.soak) for seed in range(2, 6))],
)
def test_nothing_is_lost_doubled_or_left(live: Live, seed: int, kills: int) -> None:
    stream, killed = random.Random(seed), Counter[str]()
    jobs = Jobs(live, seed, stream)
    while killed.total() < kills:
        until("a lease ahead", functools.partial(next_ahead, live, jobs))
        time.sleep(stream.uniform(0.0, 0.4))
        order = sorted(PROGRAMS, key=lambda one: (killed[one], stream.random()))
        if waits_ahead(live):  # still
            killed.update(kill(live, order[: stream.choice((1, 1, 1, 2))], stream))
    for job, name in jobs.functions.items():
        result = live.result(name, job, within_s=180.0)
        assert (result.state, len(result.files)) == ("SUCCEEDED", 1), result
    live.quiet(*FUNCTIONS)
    for name in FUNCTIONS:
        assert live.messages(name, "dlq") == 0
        outputs = [key for key in written(live, name) if key.startswith(f"{seed}-")]
        assert len(outputs) == sum(one == name for one in jobs.functions.values())
    until("idle functions", lambda: not running(live))
    until("an idle host", lambda: {gauge(live, "gpud_leases"), gauge(live, "gpud_sessions")} == {0})
    lines = (live.home.state(HOST) / "leases.jsonl").read_text().splitlines()
    assert read_overlaps(lines, {f"{HOST}/cpu0": MEMORY_MIB}) == []
    assert set(killed) == set(PROGRAMS)


def next_ahead(live: Live, jobs: Jobs) -> bool:
    jobs.fill()
    return waits_ahead(live)


def waits_ahead(live: Live) -> bool:
    return any(lease.get("after") for lease in live.leases())


def kill(live: Live, victims: list[str], stream: random.Random) -> list[str]:
    """Kill programs together, and start them again; those that were there."""
    found = []
    for victim in victims:
        if victim != "function":
            live.signal(victim, signal.SIGKILL)
        elif pids := running(live):
            with contextlib.suppress(ProcessLookupError):
                os.kill(stream.choice(pids), signal.SIGKILL)
        else:
            continue
        found.append(victim)
    programs = [one for one in found if one != "function"]
    for program in programs:
        live.wait(program)
    live.start_together(*programs)
    return found


def running(live: Live) -> list[int]:
    """The processes of functions that are invoked now."""
    cloud, pids = live.children["cloud"].pid, []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environment = (folder / "environ").read_bytes().split(b"\0")
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            is_function = any(one.startswith(b"AWS_LAMBDA_FUNCTION_NAME=") for one in environment)
            if is_function and int(parent) == cloud and state not in "TtZ":
                pids.append(int(folder.name))
    return sorted(pids)


def written(live: Live, function: str) -> list[str]:
    """The key of every version of an output file of a function."""
    pages = live.client("s3").get_paginator("list_object_versions")
    found = pages.paginate(Bucket=f"{function}-out")
    return [one["Key"] for page in found for one in page.get("Versions", ())]


def gauge(live: Live, name: str) -> float:
    address = str(live.ready[HOST]["metrics"]).removeprefix("http://")
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{"))

"""Jobs of the function `copy`, and a program killed every few seconds until all have a result."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable

from botocore.exceptions import BotoCoreError, ClientError

from contract.keys import result_key
from contract.result import Result
from corekit.errors import ErrorCode
from orchgpu.ports import Tolerating
from tests.e2e.live import Live, until


def storm(
    live: Live,
    count: int,
    seed: int,
    pause_s: float,
    kill: Callable[[int, random.Random], None],
    job_s: float = 20.0,
) -> int:
    """No job is lost, and no result is ever another one; the number of faults.

    `kill`: the n-th fault, of a program that runs again when it returns.
    """
    chance, first = random.Random(seed), dict[str, bytes]()
    s3 = live.client("s3")
    jobs = {live.upload("copy", f"{n}.txt", b"%d" % n): n for n in range(count)}
    waiting = list(jobs)
    ends_s = time.monotonic() + 60 + job_s * count
    kills = 0
    while waiting:
        assert time.monotonic() < ends_s, f"seed {seed}: {len(waiting)} jobs have no result"
        until_s = time.monotonic() + chance.uniform(0.5, 1.5) * pause_s
        while waiting and time.monotonic() < until_s:
            with contextlib.suppress(ClientError, BotoCoreError):
                listed = s3.list_objects_v2(Bucket="copy-intermediate", Prefix="results/")
                for entry in listed.get("Contents", ()):
                    if entry["Key"] not in first:
                        body = s3.get_object(Bucket="copy-intermediate", Key=entry["Key"])
                        first[entry["Key"]] = body["Body"].read()
            waiting = [job for job in waiting if result_key(job) not in first]
            time.sleep(0.1)
        if waiting:
            kill(kills, chance)
            kills += 1
    _check(live, jobs, first, f"seed {seed}, {kills} kills")
    return kills


def restart(live: Live, name: str, chance: random.Random) -> None:
    """Kill a program with SIGKILL, and start it within a second."""
    live.kill(name)
    time.sleep(chance.uniform(0, 1))
    live.start(name)


def _messages(live: Live) -> dict[str, int]:
    """The messages of its queues; empty while the database of own hosts is away."""
    with Tolerating(ErrorCode.UNAVAILABLE):
        return {queue: live.messages("copy", queue) for queue in ("jobs", "dlq")}
    return {}


def _check(live: Live, jobs: dict[str, int], first: dict[str, bytes], about: str) -> None:
    until("empty queues", lambda: _messages(live) == {"jobs": 0, "dlq": 0}, 180)
    until("no lease", lambda: not live.leases(), 90)
    s3 = live.client("s3")
    for job, number in jobs.items():
        key = result_key(job)
        body = s3.get_object(Bucket="copy-intermediate", Key=key)["Body"].read()
        assert body == first[key], f"{about}: the result of job {number} was written twice"
        result = Result.from_json(body)
        assert result.state == "SUCCEEDED", f"{about}: {result}"
        (file,) = result.files
        written = s3.get_object(Bucket="copy-out", Key=file["key"])["Body"].read()
        assert written == b"%d" % number, f"{about}: job {number}"

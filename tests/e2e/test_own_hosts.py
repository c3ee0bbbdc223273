"""Jobs without AWS: a store, a database and hosts of one's own; `kill -9` of each of them."""

from __future__ import annotations

import contextlib
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from contract.keys import result_key
from contract.result import Result
from orchgpu.local.programs import HOSTS
from tests.e2e.live import COPY, DEVICE, until
from tests.e2e.own_live import OwnLive, definition, messages_of, own_live

#: Programs that are killed while jobs run.
KILLED = ("cloud", "database", "orchestrator", *HOSTS)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnLive]:
    with own_live(tmp_path_factory.mktemp("own")) as system:
        system.start_all(orchestrators=())
        system.deploy_text("device", definition("device", "run.py"), {"run.py": DEVICE})
        yield system


@pytest.mark.timeout(300)
def test_an_upload_becomes_a_result_by_the_webhook(live: OwnLive) -> None:
    live.start("orchestrator")
    job = live.upload("device", "a b+ü.txt", b"data")
    result = live.result("device", job, within_s=120)
    assert (result.state, len(result.files)) == ("SUCCEEDED", 1), result
    live.quiet("device")
    shown = live.orchgpu("jobs")
    assert job in shown
    assert "SUCCEEDED" in shown
    assert live.terminate("orchestrator") == 0


@pytest.mark.timeout(300)
def test_an_upload_is_found_without_any_event(live: OwnLive) -> None:
    command = ("env", "-u", "ORCHGPU_STORE_EVENTS", sys.executable, "-m", "orchgpu")
    live.start("orchestrator", command=(*command, "orchestrate", "--search-every", "1"))
    job = live.upload("device", "unheard.txt", b"data")
    assert live.result("device", job, within_s=120).state == "SUCCEEDED"
    live.quiet("device")
    assert live.terminate("orchestrator") == 0


def storm(live: OwnLive, count: int, seed: int) -> None:
    """Jobs, and a program killed and started again after every few results until all have one.

    None is lost, and no result is ever another one.
    """
    chance, waiting, first = random.Random(seed), [], dict[str, bytes]()
    s3 = live.client("s3")
    jobs = {live.upload("copy", f"{n}.txt", b"%d" % n): n for n in range(count)}
    waiting = list(jobs)
    ends_s = time.monotonic() + 60 + 20 * count
    kills = 0
    while waiting or kills < len(KILLED):
        enough = len(first) + chance.randint(1, max(1, count // 8))
        while waiting and len(first) < enough:
            assert time.monotonic() < ends_s, f"seed {seed}: {len(waiting)} jobs have no result"
            with contextlib.suppress(ClientError, BotoCoreError):
                listed = s3.list_objects_v2(Bucket="copy-intermediate", Prefix="results/")
                for entry in listed.get("Contents", ()):
                    body = s3.get_object(Bucket="copy-intermediate", Key=entry["Key"])
                    first.setdefault(entry["Key"], body["Body"].read())
            waiting = [job for job in waiting if result_key(job) not in first]
            time.sleep(0.1)
        if waiting or kills < len(KILLED):
            name = KILLED[kills % len(KILLED)]
            kills += 1
            live.kill(name)
            time.sleep(chance.uniform(0, 1))
            live.start(name)
    check(live, jobs, first, f"seed {seed}, {kills} kills")


def check(live: OwnLive, jobs: dict[str, int], first: dict[str, bytes], about: str) -> None:
    until("empty queues", lambda: messages_of(live, "copy") == {"jobs": 0, "dlq": 0}, 180)
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


@pytest.mark.timeout(3600)
@pytest.mark.soak
@pytest.mark.parametrize(("count", "seed"), [(30, 1), (200, 2)])
def test_no_job_is_lost_or_committed_twice(tmp_path: Path, count: int, seed: int) -> None:
    with own_live(tmp_path) as live:
        live.start_all()
        text = definition("copy", "run.sh")
        live.deploy_text("copy", text, {"run.sh": COPY})
        storm(live, count, seed)

"""A function that is called over HTTP while its process and device stay, in a real system."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.live import Live, live_system
from tests.e2e.test_invoke import invoke

DEFINITION = """
functions:
  aws:
  - lambda: {name: talk, handler: talk.work, memory: 512, timeout: 1200, output: [{path: talk-out}]}
    job: {input: [{path: talk-in}]}
    gpu: {memory: 256, kinds: [cpu]}
    execution: host
    endpoint: {idle_s: 600}
"""
TALK = """
import os

def work(work):
    asked = work.input.read_text()
    if asked == "count":
        return parts()
    if asked == "fail":
        raise ValueError("out of luck")
    (work.output_folder / "answer.txt").write_text(f"{asked} {os.getpid()} {os.getppid()}")

def parts():
    for number in range(3):
        yield f"{number} "
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live_system(tmp_path_factory.mktemp("live"), scale="0.3") as system:
        system.start_all()
        system.start("console")
        system.deploy_text("talk", DEFINITION, {"talk.py": TALK})
        yield system


def called(live: Live, text: str) -> tuple[int, str]:
    """Status and body; while the endpoint opens, the call is sent again."""
    url = f"{live.ready['console']['url']}v1/functions/talk/calls"
    while True:
        try:
            with urllib.request.urlopen(url, text.encode(), timeout=120) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            if error.code != 503:
                return error.code, str(json.loads(error.read())["error"]["message"])


def test_calls_are_answered_by_one_process_and_reopened_after_its_end(live: Live) -> None:
    (_, first), (_, second) = called(live, "hello"), called(live, "again")
    assert (first.split()[0], second.split()[0]) == ("hello", "again")
    assert first.split()[1:] == second.split()[1:]
    assert invoke(live, "talk", "-", "--call", sent=b"count")[0] == b"0 1 2 "
    status, why = called(live, "fail")
    assert (status, why.endswith("ValueError: out of luck")) == (500, True)
    assert "out of luck" in invoke(live, "talk", "-", "--call", sent=b"fail", status=1)[1]
    (job,) = jobs(live)
    assert job["state"] == "RUNNING"
    assert "Contents" not in live.client("s3").list_objects_v2(Bucket="talk-out")
    kill_runner(live)
    assert called(live, "after")[1].split()[0] == "after"
    (again,) = jobs(live)
    assert (again["id"], again["attempt"]) == (job["id"], 2)
    asked(live, f"jobs/{job['id']}", "DELETE")
    assert called(live, "new")[1].split()[0] == "new"
    assert [one["state"] for one in jobs(live)] == ["RUNNING", "CANCELLED"]


def asked(live: Live, path: str, method: str = "GET") -> Any:
    url = f"{live.ready['console']['url']}v1/{path}"
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=60) as answer:
        return json.loads(answer.read())


def jobs(live: Live) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = asked(live, "jobs")["jobs"]
    return found


def kill_runner(live: Live) -> None:
    hosts = [one.pid for name, one in live.children.items() if name.startswith("gpu")]
    for pid in below(hosts):
        if b"gpu_runner.on_host" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


def below(pids: list[int]) -> list[int]:
    """All processes below these, the innermost last."""
    found = list(pids)
    for pid in found:  # grows meanwhile
        found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return found[len(pids) :]

"""This version beside the previous release, as real processes: daemon, host and client, mixed.

What is promised, and for which versions: docs/protocol.md, Versions.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remote_gpu.host.leases.lease_log import read_overlaps
from tests.integration.test_versions import ROOT, changed, command, environment, fill, shown, ssgmd
from tests.previous_release import PACKAGES, unpack

MEMORY_MIB = 256
#: An orchestrator's and a function's part of a job: a lease, a session, work, the end.
CLIENT = """
import asyncio, json, sys
import gpu_scheduler, remote_gpu
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import LeaseLifetime, Request
from remote_gpu.client import Session, connect
from remote_gpu.middleware import render

def work(connection):
    with Session.open(connection, 60) as session, connect(session.environment()) as device:
        result = device.op("noop", b"payload")
        session.give_back()
        return bytes(result.buffers[0]).decode()

async def main(address):
    async with asyncio.timeout(120), SchedulerClient(address) as client:
        while True:
            asked = await client.reserve(
                "job:1", Request(memory_mib=64), wait=True, hold=LeaseLifetime.SESSION)
            if asked.granted is not None:
                break
            await asyncio.sleep(0.05)
        done = await asyncio.to_thread(work, render("builtin", asked.granted)["connection"])
        while await client.leases():
            await asyncio.sleep(0.05)
        print(json.dumps({"done": done, "builds": [gpu_scheduler.__file__, remote_gpu.__file__]}))

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the previous release lies."""
    return unpack(tmp_path_factory.mktemp("previous"))


def build(name: str, old: Path) -> Path:
    return {"old": old, "new": ROOT}[name]


@contextlib.contextmanager
def gpud(root: Path, scheduler: str, state: Path) -> Iterator[Path]:
    """A build's host; it must end cleanly. Gives its log."""
    ready, log = state.with_suffix(".json"), state.with_suffix(".log")
    line = [sys.executable, "-m", "remote_gpu.host", "--host-id", "gpu-a", "--no-nvml"]
    line += ["--scheduler", scheduler, "--state", str(state), "--listen", "127.0.0.1:0"]
    # a user per lease could not read the packages below the folder of the tests
    line += ["--memory-mib", str(MEMORY_MIB), "--operation", "noop", "--isolation", "none"]
    line += ["--ready-file", str(ready)]
    with log.open("wb") as out:
        process = subprocess.Popen(line, stderr=out, cwd=root, env=environment(root))
    try:
        end_s = time.monotonic() + 120
        while not ready.exists():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end_s, log.read_text()
            time.sleep(0.02)
        yield log
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def ssgm(root: Path, scheduler: str, *words: str) -> Any:
    line = [sys.executable, "-m", "gpu_scheduler.client", *words, "--scheduler", scheduler]
    line += ["--json"]
    done = subprocess.run(
        line, cwd=root, env=environment(root), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("daemon", "host", "client"),
    [
        ("new", "old", "old"),
        ("old", "new", "new"),
        ("new", "new", "old"),
        ("old", "old", "new"),
    ],
)
def test_a_job_runs_with_any_two_versions(
    daemon: str, host: str, client: str, old: Path, tmp_path: Path
) -> None:
    (tmp_path / "ssgmd").mkdir()
    with ssgmd(build(daemon, old), tmp_path / "ssgmd") as running:
        address = running.address["socket"]
        with gpud(build(host, old), address, tmp_path / "host"):
            root = build(client, old)
            done = subprocess.run(
                [sys.executable, "-c", CLIENT, address],
                cwd=root,
                env=environment(root),
                capture_output=True,
                text=True,
                timeout=180,
            )
            assert done.returncode == 0, done.stderr
            answer = json.loads(done.stdout)
            assert answer["done"] == "payload"
            assert [Path(file).parents[1] for file in answer["builds"]] == [root, root]
            held = ssgm(root, address, "alloc", "-m", "64MiB", "--lease-length", "10m")
            lease = held["granted"]["lease"]["id"]
            assert [one["id"] for one in ssgm(root, address, "leases")["leases"]] == [lease]
            assert ssgm(root, address, "devices")["hosts"][0]["state"] == "UP"
            ssgm(root, address, "dealloc", lease)
    lines = (tmp_path / "host/leases.jsonl").read_text().splitlines()
    assert read_overlaps(lines, {"gpu-a/cpu0": MEMORY_MIB}) == []


def test_this_version_continues_the_journal_of_the_previous_one(old: Path, tmp_path: Path) -> None:
    with ssgmd(old, tmp_path) as daemon:
        lease = fill(daemon, "fair")
    checked = command(ROOT, tmp_path, "journal", "check", "--json")
    assert checked.returncode == 0, checked.stderr
    with ssgmd(ROOT, tmp_path) as daemon:
        leases, records, rules, overridden = shown(daemon)
    assert (leases, records) == ([lease], ["job"])
    assert (rules["policy"], rules["bypass_max"]) == ("fair", 7)
    assert set(overridden) == {"policy", "bypass_max"}


def test_the_previous_version_continues_a_journal_of_this_one(old: Path, tmp_path: Path) -> None:
    """A return after an upgrade, while nothing new is in use."""
    with ssgmd(ROOT, tmp_path) as daemon:
        lease = fill(daemon, "fair")
    with ssgmd(old, tmp_path) as daemon:
        leases, records, rules, _ = shown(daemon)
    assert (leases, records, rules["policy"]) == ([lease], ["job"], "fair")


@pytest.fixture(scope="module")
def next_protocol(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This version with the next version of the protocol; it still speaks the present one."""
    root = tmp_path_factory.mktemp("next")
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, root / package, ignore=ignored)
    changed(root, {"gpu_scheduler/protocol/codec.py": [("VERSION: int = 1", "VERSION: int = 2")]})
    return root


@pytest.mark.parametrize("newer_daemon", [True, False])
def test_the_next_version_of_the_protocol_is_understood(
    next_protocol: Path, tmp_path: Path, newer_daemon: bool
) -> None:
    daemon, other = (next_protocol, ROOT) if newer_daemon else (ROOT, next_protocol)
    inventory = tmp_path / "devices.yaml"
    inventory.write_text("devices:\n  - {kind: cuda, model: M, memory_mib: 1024}\n")
    with ssgmd(daemon, tmp_path) as running:
        address = running.address["socket"]
        line = [sys.executable, "-m", "gpu_scheduler.monitor", "--scheduler", address]
        line += ["--host-id", "h", "--inventory", str(inventory)]
        line += ["--ready-file", str(tmp_path / "host.json")]
        with (tmp_path / "host.log").open("wb") as out:
            host = subprocess.Popen(line, stderr=out, cwd=other, env=environment(other))
        try:
            end_s = time.monotonic() + 60
            while not (tmp_path / "host.json").exists():
                assert host.poll() is None, (tmp_path / "host.log").read_text()
                assert time.monotonic() < end_s, (tmp_path / "host.log").read_text()
                time.sleep(0.02)
            (found,) = ssgm(other, address, "hosts")["hosts"]
            assert (found["host"], found["state"]) == ("h", "UP")
        finally:
            host.terminate()
            host.wait()


def test_a_client_without_a_common_version_is_refused_with_the_remedy(
    tmp_path: Path,
) -> None:
    root = tmp_path / "far"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, root / package)
    far = [("VERSION: int = 1", "VERSION: int = 3"), ("N: int = 1", "N: int = 2")]
    changed(root, {"gpu_scheduler/protocol/codec.py": far})
    state = tmp_path / "state"
    state.mkdir()
    with ssgmd(ROOT, state) as running:
        line = [sys.executable, "-m", "gpu_scheduler.client", "hosts", "--scheduler"]
        done = subprocess.run(
            [*line, running.address["socket"]],
            cwd=root,
            env={**os.environ, **environment(root)},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 2
    assert "speaks versions 1 to 1: upgrade this ssgmd" in done.stderr

"""Two builds on one state: today's, and one that knows one more key, policy and kind of change.

The other build is a real one: a copy of the packages whose source is changed, run as a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from corekit.budget import Budget
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import Request
from tests.host_hello import host_hello
from tests.integration.test_ssgmd_process import Host

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("corekit", "gpu_scheduler", "contract", "fdl", "remote_gpu", "operations")

#: file → what stands there today → what stands there in the newer build
NEWER = {
    "gpu_scheduler/daemon/build.py": [("BUILD = _version()", 'BUILD = "9.9.9"')],
    "gpu_scheduler/model.py": [
        ('    driver: Word = ""', '    rack: str = "r1"\n    driver: Word = ""'),
        ("    id: LeaseId\n", '    id: LeaseId\n    mood: str = "good"\n'),
        ("    holder: JobId\n    rev", '    holder: JobId\n    mood: str = "good"\n    rev'),
    ],
    "gpu_scheduler/protocol/host.py": [
        (
            "    lease: LeaseId\n    fence: int  #: rises",
            '    lease: LeaseId\n    mood: str = "good"\n    fence: int  #: rises',
        ),
    ],
    "gpu_scheduler/protocol/changes.py": [
        (
            "    lease: LeaseId\n    state: LeaseState\n",
            '    lease: LeaseId\n    state: LeaseState\n    colour: str = "blue"\n',
        ),
    ],
}
#: The same build with a change of its own that can, or cannot, be passed over by others.
PAINTED = """
class RunPainted(Value):
    colour: str = "blue"
    {ignorable}


Part = (
    RunPainted |"""


def changed(root: Path, changes: dict[str, list[tuple[str, str]]]) -> None:
    for name, pairs in changes.items():
        text = (root / name).read_text()
        for old, new in pairs:
            assert old in text, f"{name} has changed: {old!r}"
            text = text.replace(old, new, 1)
        (root / name).write_text(text)


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the newer build lies."""
    root = tmp_path_factory.mktemp("newer")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, root / package)  # with what is compiled already
    changed(root, NEWER)
    policies = root / "gpu_scheduler/core/policies"
    shutil.copy(policies / "fifo.py", policies / "lottery.py")
    return root


def painting(newer: Path, folder: Path, *, ignorable: bool) -> Path:
    """A newer build that journals a kind of change which only it knows, with every epoch."""
    shutil.copytree(newer, folder)
    fields = "ignorable: bool = True" if ignorable else ""
    changed(
        folder,
        {
            "gpu_scheduler/protocol/changes.py": [
                ("\nPart = (\n   ", PAINTED.replace("{ignorable}", fields)),
                (
                    '    "epoch_started": EpochStarted,',
                    '    "epoch_started": EpochStarted, "run_painted": RunPainted,',
                ),
            ],
            "gpu_scheduler/core/replay/apply.py": [
                (
                    "    to.EpochStarted: _began,",
                    "    to.EpochStarted: _began, to.RunPainted: lambda state, part: None,",
                ),
            ],
            "gpu_scheduler/core/handlers/recovery.py": [
                (
                    "    tx.emit(began)\n",
                    "    tx.emit(began)\n    tx.emit(to.RunPainted())\n",
                ),
            ],
        },
    )
    return folder


@dataclass
class Running:
    process: subprocess.Popen[bytes]
    address: dict[str, Any]
    log: Path

    def post(self, op: str, **fields: Any) -> Any:
        url, data = f"http://{self.address['http']}/v1/{op}", json.dumps(fields).encode()
        headers = {"Content-Type": "application/json", "X-Session": "test"}
        asked = urllib.request.Request(url, data, headers)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.load(answer)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.address['http']}{path}", timeout=30) as answer:
            return json.load(answer)


@contextlib.contextmanager
def ssgmd(root: Path, state: Path) -> Iterator[Running]:
    """A build's daemon on a state folder; it must end cleanly."""
    ready, log = state / "ready.json", state / "log"
    ready.unlink(missing_ok=True)
    with log.open("ab") as out:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "gpu_scheduler.daemon",
                "--state",
                str(state),
                "--ready-file",
                str(ready),
            ],
            stderr=out,
            cwd=root,
            env=environment(root),
        )
    try:
        end_s = time.monotonic() + 60
        while not ready.exists():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end_s, "it does not serve"
            time.sleep(0.02)
        yield Running(process, json.loads(ready.read_text()), log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root)}


def command(root: Path, state: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`ssgmd` of a build, to its end."""
    line = [sys.executable, "-m", "gpu_scheduler.daemon", "--state", str(state), *words]
    return subprocess.run(
        line, cwd=root, env=environment(root), capture_output=True, text=True, timeout=120
    )


def fill(daemon: Running, policy: str) -> str:
    """A host, a lease, a job's record and two parameters; the lease's id."""
    host, _, port = daemon.address["socket"].rpartition(":")
    hello = host_hello(id=0, op="hello")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(json.dumps(hello).encode() + b"\n")
        with connection.makefile("rb") as lines:
            assert "ok" in json.loads(lines.readline())
        daemon.post("set", name="policy", value=policy)
        daemon.post("set", name="bypass_max", value=7)
        asked = {"attempt": "a", "hold": "deadline", "lease_s": 3000.0, "wait": False}
        granted = daemon.post("reserve", **asked, request={"memory_mib": 10})["granted"]
        daemon.post(
            "finish",
            holder="job",
            outcome="SUCCEEDED",
            reason="OK",
            detail="",
            block={},
            received_ago_s=0.0,
        )
    return str(granted["lease"]["id"])


def shown(daemon: Running) -> tuple[list[str], list[str], dict[str, Any], list[str]]:
    """Leases, records, parameters, names of those that were set."""
    rules = daemon.get("/v1/parameters")
    return (
        [lease["id"] for lease in daemon.get("/v1/leases")["leases"]],
        [record["holder"] for record in daemon.get("/v1/records")["records"]],
        rules["parameters"],
        rules["overridden"],
    )


def test_todays_daemon_goes_on_with_what_a_newer_one_wrote(newer: Path, tmp_path: Path) -> None:
    """And the newer one with what it had said itself: nothing is lost on the way."""
    with ssgmd(newer, tmp_path) as daemon:
        lease = fill(daemon, "lottery")
    checked = command(ROOT, tmp_path, "journal", "check", "--json")
    assert checked.returncode == 0, checked.stderr
    ignored = json.loads(checked.stdout)["ignored"]
    assert {
        "policy",
        "lease_granted.lease.mood",
        "record_written.record.mood",
        "host_registered.devices[].rack",
    } <= set(ignored)
    repaired = command(ROOT, tmp_path, "journal", "repair")
    assert repaired.returncode == 0
    assert "ended" not in repaired.stdout
    with ssgmd(ROOT, tmp_path) as daemon:
        leases, records, rules, overridden = shown(daemon)
        assert (leases, records) == ([lease], ["job"])
        assert (rules["policy"], rules["bypass_max"]) == ("fifo", 7)
        assert overridden == ["bypass_max"], "not what is not in force"
        told = daemon.log.read_text()
    assert "lease_granted.lease.mood" in told
    assert "policy: an override of a newer version is kept" in told
    with ssgmd(newer, tmp_path) as daemon:
        leases, records, rules, _ = shown(daemon)
        assert (leases, records, rules["policy"]) == ([lease], ["job"], "lottery")


def test_a_newer_daemon_goes_on_with_what_todays_wrote(newer: Path, tmp_path: Path) -> None:
    with ssgmd(ROOT, tmp_path) as daemon:
        lease = fill(daemon, "fair")
    with ssgmd(newer, tmp_path) as daemon:
        leases, records, rules, _ = shown(daemon)
        assert (leases, records, rules["policy"]) == ([lease], ["job"], "fair")
    assert "ignores it" not in (tmp_path / "log").read_text()


@pytest.mark.asyncio
async def test_todays_host_and_client_work_with_a_newer_daemon(
    newer: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of its answers and pushes has one more key."""
    host = Host("gpu-a", 1, Budget())
    with ssgmd(newer, tmp_path) as daemon, caplog.at_level(logging.WARNING):
        address = daemon.address["socket"]
        async with host.link(address) as link, SchedulerClient(address) as client:
            async with asyncio.timeout(120):
                await link.registered()
                answer = await client.reserve("a", Request(memory_mib=10))
                assert answer.granted is not None
                while not host.held:  # noqa: ASYNC110 - the push arrives
                    await asyncio.sleep(0.001)
                assert [one.id for one in await client.leases()] == list(host.held)
                assert (await client.inventory()).hosts[0].devices[0].device.id == "gpu-a/d0"
    assert "InstallPush.install.mood is of a newer version" in caplog.text


def test_a_change_that_may_be_ignored_is_kept(newer: Path, tmp_path: Path) -> None:
    build = painting(newer, tmp_path / "build", ignorable=True)
    state = tmp_path / "state"
    state.mkdir()
    with ssgmd(build, state) as daemon:
        lease = fill(daemon, "fair")
    with ssgmd(ROOT, state) as daemon:
        assert shown(daemon)[0] == [lease]
        assert "run_painted" in daemon.log.read_text()
    with ssgmd(build, state) as daemon:
        assert shown(daemon)[0] == [lease]


def test_a_change_that_may_not_be_ignored_names_who_wrote_it(newer: Path, tmp_path: Path) -> None:
    build = painting(newer, tmp_path / "build", ignorable=False)
    state = tmp_path / "state"
    state.mkdir()
    with ssgmd(build, state) as daemon:
        lease = fill(daemon, "fair")
    before = (state / "journal").read_bytes()
    for words in ((), ("journal", "check"), ("journal", "repair")):
        ended = command(ROOT, state, *words)
        assert ended.returncode == 1
        assert "version 9.9.9 of ssgmd" in ended.stderr
        assert "damaged" not in ended.stderr
    assert (state / "journal").read_bytes() == before
    with ssgmd(build, state) as daemon:
        assert shown(daemon)[0] == [lease]

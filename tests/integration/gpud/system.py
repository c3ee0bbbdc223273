"""One real ssgmd and real hosts, and requests to them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from corekit.budget import Budget
from gpu_scheduler.client.client import SchedulerClient
from gpu_scheduler.model import GrantedLease, LeaseLifetime, LeaseState, Request
from orchgpu.local.ports import fixed_address
from tests.integration.gpud.conftest import until
from tests.lease_overlaps import read_overlaps

SCALE = 0.1
MEMORY_MIB = 1024


class System:
    """One scheduler and one host, as processes."""

    def __init__(self, folder: Path, *options: str) -> None:
        """`options`: of the host."""
        self.folder = folder
        self.scheduler = self.start_scheduler(fixed_address())
        self.address = self.ready("gpu_scheduler.daemon")["socket"]
        self.hosts: dict[str, subprocess.Popen[bytes]] = {}
        self.add_host("gpu-a", *options)

    @property
    def host(self) -> subprocess.Popen[bytes]:
        return self.hosts["gpu-a"]

    def add_host(self, name: str, *options: str) -> None:
        self.hosts[name] = self.start(
            "remote_gpu.host",
            "--host-id",
            name,
            "--scheduler",
            self.address,
            "--no-nvml",
            "--state",
            str(self.folder / name),
            "--memory-mib",
            str(MEMORY_MIB),
            "--operation",
            "noop",
            *options,
        )
        self.ready("remote_gpu.host")

    def start_scheduler(self, listen: str) -> subprocess.Popen[bytes]:
        state = str(self.folder / "ssgmd")
        return self.start("gpu_scheduler.daemon", "--state", state, "--listen", listen)

    def start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        (self.folder / f"{module}.json").unlink(missing_ok=True)
        with (self.folder / f"{module}.log").open("ab") as log:
            return subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    module,
                    *arguments,
                    "--ready-file",
                    str(self.folder / f"{module}.json"),
                ],
                env={**os.environ, "ORCHGPU_TIME_SCALE": str(SCALE)},
                stderr=log,
            )

    def ready(self, module: str) -> dict[str, Any]:
        path = self.folder / f"{module}.json"
        until(path.exists)
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def client(self) -> SchedulerClient:
        return SchedulerClient(self.address, budget=Budget().scaled(SCALE))

    def check_log(self) -> None:
        for name in self.hosts:
            lines = (self.folder / name / "leases.jsonl").read_text().splitlines()
            assert read_overlaps(lines, {f"{name}/cpu0": MEMORY_MIB}) == []

    def close(self) -> None:
        for process in (*self.hosts.values(), self.scheduler):
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                assert process.wait(30) == 0
            finally:
                process.kill()
                process.wait()


async def reserve(scheduler: SchedulerClient, attempt: str, **fields: Any) -> GrantedLease:
    """Ask until it is granted; repeating it for the same attempt is one request."""
    request = Request(**fields)
    async with asyncio.timeout(60):
        while True:
            answer = await scheduler.reserve(
                attempt, request, wait=True, hold=LeaseLifetime.SESSION
            )
            if answer.granted is not None:
                return answer.granted
            await asyncio.sleep(0.02)


async def until_leases(scheduler: SchedulerClient, *states: LeaseState) -> None:
    """Poll until the scheduler's leases have exactly these states."""
    async with asyncio.timeout(60):
        while True:
            if [one.state for one in await scheduler.leases()] == list(states):
                return
            await asyncio.sleep(0.01)

"""A real gpud with a CPU device beside the two daemons: a job that lasts, and short ones.

Its own log is the evidence: `read_overlaps` for the processes of leases, and the event `conflict`
for a share that the scheduler granted to two live leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import DeviceKind, GrantedLease, LeaseLifetime, Request
from remote_gpu.client import Devices, Session, connect
from remote_gpu.middleware import render
from remote_gpu.wire.errors import Refused
from tests.lease_overlaps import read_overlaps

HOST = "gpu-b"
MEMORY_MIB = 512  #: too little for the requests to the other host
#: A lasting job of half a device, and short ones of a quarter: two of those fit beside it.
LASTING_MIB, SHORT_MIB = 256, 128
CAP_S = 3600.0
WAIT_S = 120.0


class GpudHost:
    """The process and its log."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.process = process
        self.jobs = 0  #: short ones that have ended

    def check(self) -> None:
        """No share was granted twice, and none was held twice."""
        text = self.folder.with_suffix(".log").read_text()
        assert self.process.poll() is None, text[-3000:]
        lines = (self.folder / "leases.jsonl").read_text().splitlines()
        assert read_overlaps(lines, {f"{HOST}/cpu0": MEMORY_MIB}) == []
        events = [json.loads(line) for line in lines]
        assert [one for one in events if one["event"] == "conflict"] == []
        assert "double_grant" not in text


@contextlib.asynccontextmanager
async def gpud_host(folder: Path, schedulers: str, key: str) -> AsyncIterator[GpudHost]:
    """A host that is registered; it ends by SIGTERM."""
    state = folder / HOST
    ready = state.with_suffix(".json")
    line = [sys.executable, "-m", "remote_gpu.host", "--host-id", HOST, "--no-nvml"]
    line += ["--scheduler", schedulers, "--state", str(state), "--listen", "127.0.0.1:0"]
    line += ["--memory-mib", str(MEMORY_MIB), "--operation", "noop", "--isolation", "none"]
    line += ["--no-warm-workers", "--drain-s=0", "--ready-file", str(ready)]
    process = _started(line, state.with_suffix(".log"), key)
    try:
        await asyncio.to_thread(_wait, process, ready, state.with_suffix(".log"))
        yield GpudHost(state, process)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0
    finally:
        process.kill()
        process.wait()


def _started(line: list[str], log: Path, key: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(line, stderr=out, env={**os.environ, "ORCHGPU_SCHEDULER_KEY": key})


def _wait(process: subprocess.Popen[bytes], ready: Path, log: Path) -> None:
    end_s = time.monotonic() + WAIT_S
    while not ready.exists():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end_s, log.read_text()
        time.sleep(0.02)


async def granted(client: SchedulerClient, attempt: str, memory_mib: int) -> GrantedLease:
    """A lease on the CPU of the real host."""
    request = Request(kinds=(DeviceKind.CPU,), memory_mib=memory_mib)
    async with asyncio.timeout(WAIT_S):
        while True:
            asked = await client.reserve(attempt, request, hold=LeaseLifetime.SESSION)
            if asked.granted is not None:
                return asked.granted
            await asyncio.sleep(0.02)


class LastingJob:
    """A session that is opened before the first fault, and works through all of them."""

    def __init__(self, lease: GrantedLease) -> None:
        self._stack = contextlib.ExitStack()
        self.id = lease.lease.id
        session = self._stack.enter_context(_opened(lease))
        self._devices: Devices = self._stack.enter_context(connect(session.environment()))

    def work(self) -> None:
        payload = secrets.token_bytes(64)
        assert bytes(self._devices.op("noop", payload).buffers[0]) == payload

    def close(self) -> None:
        self._stack.close()


async def work_shortly(host: GpudHost, client: SchedulerClient, stop: asyncio.Event) -> None:
    """Jobs one after the other, each on a lease and a session of its own."""
    number = 0
    while not stop.is_set():
        number += 1
        lease = await granted(client, f"short-{number}", SHORT_MIB)
        await asyncio.to_thread(_job, lease)
        host.jobs += 1


def _job(lease: GrantedLease) -> None:
    with _opened(lease) as session, connect(session.environment()) as device:
        payload = secrets.token_bytes(64)
        assert bytes(device.op("noop", payload).buffers[0]) == payload
        session.give_back()


def _opened(lease: GrantedLease) -> Session:
    """A session; the host may get the install only from the next leader."""
    end_s = time.monotonic() + WAIT_S
    connection = render("builtin", lease)["connection"]
    while True:
        try:
            return Session.open(connection, CAP_S)
        except Refused as refused:
            if refused.code != "NOT_INSTALLED" or time.monotonic() > end_s:
                raise

"""A scheduler and one GPU host on one core, as processes, for the benchmarks of the data plane."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processes import program
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import GrantedLease, LeaseLifetime, Request
from remote_gpu.client import Operations, Session, connect
from remote_gpu.host.workers.worker import private_bytes
from remote_gpu.middleware import render
from remote_gpu.wire.connection import Access

_CAP_S = 600.0


def from_elsewhere(session: Session) -> Access:
    """A session's view for a function on another machine: TCP, no shared memory."""
    view = session.view()
    hosts = tuple(dataclasses.replace(host, unix="") for host in view.hosts)
    return dataclasses.replace(view, hosts=hosts)


class Host:
    """A scheduler and a host, real daemons that run until the stack closes."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path, core: int, *options: str) -> None:
        """`options`: further options of gpud."""
        self._stack = stack
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self._attempts = itertools.count(1)
        scheduler = self._daemon("gpu_scheduler.daemon", "--state", str(folder / "s"))
        self._scheduler = scheduler["socket"]
        self.pid = self.add("bench", core, *options)

    def add(self, host_id: str, core: int, *options: str) -> int:
        """Start a host with a device on one core; returns the pid of its gpud."""
        host = self._daemon(
            "remote_gpu.host",
            "--host-id",
            host_id,
            "--scheduler",
            self._scheduler,
            "--state",
            str(self._folder / host_id),
            "--cpus",
            str(core),
            "--memory-mib",
            "1024",
            "--no-nvml",
            "--drain-s=0",
            *options,
            name=host_id,
        )
        return int(host["pid"])

    @property
    def scheduler(self) -> str:
        """The scheduler's socket endpoint."""
        return self._scheduler

    def computed_s(self) -> dict[int, float]:
        """Processor seconds of gpud's descendants so far, by their pids: the spawner, which rests
        once it has loaded everything, and the workers, two or three generations below gpud."""
        found: dict[int, float] = {}
        for pid in self._descendants():
            with contextlib.suppress(OSError):  # it has ended
                found[pid] = processor_s(pid)
        return found

    def private_mib(self) -> float:
        """Memory that gpud's descendants hold and share with no other process."""
        return sum(map(private_bytes, self._descendants())) / 2**20

    def _descendants(self) -> Iterator[int]:
        """The pids of the spawner and of the workers of the first host."""
        parents = _parents()
        for pid in parents:
            above = pid
            while (above := parents.get(above, 0)) > 1:
                if above == self.pid:
                    yield pid

    def session(self, guarantee_pct: float, memory_mib: int = 256, **fields: Any) -> Session:
        """A lease with its session open; both end with the stack at the latest.

        `fields`: others of its request.
        """
        request = Request(memory_mib=memory_mib, compute_guarantee_pct=guarantee_pct, **fields)
        granted = asyncio.run(self._reserve(request))
        connection = render("builtin", granted)["connection"]
        return self._stack.enter_context(Session.open(connection, _CAP_S))

    async def _reserve(self, request: Request) -> GrantedLease:
        async with SchedulerClient(self._scheduler) as scheduler:
            answer = await scheduler.reserve(
                f"bench:{next(self._attempts)}", request, wait=False, hold=LeaseLifetime.SESSION
            )
        if answer.granted is None:
            raise RuntimeError(f"no lease: {answer.explanation}")
        return answer.granted

    def _daemon(self, module: str, *arguments: str, name: str = "") -> dict[str, str]:
        ready = self._folder / f"{name or module}.json"
        return self._stack.enter_context(program(module, ready, *arguments))


def tls_options(folder: Path) -> tuple[str, ...]:
    """Options of a gpud with a new certificate; empty without openssl."""
    openssl, pair = shutil.which("openssl"), (str(folder / "cert.pem"), str(folder / "key.pem"))
    if openssl is None:
        return ()
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-subj", "/CN=bench", "-out", pair[0], "-keyout", pair[1]]
    subprocess.run(command, check=True, capture_output=True)
    return "--tls-cert", pair[0], "--tls-key", pair[1], "--require-tls"


@contextlib.contextmanager
def computed(session: Session, model: Path, side: int) -> Iterator[None]:
    """A device that has computed one item by a model of dense layers, sent where it is missing."""
    with connect(session.environment()) as device, Operations(device) as operations:
        known = operations.resource("model", model)
        inputs = [{"name": "image", "shape": [1, side]}]
        operations.run("onnx", np.ones((1, side), np.float32), model=known, inputs=inputs)
        yield


def _parents() -> dict[int, int]:
    """The parent pid of every process; fields are counted after the name, which may have spaces."""
    found: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            found[int(folder.name)] = int(fields[1])
    return found


def processor_s(pid: int) -> float:
    """Seconds of processor time of all threads, including ended ones: clock_getcpuclockid(3)."""
    return time.clock_gettime(~pid << 3 | 2)

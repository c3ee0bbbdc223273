"""Two workloads in turn through a scheduler and a host: cold starts under a queue policy.

Every event is a lease of its own: reserved in the order A B A B …, then one call on the device.
A switch is a run on a slot after a run of the other workload there.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.hardless.devices import GPU_MEMORY_MIB, GPU_SLOTS, OPERATION, TestSystem
from benchmarks.remote_gpu.host import Host
from corekit.cli.progress import Bar
from corekit.errors import AppError
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.client.pushes import PushWord
from gpu_scheduler.model import DeviceKind, GrantedLease, Request
from gpu_scheduler.protocol.answers import GrantedPush
from remote_gpu.client import Session, connect
from remote_gpu.middleware import render

WORKLOADS = ("a", "b")
_CAP_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One call, by the device's clock."""

    workload: str
    device: str
    began_s: float  #: loading included
    ended_s: float
    cold: bool


def run_switches(devices: TestSystem, policy: str, events: int, *, quiet: bool) -> list[Run]:
    """The calls of all events under a policy, on daemons of their own."""
    core = min(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hardless-")))
        file = devices.write(folder)
        host = Host(stack, folder / "system", core, "--operation", "noop", "--emulate", str(file))
        return asyncio.run(_Events(host.scheduler, events, quiet=quiet).run(policy))


class _Events:
    """The events of one run, each reserved, used and given back."""

    def __init__(self, scheduler: str, count: int, *, quiet: bool) -> None:
        self._address = scheduler
        self._count = count
        self._bar = Bar(count, quiet=quiet)
        self._granted: dict[str, asyncio.Future[GrantedLease]] = {}
        self._runs: list[Run] = []

    async def run(self, policy: str) -> list[Run]:
        async with SchedulerClient(self._address, on_push=self._pushed) as scheduler:
            await scheduler.set_parameter("policy", policy)
            async with asyncio.TaskGroup() as group:
                for number, workload in zip(range(self._count), itertools.cycle(WORKLOADS)):
                    attempt = f"switches:{number + 1}"
                    self._granted[attempt] = asyncio.get_running_loop().create_future()
                    # in order: the queue holds them as they are submitted
                    answer = await scheduler.reserve(attempt, _request(workload), wait=True)
                    if answer.granted is not None:
                        self._granted[attempt].set_result(answer.granted)
                    group.create_task(self._event(scheduler, attempt, workload, number))
        self._bar.end()
        return self._runs

    def _pushed(self, push: PushWord) -> None:
        if isinstance(push, GrantedPush):
            granted = self._granted[push.attempt]
            if not granted.done():
                granted.set_result(push.granted)

    async def _event(
        self, scheduler: SchedulerClient, attempt: str, workload: str, number: int
    ) -> None:
        granted = await self._granted[attempt]
        with contextlib.suppress(AppError):  # granted at once: there is nothing to accept
            await scheduler.renew(granted.lease.id)
        self._runs.append(await asyncio.to_thread(_use, granted, workload, number))
        self._bar.draw(len(self._runs), f"{len(self._runs)} of {self._count} events")


def _request(workload: str) -> Request:
    return Request(
        kinds=(DeviceKind.CUDA, DeviceKind.VPU),
        memory_mib=GPU_MEMORY_MIB // GPU_SLOTS,  # a slot holds one workload: a switch evicts
        workload=workload,
    )


def _use(granted: GrantedLease, workload: str, number: int) -> Run:
    connection = render("builtin", granted)["connection"]
    with Session.open(connection, _CAP_S) as session:
        with connect(session.environment()) as device:
            data = number.to_bytes(4, "big")
            found = device.op(OPERATION, data, model=workload).values["emulated"]
        session.give_back()
    return Run(
        workload=workload,
        device=found["device"],
        began_s=found["started_s"] - found["loading_ms"] / 1000,
        ended_s=found["ended_s"],
        cold=found["loading_ms"] > 0,
    )


def switches(runs: Sequence[Run], slots: int) -> int:
    """Runs on a slot after a run of another workload there; `slots`: of each device."""
    found = 0
    for device in sorted({run.device for run in runs}):
        last: list[Run] = []  # of each slot
        for run in sorted((r for r in runs if r.device == device), key=lambda r: r.began_s):
            free = [slot for slot in last if slot.ended_s <= run.began_s]
            if not free and len(last) < slots:
                last.append(run)
                continue
            # the slot of the same workload, as the device would reuse it
            before = min(
                free or last, key=lambda slot: (slot.workload != run.workload, slot.ended_s)
            )
            found += before.workload != run.workload
            last[last.index(before)] = run
    return found

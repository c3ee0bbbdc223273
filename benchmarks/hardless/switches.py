"""Two workloads in turn through a scheduler and a host: cold starts under a queue policy.

Every event is a lease of its own: reserved in the order A B A B …, then one call on the device.
A switch is a run on a slot after a run of the other workload there.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.hardless.devices import GPU_MEMORY_MIB, GPU_SLOTS, OPERATION, TestSystem
from benchmarks.processes import workspace
from benchmarks.remote_gpu.host import Host
from benchmarks.remote_gpu.waiting import WaitingLeases
from corekit.cli.progress import Bar
from gpu_scheduler.model import DeviceKind, GrantedLease, Request
from gpu_scheduler.protocol import ops
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
    with workspace("hardless") as (stack, folder):
        file = devices.write(folder)
        host = Host(stack, folder / "system", core, "--operation", "noop", "--emulate", str(file))
        return asyncio.run(_Events(host.scheduler, events, quiet=quiet).run(policy))


class _Events:
    """The events of one run, each reserved, used and given back."""

    def __init__(self, scheduler: str, count: int, *, quiet: bool) -> None:
        self._address = scheduler
        self._count = count
        self._bar = Bar(count, quiet=quiet)
        self._runs: list[Run] = []

    async def run(self, policy: str) -> list[Run]:
        async with WaitingLeases(self._address) as leases:
            await leases.scheduler.ask(ops.SetParameter(name="policy", value=policy))
            async with asyncio.TaskGroup() as group:
                for number, workload in zip(range(self._count), itertools.cycle(WORKLOADS)):
                    attempt = f"switches:{number + 1}"
                    # in order: the queue holds them as they are submitted
                    await leases.submit(attempt, _request(workload))
                    group.create_task(self._event(leases, attempt, workload, number))
        self._bar.clear()
        return self._runs

    async def _event(self, leases: WaitingLeases, attempt: str, workload: str, number: int) -> None:
        granted = await leases.lease(attempt)
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

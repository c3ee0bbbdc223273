"""A lease that is revoked while it computes: the time until its memory is free again."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from benchmarks.remote_gpu.host import Host
from benchmarks.report import Figure
from corekit.ids import HostId
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.protocol import ops
from remote_gpu.client import Lane, OpFailed, Refused
from tools.gpu_check.part import Answer, Part, Target, bounded
from tools.gpu_check.system import session, system, used_memory_mib

PART = Part(
    title="Revoke under load: the time until the device's memory is back",
    order=60,
    limit_s=60,
    modules=("numpy", "msgspec", "aiohttp", "click", "rich"),
)
_PART_BACK = 0.9  #: of the memory that the lease took
_PATIENCE_S = 20.0
_POLL_S = 0.002
_SETTLE_POLL_S = 0.05


def run(target: Target) -> Answer:
    held_mib = 128 if target.quick else 2048 if target.kind == "cuda" else 512
    with system(target) as host:
        used_mib = used_memory_mib(target, host)
        before_mib = _settled(used_mib)
        lease = session(host, target, 2 * held_mib if target.kind != "cuda" else held_mib + 512)
        lane = Lane.open(lease.view())
        buffer = lane.buffer(held_mib << 20)
        buffer.write(bytes(held_mib << 20))
        loop = threading.Thread(target=_until_lost, args=(lane,))
        loop.start()
        time.sleep(0.5)  # it computes now
        taken_mib = used_mib() - before_mib
        if taken_mib < held_mib * _PART_BACK:
            raise RuntimeError(f"{taken_mib:.0f} MiB are in use after a buffer of {held_mib} MiB")
        began_s = time.perf_counter()
        asyncio.run(_revoke(host))
        _wait(used_mib, before_mib + (1 - _PART_BACK) * taken_mib, began_s)
        back_ms = 1e3 * (time.perf_counter() - began_s)
        loop.join(_PATIENCE_S)
        if loop.is_alive():
            raise RuntimeError("the revoked program's call does not end")
        lane.close()
        lease.close()
    return Answer(
        [
            bounded("revoke_memory_back_ms", back_ms, "ms", "<= 500"),
            Figure(metric="revoke_memory_mib", value=taken_mib, unit="MiB"),
        ],
        [f"Until {_PART_BACK:.0%} of the memory that the lease took were free."],
    )


def _until_lost(lane: Lane) -> None:
    try:
        while True:
            lane.op("burn", ms=50)
    except (Refused, OpFailed, OSError):
        return


async def _revoke(host: Host) -> None:
    async with SchedulerClient(host.scheduler) as client:
        await client.ask(ops.Drain(host=HostId("bench"), revoke=True))


def _settled(used_mib: Callable[[], float]) -> float:
    """The memory in use once the host has started: equal to 1 MiB for a second."""
    ends_s = time.perf_counter() + _PATIENCE_S
    last_mib, since_s = used_mib(), time.perf_counter()
    while (now_s := time.perf_counter()) < min(since_s + 1.0, ends_s):
        time.sleep(_SETTLE_POLL_S)
        if abs(used_mib() - last_mib) > 1:
            last_mib, since_s = used_mib(), now_s
    return last_mib


def _wait(used_mib: Callable[[], float], below_mib: float, began_s: float) -> None:
    while used_mib() > below_mib:
        if time.perf_counter() - began_s > _PATIENCE_S:
            raise RuntimeError(f"the memory is not back after {_PATIENCE_S:g} s")
        time.sleep(_POLL_S)

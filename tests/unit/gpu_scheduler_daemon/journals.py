"""A small real history for tests of the journal: a host with two devices, a reservation, a job."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable
from typing import Any

from corekit.budget import Budget
from corekit.ids import DeviceId, HostId, IdSource, JobId, SessionId
from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.journal.journal import Journal
from gpu_scheduler.model import Device, DeviceKind, LeaseLifetime, Request
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.changes import Entry, Part
from tests.scheduler_events import event_of

NOW: dict[str, Any] = {"at_s": 0.0, "wall_s": 1_700_000_000.0}
ASKED: dict[str, Any] = {**NOW, "session": SessionId("s"), "reply_to": "1.1"}


def first_line(body: bytes) -> bytes:
    """A line with its checksum, as every format has its first one."""
    return b"%08x %s\n" % (zlib.crc32(body), body)


async def compact(journal: Journal, snapshot: Callable[[], Iterable[Part]]) -> None:
    """Compact the journal once; two groups without a change are appended for it."""
    journal.snapshot, journal.compact_bytes_min = snapshot, 0
    await journal.append([Entry(parts=())])
    assert journal._compacting is not None
    await asyncio.wrap_future(journal._compacting)
    journal.compact_bytes_min = 2**40
    await journal.append([Entry(parts=())])


def history() -> list[Entry]:
    """The entries, one per event; two leases and a record live after them."""
    device: dict[str, Any] = {"kind": DeviceKind.CUDA, "model": "M", "memory_mib": 1000}
    events: list[on.Event] = [
        on.EpochBegan(**NOW),
        event_of(
            host_ops.HostHello,
            host=HostId("h"),
            incarnation="i",
            gateway="h:1",
            epoch_seen=0,
            installed=(),
            devices=tuple(Device(id=DeviceId(f"h/{i}"), index=i, **device) for i in range(2)),
            reply_to="1.1",
            **NOW,
        ),
        event_of(
            ops.Reserve,
            attempt="a",
            request=Request(memory_mib=900),
            wait=False,
            hold=LeaseLifetime.SESSION,
            lease_s=None,
            **ASKED,
        ),
        event_of(
            ops.Attempt,
            holder=JobId("job-1"),
            n=1,
            revision=0,
            handle="",
            block={},
            wait=False,
            request=Request(memory_mib=900),
            received_ago_s=0.0,
            **ASKED,
        ),
    ]
    machine = SchedulerMachine(Budget(), IdSource("seed"))
    return [entry for event in events for entry in machine.handle(event).changes]

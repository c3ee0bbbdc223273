"""A small real history for tests of the journal: a host with two devices, a reservation, a job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from corekit.budget import Budget
from corekit.ids import DeviceId, HostId, IdSource, JobId, SessionId
from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.journal import repair as repairs
from gpu_scheduler.daemon.journal.format import encode_group, encode_header
from gpu_scheduler.daemon.journal.journal import Journal, Opener
from gpu_scheduler.daemon.journal.repair import Checked
from gpu_scheduler.daemon.log.engines.file import NAME, Disk, FileLog
from gpu_scheduler.daemon.log.item import RUN_LENGTH, encode_items
from gpu_scheduler.daemon.log.sync_marker import Mark, write_marker
from gpu_scheduler.model import Device, DeviceKind, LeaseLifetime, Request
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.changes import Entry, Part
from tests.scheduler_events import event_of

NOW: dict[str, Any] = {"at_s": 0.0, "wall_s": 1_700_000_000.0}
ASKED: dict[str, Any] = {**NOW, "session": SessionId("s"), "reply_to": "1.1"}


def disk_opener(disk: Disk | None) -> Opener:
    """Opens journals in folders on this disk."""
    return lambda address, _: FileLog(Path("/", address.path), disk)


def opened(folder: Path, disk: Disk | None = None) -> tuple[Journal, tuple[Entry, ...]]:
    """The journal in a folder, and its entries."""
    journal = Journal.in_folder(folder, disk_opener(disk))
    try:
        return journal, journal.recover()
    except BaseException:
        journal.close()
        raise


def check(folder: Path) -> Checked:
    """The report on a journal in a folder."""
    log = FileLog(folder)
    try:
        return repairs.check(log, str(folder / NAME))
    finally:
        log.close()


def repair(folder: Path) -> Checked:
    """The report on its repair."""
    log = FileLog(folder)
    try:
        return repairs.repair(log, str(folder / NAME), folder)
    finally:
        log.close()


def lines_of(data: bytes) -> list[bytes]:
    """The records of a journal file; the data of each end with a line end of their own."""
    return [text + b"\n\n" for text in data.rstrip(b"\0").split(b"\n\n") if text]


def written_as(folder: Path, *groups: bytes, wrote: str = "") -> Path:
    """A journal with the JSON texts of these groups, as some other build wrote them."""
    log, (line, mark) = FileLog(folder), encode_header(wrote)
    for number, body in enumerate([None, *groups], 1):
        if body is not None:
            line, mark = encode_group(body, mark)
        assert log.put_if_absent(number, encode_items(line, "0" * RUN_LENGTH, 2**20)[0])
    log.close()
    return folder / NAME


def reset_marker(folder: Path) -> None:
    """As after a power failure that left the marker behind: no item is known to be synced."""
    write_marker(folder, Mark(0, 0, b"0" * 8))


async def compact(journal: Journal, snapshot: Callable[[], Iterable[Part]]) -> None:
    """Compact the journal once; two groups without a change are appended for it."""
    journal.snapshot, journal.compact_bytes_min = snapshot, 0
    journal._snapshot_bytes = 0  # however large the last one was
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

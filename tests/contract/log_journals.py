"""Entries for journals in logs, and what tests do with such journals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from corekit.ids import HostId
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.journal.journal import Journal
from gpu_scheduler.daemon.log.port import Log, LogAddress
from gpu_scheduler.protocol.changes import Entry, HostDrained

Opener = Callable[[LogAddress, float], Log]


def entry(name: str, size: int = 0) -> Entry:
    return Entry(parts=(HostDrained(host=HostId(name + "x" * size), drained=True),))


def names(entries: Sequence[Entry]) -> list[str]:
    parts = (part for entry in entries for part in entry.parts)
    return [str(part.host) for part in parts if isinstance(part, HostDrained)]


def append(journal: Journal, *groups: Sequence[Entry]) -> None:
    async def run() -> None:
        for group in groups:
            await journal.append(group)

    asyncio.run(run())


def compact(journal: Journal, machine: SchedulerMachine) -> None:
    """Compact once; two groups without a change are appended for it."""
    journal.snapshot, journal.compact_bytes_min = machine.parts, 0
    journal._snapshot_bytes = 0  # however large the last one was
    append(journal, [Entry(parts=())])
    assert journal._compacting is not None
    assert journal._compacting.result(60) is not None
    journal.compact_bytes_min = 2**40
    append(journal, [Entry(parts=())])

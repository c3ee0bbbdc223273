"""The journal of a real ssgmd as a load: the requests that it granted, with their real lengths.

Requests that were never granted, and leases that had no end yet, are not part of it. A compacted
journal has only what came after its snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from corekit.errors import invalid
from corekit.values import replace as replace_value
from gpu_scheduler.daemon.journal.entries import Entries
from gpu_scheduler.daemon.journal.reader import LogReader
from gpu_scheduler.daemon.log.engines.file import NAME, FileLog
from gpu_scheduler.model import Device
from gpu_scheduler.protocol import changes as to
from simulator.workloads.model import ANY_DEVICE, Arrival, HostSpec, Timing, Workload
from simulator.workloads.traces import Trace


@dataclass(slots=True)
class _Held:
    """A lease of the journal."""

    granted: to.LeaseGranted
    active_s: float | None = None


def entries_of(folder: Path) -> tuple[to.Entry, ...]:
    """The entries of a state folder of ssgmd, which is only read. Raises as its reader does."""
    path = folder / NAME
    if not path.exists():
        raise invalid(f"{path} does not exist; name the state folder of ssgmd, or a copy of it")
    reader = LogReader(FileLog(folder), str(path))
    lines = reader.begin()
    return Entries(str(path), reader.wrote).all_of(line.group for line in lines)


def replayed(entries: Iterable[to.Entry], loading_s: float = 0.0) -> Trace:
    """The load of these entries. A request without a workload is a workload of its own form."""
    held: dict[str, _Held] = {}
    found: list[Arrival] = []
    workloads: dict[str, Workload] = {}
    for part in (part for entry in entries for part in entry.parts):
        match part:
            case to.LeaseGranted(lease=lease):
                held[lease.id] = _Held(part, part.granted_s)
            case to.LeaseChanged(lease=lease_id) if lease_id in held:
                lease_ = held[lease_id]
                lease_.active_s = part.active_s or lease_.active_s
                if part.freed_s is not None:
                    del held[lease_id]
                    found.append(_arrival(lease_, part.freed_s, workloads, loading_s))
            case _:
                pass
    if not found:
        raise invalid("the journal has no lease that was granted and ended")
    rows = sorted(found, key=lambda arrival: arrival.at_s)
    first_s = rows[0].at_s
    shifted = tuple(replace(row, at_s=row.at_s - first_s) for row in rows)
    return Trace(rows=shifted, workloads=workloads)


def hosts_of(entries: Iterable[to.Entry]) -> tuple[HostSpec, ...]:
    """The devices of all hosts that registered; equal devices of a host are one group."""
    hosts: dict[str, tuple[Device, ...]] = {}
    for part in (part for entry in entries for part in entry.parts):
        if isinstance(part, to.HostRegistered):
            hosts[part.host] = part.devices
    groups: dict[tuple[str, str, str, int], int] = {}
    for host, devices in hosts.items():
        for device in devices:
            form = (host, device.kind.value, device.model, device.memory_mib)
            groups[form] = groups.get(form, 0) + 1
    return tuple(
        HostSpec(
            name=f"{host}-{number}", devices=count, kind=kind, model=model, memory_mib=memory_mib
        )
        for number, ((host, kind, model, memory_mib), count) in enumerate(groups.items())
    )


def _arrival(
    held: _Held, freed_s: float, workloads: dict[str, Workload], loading_s: float
) -> Arrival:
    request = held.granted.request
    name = request.workload or f"{request.count}x{request.memory_mib}"
    request = replace_value(request, workload=name)
    workloads[name] = Workload(
        name=name,
        loading={ANY_DEVICE: Timing(median_s=loading_s)},
        memory_mib=request.memory_mib,
        tenant=request.tenant,
        compute_pct=request.compute_guarantee_pct,
        count=request.count,
    )
    begun_s = held.active_s if held.active_s is not None else held.granted.granted_s
    return Arrival(
        at_s=held.granted.waiting_since_s,
        workload=name,
        tenant=request.tenant,
        execution_s=max(0.0, freed_s - begun_s),
        request=request,
    )

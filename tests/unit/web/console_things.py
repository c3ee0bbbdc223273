"""Hosts, leases and job records of the console's tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from corekit.ids import AttemptId, DeviceId, HostId, JobId, LeaseId
from gpu_scheduler.model import (
    Device,
    DeviceKind,
    Health,
    HostState,
    Lease,
    LeaseState,
    Record,
    Share,
    Step,
    Usage,
)
from gpu_scheduler.protocol.answers import DeviceView, HostView
from orchgpu.web.model.fleet import Fleet
from tests.history_records import job_record


def device_view(
    host: str, index: int, *, health: Health = Health.OK, drained: bool = False, used: int = 0
) -> DeviceView:
    id_ = DeviceId(f"{host}/{index}")
    return DeviceView(
        device=Device(
            id=id_, index=index, kind=DeviceKind.CUDA, model="M", memory_mib=1000, health=health
        ),
        memory_free_mib=1000,
        compute_free_pct=100,
        leases=(),
        usage=Usage(device=id_, memory_used_mib=used, utilisation_pct=used % 101),
        drained=drained,
    )


def host_view(
    host: str, *devices: DeviceView, state: HostState = HostState.UP, silent_s: float = 0.0
) -> HostView:
    return HostView(
        host=HostId(host),
        state=state,
        gateway=f"{host}:1",
        incarnation="i",
        silent_s=silent_s,
        devices=devices,
    )


def lease(
    id_: str, *places: tuple[str, int], fence: int = 1, memory_mib: int = 100, pct: float = 10
) -> Lease:
    return Lease(
        id=LeaseId(id_),
        attempt=AttemptId(f"job-{id_}:1"),
        holder=JobId(f"job-{id_}"),
        fence=fence,
        state=LeaseState.RESERVED,
        shares=tuple(
            Share(
                host=HostId(host),
                device=DeviceId(f"{host}/{index}"),
                index=index,
                kind=DeviceKind.CUDA,
                model="M",
                memory_mib=memory_mib,
                compute_guarantee_pct=pct,
                compute_limit_pct=100,
                exclusive=False,
            )
            for host, index in places
        ),
    )


def record(
    job: str,
    *,
    step: Step = Step.RUNNING,
    outcome: str | None = None,
    function: str = "f",
    received_s: float = 1.0,
    updated_s: float = 2.0,
    key: str = "",
    owner: str | None = None,
    tenant: str | None = None,
    file: str = "queries/a.fasta",
) -> Record:
    block: Mapping[str, object] = {
        "function": function,
        "input": {"bucket": "in", "key": file},
    }
    return job_record(
        job,
        Step.ENDED if outcome else step,
        owner=owner,
        handle="h",
        block=block,
        outcome=outcome,
        key=key,
        tenant=tenant,
        updated_s=updated_s,
        times={"RECEIVED": received_s},
    )


def recounted(fleet: Fleet) -> dict[str, int]:
    """`Fleet.counts`, computed again from all hosts."""
    total: Counter[str] = Counter()
    for view in fleet._hosts.values():
        total.update(fleet._figures(view, 1))
    return {name: count for name, count in sorted(total.items()) if count}

"""Strategies for the inputs of a scheduler: requests, settings, devices."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from corekit.ids import DeviceId
from gpu_scheduler.model import (
    Device,
    DeviceKind,
    DeviceResidents,
    Health,
    Placement,
    Request,
    Resident,
    Sharing,
)
from gpu_scheduler.policy_registry import installed_policies
from gpu_scheduler.warm import workload_key

MEMORY_MIB = 1000


def sized_request(memory_pct: float, **fields: Any) -> Request:
    """A request for memory in MiB, or for a part of a shared device."""
    if memory_pct and fields["sharing"] is Sharing.SHARED:
        fields |= {"memory_mib": 0, "memory_pct": memory_pct}
    return Request(**fields)


requests = st.builds(
    sized_request,
    memory_pct=st.sampled_from([0, 0, 12.5, 33.3]),
    count=st.sampled_from([1, 1, 1, 2, 3]),
    kinds=st.sampled_from([(), (), (DeviceKind.CUDA,), (DeviceKind.CPU, DeviceKind.CUDA)]),
    memory_mib=st.sampled_from([0, 200, 500, 1000, 1500]),
    memory_max_mib=st.sampled_from([None, None, None, 1500]),
    compute_guarantee_pct=st.sampled_from([0, 12.5, 30, 33.3, 100]),
    sharing=st.sampled_from(Sharing),
    placement=st.sampled_from(Placement),
    priority=st.sampled_from([0, 0, 5]),
    min_driver=st.sampled_from([None, None, "550.1"]),
    warm_key=st.sampled_from([None, "k"]),
    workload=st.sampled_from([None, None, "w", "v"]),
    preempts=st.sampled_from([False, False, True]),
    preemptible=st.booleans(),
    max_wait_s=st.sampled_from([None, None, 8.0]),
    tenant=st.sampled_from("ab"),
    deadline_s=st.sampled_from([None, None, 12.0]),
    lease_s=st.sampled_from([None, 10.0, 40.0]),
)
settings_ = st.sampled_from(
    [
        ("aging_s", "off"), ("aging_s", "default"), ("bypass_max", 0), ("leases_max", 2),
        ("leases_max", "default"), ("waiting_max", 1), ("waiting_max", "default"),
        ("tenant_waiting_max", 1), ("tenant_waiting_max", "default"),
        ("tenant_records_max", 2), ("records_max", 3), ("tenant_records_max", "default"),
        ("records_max", "off"), ("quota.a.devices", 2), ("quota.*.memory_mib", 1200),
        ("quota.a.devices", "default"), ("quota.*.memory_mib", "off"), ("weight.b", 3),
        ("weight.b", 0), ("bypas_max", 1), ("warm_workers_max", 1), ("preempt_grace_s", 0),
        ("preempt_grace_s", "default"), ("forget_after_s", 0), ("forget_after_s", 5),
        ("forget_after_s", "none"), ("policy.rr.queues", "device"),
        ("policy.srtf.strict_head", True), ("policy.exclusive.steal_pause_s", 0),
        ("policy.exclusive.client", "tenant"), ("policy.least_loaded.patience_s", 0),
        *(("policy", name) for name in installed_policies()),
    ]
)  # fmt: skip


residents = st.builds(
    Resident,
    id=st.sampled_from(["w1", "w2", "w3"]),
    workload=st.sampled_from([workload_key("a", "w"), workload_key("b", "v")]),
    memory_mib=st.sampled_from([0, 300, 900]),
    loading_s=st.sampled_from([0.0, 1.0, 7.0]),
)


def resident_changes(host: str) -> st.SearchStrategy[tuple[DeviceResidents, ...]]:
    """Differences of the residents of one device of a host."""
    change = st.builds(
        DeviceResidents,
        device=st.sampled_from([DeviceId(f"{host}/0"), DeviceId(f"{host}/1")]),
        added=st.lists(residents, max_size=2).map(tuple),
        removed=st.lists(st.sampled_from(["w1", "w2"]), max_size=1).map(tuple),
    )
    return st.lists(change, max_size=2).map(tuple)


some_health = st.sampled_from([Health.OK, Health.OK, Health.OK, Health.SUSPECT, Health.BAD])


def devices_of(
    host: str, health: tuple[Health, Health] = (Health.OK, Health.OK)
) -> tuple[Device, ...]:
    return tuple(_device(host, i, health[i]) for i in range(2))


def _device(host: str, i: int, health: Health) -> Device:
    second = DeviceKind.CPU if host == "h1" else DeviceKind.CUDA
    kind, name = (DeviceKind.CUDA, second)[i], DeviceId(f"{host}/{i}")
    return Device(
        id=name,
        index=i,
        kind=kind,
        model="M",
        memory_mib=MEMORY_MIB * (1 + i),
        health=health,
        resident=("k",) * i,
        driver=f"550.{i}",
    )

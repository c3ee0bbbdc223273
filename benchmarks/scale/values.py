"""The generated system as the scheduler's own values: hosts, job records, requests.

Names, states and times are those of `GeneratedSystem`, by the number of a job or a host.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.scale.generated import ENDED, FUNCTIONS, MODELS, TENANTS, GeneratedSystem
from corekit.ids import DeviceId, HostId, JobId, LeaseId
from gpu_scheduler.model import (
    Device,
    DeviceKind,
    EndReason,
    JobLease,
    Record,
    Request,
    Share,
    Step,
)
from gpu_scheduler.parameters import Parameters, Quota
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol.codec import VERSION

#: Tenant of the jobs that wait: its quota is used up by the first one.
CROWDED = "crowded"
PARAMETERS = Parameters(quotas={CROWDED: Quota(devices=1)})
LEASE_MIB = 2048
COLD_EVERY = 6  #: of so many leases one had to load its workload


def large(now_s: float, hosts: int = 1250, jobs: int = 100_000) -> GeneratedSystem:
    """The large system: by default 10,000 devices and 100,000 jobs."""
    return GeneratedSystem(
        hosts=hosts, devices_per_host=8, jobs=jobs, waiting=jobs * 3 // 100, now_s=now_s
    )


def devices(system: GeneratedSystem, host: int) -> tuple[Device, ...]:
    """The devices of one host."""
    model, memory_mib = MODELS[host % len(MODELS)]
    return tuple(
        Device(
            id=DeviceId(f"gpu{host:04d}/{index}"),
            index=index,
            kind=DeviceKind.CUDA,
            model=model,
            memory_mib=memory_mib,
            driver="550.54.15",
            runtime="12.4",
        )
        for index in range(system.devices_per_host)
    )


def hello(system: GeneratedSystem, host: int) -> host_ops.HostHello:
    """The hello of one host."""
    return host_ops.HostHello(
        host=HostId(f"gpu{host:04d}"),
        incarnation="1",
        gateway=f"10.0.{host // 250}.{host % 250}:4711",
        devices=devices(system, host),
        epoch_seen=0,
        installed=(),
        version=VERSION,
    )


def block(system: GeneratedSystem, number: int) -> dict[str, Any]:
    """The orchestrator's part of a record: function and input."""
    function = FUNCTIONS[number % len(FUNCTIONS)]
    source = {
        "bucket": f"{function}-in",
        "key": system.key.format(number),
        "version_id": f"v{number}",
        "etag": f"{number:032x}",
        "size": 120_000,
        "event_name": "ObjectCreated:Put",
        "event_time": "2023-11-14T22:13:20.000Z",
    }
    return {"function": function, "input": source}


def request(system: GeneratedSystem, number: int) -> Request:
    """The request of a job; that of a waiting one exceeds the quota of its tenant."""
    waits = system.state(number) == "WAITING"
    tenant = CROWDED if waits else TENANTS[number % len(TENANTS)]
    return Request(memory_mib=LEASE_MIB, compute_guarantee_pct=10, tenant=tenant)


def live_jobs(system: GeneratedSystem) -> list[int]:
    """The numbers of the jobs that wait or run, the oldest first."""
    return [one for one in reversed(range(system.jobs)) if system.state(one) not in ENDED]


def ended_records(system: GeneratedSystem) -> Iterator[Record]:
    """The records of the jobs that ended, in the order of their ends."""
    return (
        ended_record(system, one)
        for one in reversed(range(system.jobs))
        if system.state(one) in ENDED
    )


def ended_record(system: GeneratedSystem, number: int) -> Record:
    """The record of one job that ended, with its lease."""
    state, job = system.state(number), JobId(system.job_id(number))
    received_s = system.now_s - 14 - 2.5 * number
    host, index = number % system.hosts, number // system.hosts % system.devices_per_host
    model, memory_mib = MODELS[host % len(MODELS)]
    share = Share(
        host=HostId(f"gpu{host:04d}"),
        device=DeviceId(f"gpu{host:04d}/{index}"),
        index=index,
        kind=DeviceKind.CUDA,
        model=model,
        memory_mib=min(LEASE_MIB, memory_mib),
        compute_guarantee_pct=10,
        compute_limit_pct=100,
        exclusive=False,
    )
    lease = JobLease(
        lease=LeaseId(f"L{number:015x}"),
        attempt=1,
        shares=(share,),
        share_count=1,
        granted_s=received_s + 1.5,
        active_s=received_s + 3.4,
        freed_s=received_s + 9.2,
        ended_s=received_s + 9.4,
        reason=EndReason.DONE,
        loading_s=1.3 if number % COLD_EVERY == 0 else 0.0,
    )
    moments = (("RECEIVED", 0.0), ("RESERVED", 1.5), ("STAGED", 2.1), ("RUNNING", 3.4))
    times = {name: received_s + after_s for name, after_s in (*moments, ("ENDED", 9.4))}
    return Record(
        holder=job,
        revision=2,
        owner=None,
        attempt=1,
        step=Step.ENDED,
        waiting_since_s=None,
        handle=f"handle-{number}",
        block=block(system, number),
        outcome=state,
        reason="EXIT_NONZERO" if state == "FAILED" else "NONE",
        lease=lease.lease,
        tenant=TENANTS[number % len(TENANTS)],
        updated_s=received_s + 9.4,
        times=times,
        leases=(lease,),
    )

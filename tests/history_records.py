"""Job records as a scheduler makes them, and results."""

from __future__ import annotations

from typing import Any

from contract.result import Result
from corekit.ids import DeviceId, HostId, JobId, LeaseId
from gpu_scheduler.model import DeviceKind, EndReason, JobLease, Record, Share, Step
from orchgpu.core.function import Function

UPLOADED_S = 1_700_000_000.0  #: 2023-11-14T22:13:20Z
#: Without any resource behind it.
FUNCTION = Function(
    name="f",
    revision="1",
    queue_url="q",
    dead_letter_url="d",
    completion_url="c",
    input_bucket="in",
    intermediate_bucket="mid",
)


def share(device: str = "h/0", host: str = "h", **fields: Any) -> Share:
    given: dict[str, Any] = {
        "host": HostId(host),
        "device": DeviceId(device),
        "index": 0,
        "kind": DeviceKind.CUDA,
        "model": "L4",
        "memory_mib": 1000,
        "compute_guarantee_pct": 0,
        "compute_limit_pct": 100,
        "exclusive": False,
    }
    return Share(**{**given, **fields})


def job_lease(
    job: str, start_s: float, end_s: float | None, device: str = "h/0", **fields: Any
) -> JobLease:
    given: dict[str, Any] = {
        "lease": LeaseId(f"lease-{job}"),
        "attempt": 1,
        "shares": (share(device, device.partition("/")[0]),),
        "share_count": 1,
        "granted_s": start_s,
        "active_s": start_s,
        "freed_s": end_s,
        "ended_s": end_s,
        "reason": None if end_s is None else EndReason.DONE,
        "loading_s": None if end_s is None else 0.0,
    }
    return JobLease(**{**given, **fields})


def job_record(job: str = "j1", step: Step = Step.RUNNING, **fields: Any) -> Record:
    given: dict[str, Any] = {
        "holder": JobId(job),
        "revision": 1,
        "owner": None,
        "attempt": 1,
        "step": step,
        "waiting_since_s": None,
        "handle": "",
    }
    return Record(**{**given, **fields})


def job_result(**fields: Any) -> Result:
    given: dict[str, Any] = {
        "job_id": "j1",
        "state": "SUCCEEDED",
        "reason": "NONE",
        "attempt": 2,
        "nonce": "n",
        "exit_code": 0,
        "files": [],
        "times": {},
        "log_tail": "",
    }
    return Result(**{**given, **fields})


def ended_record(job: str, end_s: float, **fields: Any) -> Record:
    """A job that was received 10 s before its end, and ran for the last 4 s."""
    source = {
        "bucket": "in",
        "key": f"{job}.fa",
        "version_id": "v",
        "etag": "e",
        "size": 7,
        "event_name": "ObjectCreated:Put",
        "event_time": "2023-11-14T22:13:20.000Z",
    }
    given: dict[str, Any] = {
        "block": {"function": "f", "input": source},
        "outcome": "SUCCEEDED",
        "reason": "NONE",
        "tenant": "t",
        "lease": LeaseId(f"lease-{job}"),
        "updated_s": end_s,
        "times": {
            "RECEIVED": end_s - 10,
            "RESERVED": end_s - 5,
            "RUNNING": end_s - 4,
            "ENDED": end_s,
        },
        "leases": (job_lease(job, end_s - 4, end_s),),
    }
    return job_record(job, **{"revision": 3, "step": Step.ENDED, **given, **fields})

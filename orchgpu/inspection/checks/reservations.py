"""Reserved concurrency of functions, beside the jobs that they run at a time. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orchgpu.inspection.model import (
    Check,
    Finding,
    Inspected,
    Read,
    ReadCall,
    Subject,
    good,
    warning,
    wrong,
)

#: Runs beyond the jobs at a time: the event of an envelope starts its function again, where the
#: orchestrator has invoked it, and this second start ends at once
#: (docs/explanation/orchestrator.md).
_SECOND_STARTS = 2


def _reservations(subject: Subject, read: Read) -> Iterator[Finding]:
    for inspected in subject.functions:
        if inspected.deployed:
            arguments = {"FunctionName": inspected.function.name}
            call = ReadCall(
                service="lambda", operation="GetFunctionConcurrency", arguments=arguments
            )
            reserved = read(call).get("ReservedConcurrentExecutions")
            if reserved is not None:
                yield _reservation(inspected, reserved, subject.devices)


def _reservation(inspected: Inspected, reserved: int, devices: int | None) -> Finding:
    where, job = inspected.where, inspected.function.job
    free = f"aws lambda delete-function-concurrency --function-name {inspected.function.name}"
    if reserved == 0:
        return wrong(where, "its reserved concurrency is 0: it never runs", free)
    if job is None or not job.jobs:
        return good(where, f"{reserved} executions are reserved")
    second = _SECOND_STARTS if (job.start or "invoke") == "invoke" else 0
    declared = job.concurrency_max
    if declared is not None and reserved >= declared + second:
        return good(where, f"{reserved} executions are reserved")
    if inspected.function.function.reserved_concurrency is not None:
        free = "change reserved_concurrency"
    jobs = "no limit" if declared is None else str(declared)
    message = f"{reserved} executions are reserved, but job.concurrency is {jobs}"
    remedy = f"set job.concurrency to {max(1, reserved - second)}, or {free}"
    if second:
        message += "; a job that was invoked has two starts for a moment"
        counted, wanted = ("job.concurrency", declared) if declared else ("devices", devices)
        number = "" if wanted is None else f" = {wanted + second}"
        remedy += f" ({counted} + {second}{number})"
    return warning(where, message, remedy)


CHECK = Check(title="reserved concurrency", examine=_reservations)

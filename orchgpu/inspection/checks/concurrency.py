"""Lambda's concurrency of the account and of each function, beside the known devices. Pure."""

from __future__ import annotations

from orchgpu.inspection.model import (
    Call,
    Finding,
    Inspected,
    Reason,
    Refusal,
    Steps,
    Subject,
    attempted,
    good,
    not_known,
    unknown,
    warning,
    wrong,
)

#: Lambda keeps so much for functions without a reservation; new accounts have no more.
NEW_ACCOUNT = 10
#: Runs beyond the jobs at a time: the event of an envelope starts its function again, where the
#: orchestrator has invoked it, and this second start ends at once (docs/orchestrator.md).
SECOND_STARTS = 2
_RAISE = (
    "aws service-quotas request-service-quota-increase --service-code lambda"
    " --quota-code L-B99A9384 --desired-value {wanted}"
)


class Concurrency:
    """Throttled functions leave devices idle: an attempt holds its device until it expires."""

    title = "Lambda concurrency"

    def examine(self, subject: Subject) -> Steps[list[Finding]]:
        answer = yield Call(service="lambda", operation="GetAccountSettings")
        limit = int(answer["AccountLimit"]["ConcurrentExecutions"])
        unreserved = int(answer["AccountLimit"]["UnreservedConcurrentExecutions"])
        findings = [_of_account(subject, limit, unreserved)]
        for inspected in subject.functions:
            if inspected.deployed:
                findings += yield from _of_function(inspected, subject.devices)
        return findings


def _of_account(subject: Subject, limit: int, unreserved: int) -> Finding:
    where = f"account {subject.place.account}, {subject.place.region}"
    text = f"{limit} concurrent executions, {unreserved} of them unreserved"
    devices, wanted = subject.devices, _wanted(subject)
    if devices is None:
        remedy = "name the scheduler: --scheduler"
        return not_known(where, f"{text}; the number of devices is not known", remedy)
    remedy = _RAISE.format(wanted=max(1000, 2 * max(wanted, devices)))
    if unreserved < devices:
        message = f"{text}, but the scheduler has {devices} devices: some stay idle"
        return wrong(where, f"{message}, and jobs are throttled", remedy)
    if unreserved < wanted:
        message = f"{text}, but the functions may run {wanted} jobs at a time"
        return warning(where, message, f"{remedy}; or lower job.concurrency")
    if limit <= NEW_ACCOUNT:
        message = f"{text}: the limit of a new account, shared by all its functions"
        return warning(where, message, remedy)
    return good(where, f"{text}; {devices} devices")


def _wanted(subject: Subject) -> int:
    """The largest number of jobs at a time that the functions declare."""
    jobs = (one.function.job for one in subject.functions)
    return sum(job.concurrency_max or 0 for job in jobs if job is not None)


def _of_function(inspected: Inspected, devices: int | None) -> Steps[list[Finding]]:
    call = Call(
        service="lambda",
        operation="GetFunctionConcurrency",
        arguments={"FunctionName": inspected.name},
    )
    answer = yield from attempted(call)
    where = f"function {inspected.name}"
    if isinstance(answer, Refusal):
        return [] if answer.reason is Reason.ABSENT else [unknown(answer, where)]
    reserved = answer.get("ReservedConcurrentExecutions")
    if reserved is None:
        return []
    free = f"aws lambda delete-function-concurrency --function-name {inspected.name}"
    if reserved == 0:
        return [wrong(where, "its reserved concurrency is 0: it never runs", free)]
    job = inspected.function.job
    if job is None or not job.jobs:
        return [good(where, f"{reserved} executions are reserved")]
    second = SECOND_STARTS if (job.start or "invoke") == "invoke" else 0
    declared = job.concurrency_max
    if declared is None or reserved < declared + second:
        if inspected.function.function.reserved_concurrency is not None:
            free = "change reserved_concurrency"
        wanted = "no limit" if declared is None else str(declared)
        message = f"{reserved} executions are reserved, but job.concurrency is {wanted}"
        remedy = f"set job.concurrency to {max(1, reserved - second)}, or {free}"
        if second:
            message += "; a job that was invoked has two starts for a moment"
            jobs = declared if declared is not None else devices
            number = "" if jobs is None else f" = {jobs + second}"
            per = "devices" if declared is None else "job.concurrency"
            remedy += f" ({per} + {second}{number})"
        return [warning(where, message, remedy)]
    return [good(where, f"{reserved} executions are reserved")]


CHECK = Concurrency()

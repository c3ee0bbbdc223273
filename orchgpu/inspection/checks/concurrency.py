"""Lambda's concurrency of the account, beside the known devices. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orchgpu.inspection.model import (
    Check,
    Finding,
    Read,
    ReadCall,
    Subject,
    good,
    unknown,
    warning,
    wrong,
)

#: The limit of a new account, shared by all its functions.
_NEW_ACCOUNT = 10
_RAISE = (
    "aws service-quotas request-service-quota-increase --service-code lambda"
    " --quota-code L-B99A9384 --desired-value {wanted}"
)


def _concurrency(subject: Subject, read: Read) -> Iterator[Finding]:
    """Throttled functions leave devices idle: an attempt holds its device until it expires."""
    limits = read(ReadCall(service="lambda", operation="GetAccountSettings"))["AccountLimit"]
    limit, free = limits["ConcurrentExecutions"], limits["UnreservedConcurrentExecutions"]
    where = f"account {subject.place.account}, {subject.place.region}"
    text = f"{limit} concurrent executions, {free} of them unreserved"
    if subject.devices is None:
        message = f"{text}; the number of devices is not known"
        yield unknown(where, message, "name the scheduler: --scheduler")
        return
    declared = (inspected.function.job for inspected in subject.functions)
    jobs = sum(job.concurrency_max or 0 for job in declared if job is not None)
    remedy = _RAISE.format(wanted=max(1000, 2 * max(jobs, subject.devices)))
    if free < subject.devices:
        message = f"{text}, but the scheduler has {subject.devices} devices: some stay idle"
        yield wrong(where, f"{message}, and jobs are throttled", remedy)
    elif free < jobs:
        message = f"{text}, but the functions may run {jobs} jobs at a time"
        yield warning(where, message, f"{remedy}; or lower job.concurrency")
    elif limit <= _NEW_ACCOUNT:
        yield warning(where, f"{text}: the limit of a new account", remedy)
    else:
        yield good(where, f"{text}; {subject.devices} devices")


CHECK = Check(title="Lambda concurrency", examine=_concurrency)

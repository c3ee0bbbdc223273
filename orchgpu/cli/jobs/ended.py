"""Jobs by what the cloud holds of them, while the scheduler cannot be asked: those that ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract.keys import parse_result_key
from corekit.errors import AppError, ErrorCode

if TYPE_CHECKING:
    from contract.result import Result
    from orchgpu.cli.cloud import JobCloud
    from orchgpu.cli.jobs.jobs import Only
    from orchgpu.core.function import Function

#: Of a scheduler that is not there, or not reached: what the cloud holds can still be told.
UNHEARD = (ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT)
#: Results that are read at once.
_READS_AT_ONCE = 8
#: Results that are read for their states; each is a call.
RESULTS_MAX = 1000


def ended_jobs(cloud: JobCloud, limit: int, only: Only) -> list[dict[str, Any]]:
    """The newest jobs that ended, of those that are wanted, as `orchgpu jobs` tells them.

    An input is not known of any. Their states are read from the newest `RESULTS_MAX` only.
    """
    from orchgpu.cli.jobs.batch import for_each

    found: dict[str, tuple[float, Function]] = {}
    for function in cloud.functions():
        for entry in cloud.objects(function.intermediate_bucket, "results/"):
            job = parse_result_key(entry.key)
            if job is not None:
                found.setdefault(job, (entry.modified_s, function))
    newest = sorted(found.items(), key=lambda one: one[1][0], reverse=True)
    meant = [one for one in newest if only.may_want(one[1][1].name, one[1][0])]
    read = for_each(
        lambda one: _described(cloud, one[0], *one[1]),
        meant[: RESULTS_MAX if only.states else limit],
        _READS_AT_ONCE,
        lambda _: None,
    )
    return [one for one in read if not only.states or one["state"] in only.states][:limit]


def _described(cloud: JobCloud, job: str, stored_s: float, function: Function) -> dict[str, Any]:
    try:
        result = cloud.result(function, job)
    except AppError as error:
        if error.code is not ErrorCode.INVALID:
            raise
        result = None  # one that cannot be read hides no other
    return {
        "job_id": job,
        "function": function.name,
        "input": None,
        **_ending(result),
        "owner": None,
        "lease": None,
        "waiting_s": None,
        "updated_s": stored_s,
        "why": None,
        "waits": None,
        "in_the_way": [],
        "note": None,
    }


def _ending(result: Result | None) -> dict[str, Any]:
    if result is None:
        return {"state": "ENDED", "reason": "NONE", "attempt": 0, "times": {}}
    return {
        "state": result.state,
        "reason": result.reason,
        "attempt": result.attempt,
        "times": dict(result.times),
    }

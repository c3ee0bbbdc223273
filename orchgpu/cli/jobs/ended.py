"""Jobs that ended, from their results in the cloud: for a scheduler that does not answer."""

from __future__ import annotations

from contract.keys import parse_result_key
from contract.result import Result
from corekit.errors import AppError, ErrorCode
from orchgpu.core.function import Function
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.records import JobFilter
from orchgpu.jobs.transfers import for_each

#: Results that are read at once.
_READS_AT_ONCE = 8
#: Results that are read for their states; each is a call.
RESULTS_MAX = 1000


def ended_jobs(cloud: JobCloud, limit: int, wanted: JobFilter) -> list[dict[str, object]]:
    """The newest wanted jobs that ended, in the form of `orchgpu jobs`; their inputs are not known.

    With a condition on states the newest `RESULTS_MAX` results are searched.
    """
    found: dict[str, tuple[float, Function]] = {}
    for function in cloud.functions():
        for entry in cloud.objects(function.intermediate_bucket, "results/"):
            job = parse_result_key(entry.key)
            if job is not None:
                found.setdefault(job, (entry.modified_s, function))
    newest = sorted(found.items(), key=lambda one: one[1][0], reverse=True)
    candidates = [one for one in newest if wanted.allows_any_state(one[1][1].name, one[1][0])]
    read = for_each(
        lambda one: _described(cloud, one[0], *one[1]),
        candidates[: RESULTS_MAX if wanted.states else limit],
        _READS_AT_ONCE,
        lambda _: None,
    )
    return [one for one in read if not wanted.states or one["state"] in wanted.states][:limit]


def _described(cloud: JobCloud, job: str, stored_s: float, function: Function) -> dict[str, object]:
    try:
        result = cloud.result(function, job)
    except AppError as error:
        if error.code is not ErrorCode.INVALID:
            raise
        result = None  # an unreadable result hides no other
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
        "blocking_leases": [],
        "note": None,
    }


def _ending(result: Result | None) -> dict[str, object]:
    if result is None:
        return {"state": "ENDED", "reason": "NONE", "attempt": 0, "times": {}}
    return {
        "state": result.state,
        "reason": result.reason,
        "attempt": result.attempt,
        "times": dict(result.times),
    }

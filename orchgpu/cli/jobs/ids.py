"""Ids of jobs, whole or by a prefix that only one of them has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from contract.keys import parse_result_key, result_key
from corekit.errors import AppError, ErrorCode, invalid

if TYPE_CHECKING:
    from orchgpu.cli.cloud import JobCloud

#: `contract.keys.job_id`
JOB_ID = re.compile("j[0-9a-f]{25}")
#: Fewer characters name too many jobs to be meant.
PREFIX_MIN = 4
_PREFIX = re.compile(f"j[0-9a-f]{{{PREFIX_MIN - 1},24}}")
_TOO_SHORT = re.compile(f"j[0-9a-f]{{0,{PREFIX_MIN - 2}}}")
#: The newest records among which one is looked for; results are listed by the prefix itself.
RECORDS_MAX = 10_000
#: Candidates named in a sentence; JSON has all of them.
NAMED_MAX = 8


def is_prefix(text: str) -> bool:
    """Whether it could be the beginning of a job's id, but not all of it."""
    return _PREFIX.fullmatch(text) is not None


def whole_id(given: str, scheduler: str | None) -> str:
    """The one job whose id begins so; what is no prefix of an id is given back as it is.

    `scheduler`: as given on the command line. Jobs are those of the scheduler's records and of the
    results in the cloud. Raises NOT_FOUND when there is none, INVALID naming several or
    when less than `PREFIX_MIN` characters are given.
    """
    if _TOO_SHORT.fullmatch(given):
        raise invalid(
            f"{given!r} names too many jobs: give {PREFIX_MIN} characters of an id or more"
        )
    if not is_prefix(given):
        return given
    return chosen(given, _known_jobs(given, scheduler))


def chosen(prefix: str, jobs: Mapping[str, str]) -> str:
    """The one of the jobs, each with what is known of it, whose id begins so. Raises as above."""
    found = sorted(job for job in jobs if job.startswith(prefix))
    if len(found) == 1:
        return found[0]
    if not found:
        raise AppError(ErrorCode.NOT_FOUND, f"nobody knows a job whose id begins with {prefix!r}")
    named = "".join(f"\n  {job}  {jobs[job]}" for job in found[:NAMED_MAX])
    more = f"\n  and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
    message = f"the ids of {len(found)} jobs begin with {prefix!r}; give more of it:{named}{more}"
    raise invalid(message, candidates=found)


def whole_ids(given: Iterable[str], known: Iterable[str]) -> set[str]:
    """The same for several among known ones; what is none of them stays as it is."""
    jobs = dict.fromkeys(known, "")
    return {
        chosen(one, jobs) if is_prefix(one) and any(job.startswith(one) for job in jobs) else one
        for one in given
    }


def _known_jobs(prefix: str, scheduler: str | None) -> dict[str, str]:
    from orchgpu.cli.cloud import JobCloud

    recorded, unheard = _of_scheduler(prefix, scheduler)
    try:
        with closing(JobCloud()) as cloud:
            return {**_of_results(prefix, cloud), **recorded}
    except AppError:
        if recorded:
            return recorded
        if unheard is not None:
            raise unheard from None
        raise


def _of_scheduler(prefix: str, scheduler: str | None) -> tuple[dict[str, str], AppError | None]:
    from orchgpu.cli.jobs.ended import UNHEARD
    from orchgpu.cli.jobs.waiting import newest_records
    from orchgpu.cli.scheduler import ask, scheduler_or_none

    address = scheduler_or_none(scheduler)
    if address is None:
        return {}, None
    try:
        records = ask(address, lambda client: newest_records(client, RECORDS_MAX))
    except AppError as error:
        if error.code not in UNHEARD:
            raise
        return {}, error
    return {
        one.holder: f"{one.block.get('function') or '-'}  {one.outcome or one.step.value}"
        for one in records
        if one.holder.startswith(prefix)
    }, None


def _of_results(prefix: str, cloud: JobCloud) -> dict[str, str]:
    begin = result_key(prefix).removesuffix(".json")
    return {
        job: f"{function.name}  ended"
        for function in cloud.functions()
        for entry in cloud.objects(function.intermediate_bucket, begin)
        if (job := parse_result_key(entry.key)) is not None
    }

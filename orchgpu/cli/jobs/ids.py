"""Ids of jobs, whole or by a unique prefix."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

from contract.keys import parse_result_key, result_key
from corekit.errors import AppError, ErrorCode, invalid
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.records import newest_records
from orchgpu.jobs.scheduler import NO_ANSWER, ask, scheduler_or_none

#: A shorter prefix is too ambiguous.
PREFIX_MIN = 4
_PREFIX = re.compile(f"j[0-9a-f]{{{PREFIX_MIN - 1},24}}")
_TOO_SHORT = re.compile(f"j[0-9a-f]{{0,{PREFIX_MIN - 2}}}")
#: The newest records that are searched; results are listed by the prefix itself.
RECORDS_MAX = 10_000
#: Candidates listed in a message; JSON has all of them.
NAMED_MAX = 8


def is_prefix(text: str) -> bool:
    """True when the text may be the beginning of a job's id, but not a whole id."""
    return _PREFIX.fullmatch(text) is not None


def resolve_ids(given: Sequence[str], scheduler: str | None) -> list[str]:
    """The whole id of each prefix, in order, without repetition; other texts are unchanged.

    `scheduler`: as given on the command line; it and the cloud are asked once for all prefixes.
    Raises NOT_FOUND for a prefix that matches no id, INVALID for a prefix that matches several or
    is shorter than `PREFIX_MIN` characters.
    """
    for one in given:
        if _TOO_SHORT.fullmatch(one):
            raise invalid(f"{one!r} is too short: give {PREFIX_MIN} characters of an id or more")
    prefixes = list(dict.fromkeys(one for one in given if is_prefix(one)))
    jobs = _known_jobs(prefixes, scheduler) if prefixes else {}
    whole = {prefix: resolved(prefix, jobs) for prefix in prefixes}
    return list(dict.fromkeys(whole.get(one, one) for one in given))


def whole_id(given: str, scheduler: str | None) -> str:
    """`resolve_ids` for one id."""
    return resolve_ids([given], scheduler)[0]


def resolved(prefix: str, jobs: Mapping[str, str]) -> str:
    """The one job, of those described, whose id begins with the prefix. Raises as above."""
    found = sorted(job for job in jobs if job.startswith(prefix))
    if len(found) == 1:
        return found[0]
    if not found:
        raise AppError(ErrorCode.NOT_FOUND, f"there is no job whose id begins with {prefix!r}")
    named = "".join(f"\n  {job}  {jobs[job]}" for job in found[:NAMED_MAX])
    more = f"\n  and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
    message = (
        f"the ids of {len(found)} jobs begin with {prefix!r}; give more characters:{named}{more}"
    )
    raise invalid(message, candidates=found)


def resolved_among(given: Iterable[str], known: Iterable[str]) -> set[str]:
    """The same for several prefixes of known ids; texts that match none are unchanged."""
    jobs = dict.fromkeys(known, "")
    return {
        resolved(one, jobs) if is_prefix(one) and any(job.startswith(one) for job in jobs) else one
        for one in given
    }


def _known_jobs(prefixes: Sequence[str], scheduler: str | None) -> dict[str, str]:
    recorded, scheduler_error = _of_scheduler(tuple(prefixes), scheduler)
    try:
        with closing(JobCloud()) as cloud:
            return {**_of_results(prefixes, cloud), **recorded}
    except AppError:
        if recorded:
            return recorded
        if scheduler_error is not None:
            raise scheduler_error from None
        raise


def _of_scheduler(
    prefixes: tuple[str, ...], scheduler: str | None
) -> tuple[dict[str, str], AppError | None]:
    address = scheduler_or_none(scheduler)
    if address is None:
        return {}, None
    try:
        records = ask(address, lambda client: newest_records(client, RECORDS_MAX))
    except AppError as error:
        if error.code not in NO_ANSWER:
            raise
        return {}, error
    return {
        one.holder: f"{one.block.get('function') or '-'}  {one.outcome or one.step.value}"
        for one in records
        if one.holder.startswith(prefixes)
    }, None


def _of_results(prefixes: Sequence[str], cloud: JobCloud) -> dict[str, str]:
    return {
        job: f"{function.name}  ended"
        for function in cloud.functions()
        for prefix in prefixes
        for entry in cloud.objects(
            function.intermediate_bucket, result_key(prefix).removesuffix(".json")
        )
        if (job := parse_result_key(entry.key)) is not None
    }

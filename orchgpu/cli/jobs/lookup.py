"""Jobs by the ids of a command line, whole or by a unique prefix, and jobs that ended.

The scheduler's part is shown where it answers; the rest comes from the results in the cloud.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

from contract.keys import parse_result_key, result_key
from contract.run import inputs_key
from corekit.cli.screen import echo
from corekit.decode import decode_json_known
from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import replace
from orchgpu.core.function import Function
from orchgpu.core.runs.records import Inputs
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.known import Known, look, scheduled
from orchgpu.jobs.records import JobFilter, newest_records
from orchgpu.jobs.scheduler import NO_ANSWER, ask, scheduler_or_none
from orchgpu.jobs.transfers import for_each

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


def known_job(job: str, scheduler: str | None, *, despite_scheduler: bool = False) -> Known:
    """All that is known of a job. Raises NOT_FOUND for an unknown job.

    `despite_scheduler`: a scheduler that does not answer is an error only when the cloud has no
    result either; commands that change a job must not rely on that.
    """
    address, known, scheduler_error = scheduler_or_none(scheduler), None, None
    try:
        known = None if address is None else ask(address, lambda client: scheduled(client, job))
    except AppError as error:
        if not despite_scheduler or error.code not in NO_ANSWER:
            raise
        scheduler_error = error
    with closing(JobCloud()) as cloud:
        try:
            return replace(look(cloud, known, job), scheduler_error=scheduler_error)
        except AppError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            if scheduler_error is not None:
                raise scheduler_error from error
            if address is not None:
                raise
            text = f"{error.message}; without a scheduler, only jobs that ended are known"
            raise AppError(error.code, text) from error


def echo_scheduler_error(known: Known) -> None:
    """Report on standard error that the output is incomplete."""
    if known.scheduler_error is not None:
        echo(f"orchgpu: {known.scheduler_error.message}; only the cloud's part is shown", err=True)


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
        "state": "ENDED" if result is None else result.state,
        "reason": "NONE" if result is None else result.reason,
        "attempt": 0 if result is None else result.attempt,
        "times": {} if result is None else dict(result.times),
        "updated_s": stored_s,
        "blocking_leases": [],
        **dict.fromkeys(("input", "run", "step", "owner", "lease", "waiting_s")),
        **dict.fromkeys(("why", "waits", "note")),
    }


#: Lists of files that are read for one list of jobs, the newest first; each is a call.
LISTS_MAX = 100


def with_files(cloud: JobCloud, entries: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """The jobs, with `inputs` in those of steps that take several files: instead of their list.

    A list that cannot be read is left out: its job shows the key of the list.
    """
    lists = [
        (at, place)
        for at, entry in enumerate(entries)
        if entry["run"] and (place := str(entry["input"])).endswith(_list_key(entry))
    ]

    def read(one: tuple[int, str]) -> tuple[int, list[str]]:
        bucket, _, key = one[1].partition("/")
        try:
            found = decode_json_known(Inputs, cloud.fetch(bucket, key), key)[0]
        except AppError:
            return one[0], []
        return one[0], [f"{file.bucket}/{file.key}" for file in found.files]

    files = dict(for_each(read, lists[:LISTS_MAX], _READS_AT_ONCE, lambda _: None))
    return [
        {**entry, "inputs": files[at]} if files.get(at) else entry
        for at, entry in enumerate(entries)
    ]


def _list_key(entry: Mapping[str, object]) -> str:
    return "/" + inputs_key(str(entry["run"]), str(entry["step"]))


def shown_input(entry: Mapping[str, object]) -> str:
    """The input of a job for people: its file, or the first of several."""
    files = entry.get("inputs")
    if isinstance(files, list) and len(files) > 1:
        return f"{files[0]} and {len(files) - 1} more"
    return str(entry.get("files_text") or entry["input"] or "-")

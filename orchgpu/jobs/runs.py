"""Runs of workflows as people see them: started, read, cancelled and retried.

A run has no owner: its state is the fold of its objects (`orchgpu.core.runs`), which this module
reads as an orchestrator does. Requests are objects too; an advance makes some orchestrator look.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from math import inf, nextafter
from pathlib import Path, PurePath
from typing import TypeVar

from contract.result import Result
from contract.run import (
    RUN_ID,
    admission_key,
    cancel_key,
    retry_key,
    retry_numbers,
    run_id,
    run_key,
    run_prefix,
    run_result_key,
    started_steps,
)
from contract.states import JobState, Reason, RunState, StepState
from corekit.aio.newer import known
from corekit.decode import decode_json_known, encode_json
from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import Value, replace
from orchgpu.core.function import Function
from orchgpu.core.promised import Promised, promised
from orchgpu.core.runs.facts import Facts, Read, list_prefix
from orchgpu.core.runs.messages import advance_body
from orchgpu.core.runs.newest import newest_prefix, newest_run
from orchgpu.core.runs.records import Admission, Cancel, Frozen, InputFile, Retry, RunResult
from orchgpu.core.runs.state import Run, Step, state_of
from orchgpu.core.runs.workflow import Workflow
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.places import Input
from orchgpu.jobs.transfers import for_each
from orchgpu.jobs.uploaded import input_key

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Objects that are read at once.
READS_AT_ONCE = 8
#: Characters of an id that suffice, as of a job's.
PREFIX_MIN = 4
_PREFIX = re.compile(f"r[0-9a-f]{{{PREFIX_MIN - 1},25}}")


class StartedRun(Value):
    """One uploaded input of a workflow."""

    workflow: Workflow
    file: PurePath  #: its name
    key: str  #: in the workflow's input bucket
    run_ids: tuple[str, ...]  #: by version id and, for events that carry none, by etag and date
    uploaded_s: float  #: wall clock

    @property
    def input(self) -> str:
        return f"{self.workflow.input_bucket}/{self.key}"


class SeenRun(Value):
    """One run, as its objects show it."""

    workflow: Workflow  #: as it was frozen when the run began
    facts: Facts
    state: Run

    @property
    def id(self) -> str:
        return self.facts.run

    @property
    def input(self) -> str:
        return f"{self.facts.frozen.input.bucket}/{self.facts.frozen.input.key}"

    @property
    def over(self) -> bool:
        """Whether its end is stored, and no retry is newer."""
        return self.facts.stands

    @property
    def succeeded(self) -> bool:
        return self.over and self.state.state is RunState.SUCCEEDED

    @property
    def files(self) -> tuple[InputFile, ...]:
        """The files of its steps that no other step takes; () before the end."""
        ended = self.facts.ended
        if ended is None or not self.over:
            return ()
        left = tuple(self.state.left(self.workflow))
        return left or ended.files  # the results of jobs may have expired

    @property
    def failed_jobs(self) -> Iterator[Result]:
        """The results of its jobs that did not succeed."""
        for step in self.state.steps.values():
            results = (job.result for job in step.jobs)
            yield from (one for one in results if one and one.state != JobState.SUCCEEDED)

    @property
    def steps_ended(self) -> int:
        """Those of a refused run that never began are closed, and none of them ran."""
        never_ran = self.state.state is RunState.REJECTED
        ended = (step.state for step in self.state.steps.values() if step.state.terminal)
        skipped = (StepState.SKIPPED, StepState.CANCELLED)  # the second by older versions
        return sum(not (never_ran and state in skipped) for state in ended)

    @property
    def seconds(self) -> float:
        """From the storing of its input to its end, or until now."""
        return max(0.0, self._until_s - self.facts.frozen.stored_at_s)

    @property
    def _until_s(self) -> float:
        ended = self.facts.ended
        return ended.ended_at_s if ended is not None and self.over else self.facts.wall_s

    @property
    def promised(self) -> Promised | None:
        """Its promise; None: it has no objectives. A retry begins their time again."""
        slo, state = self.workflow.slo, self.state
        if slo is None:
            return None
        seconds = max(0.0, self._until_s - self.facts.begun_at_s)
        ended = self.facts.ended
        cost_usd = state.cost_usd if self.workflow.counts_cost else None
        if ended is not None and self.over:
            cost_usd = ended.cost_usd  # the results of jobs may have expired
        return promised(slo, seconds, state.state.value, state.reason.value, cost_usd)


# ---------------------------------------------------------------------- starting


def start_runs(
    cloud: JobCloud,
    workflow: Workflow,
    files: Sequence[Input],
    at_once: int,
    uploaded: Callable[[StartedRun], None],
    *,
    again: bool,
    parameters: str = "",
) -> list[StartedRun]:
    """Upload inputs, some at a time; those that were uploaded before only if `again`."""

    def start(source: Input) -> StartedRun:
        with source.file(cloud) as file:
            head = None if again else cloud.uploaded_before(workflow, file, parameters)
            now_s = time.time() if head is None else head.modified.timestamp()
            head = head or cloud.upload_input(workflow, file, parameters)
            key = input_key(workflow, file)
            ids = tuple(
                run_id(workflow.input_bucket, key, version, workflow.name)
                for version in head.versions
            )
            return StartedRun(workflow=workflow, file=file, key=key, run_ids=ids, uploaded_s=now_s)

    return for_each(start, files, at_once, uploaded)


# ---------------------------------------------------------------------- reading


def is_run(text: str) -> bool:
    """Whether a text is the id of a run, or may be the beginning of one."""
    return _PREFIX.fullmatch(text) is not None


def find_run(cloud: JobCloud, text: str, before: Facts | None = None) -> SeenRun:
    """The run with an id, or with the only one that begins so. Raises NOT_FOUND or INVALID.

    `before`: as of `read_run`.
    """
    found = {
        run: workflow
        for workflow in cloud.workflows()
        for run in _ids(cloud, workflow, text)
        if run.startswith(text)
    }
    if len(found) > 1:
        named = "".join(f"\n  {run}  {found[run].name}" for run in sorted(found)[:8])
        raise invalid(f"the ids of {len(found)} runs begin with {text!r}:{named}")
    for run, workflow in found.items():
        seen = read_run(cloud, workflow, run, before)
        if seen is not None:
            return seen
    names = ", ".join(workflow.name for workflow in cloud.workflows()) or "none"
    message = f"there is no run {text!r} of a deployed workflow ({names})"
    raise AppError(ErrorCode.NOT_FOUND, message)


def _ids(cloud: JobCloud, workflow: Workflow, text: str = "") -> dict[str, float]:
    """The runs that began, by id, with the time; `text`: only ids that begin so."""
    listed = cloud.objects(workflow.bucket, f"runs/{text}")
    return {
        parts[1]: entry.modified_s
        for entry in listed
        if len(parts := entry.key.split("/")) == 3
        and parts[2] == "run.json"
        and RUN_ID.fullmatch(parts[1])
    }


def newest_runs(
    cloud: JobCloud, workflow: Workflow, limit: int, *, whole: bool = False
) -> list[SeenRun]:
    """The runs of a workflow that began last, the newest first.

    `whole`: with the jobs of those that ended, too; without, an ended run is two reads.
    """

    def read(run: str) -> SeenRun | None:
        return read_run(cloud, workflow, run, whole=whole)

    seen = for_each(read, _newest(cloud, workflow, limit), READS_AT_ONCE, _nothing)
    return [run for run in seen if run is not None and run.workflow.name == workflow.name]


def _newest(cloud: JobCloud, workflow: Workflow, limit: int) -> list[str]:
    """The ids of the runs that began last, by as few keys as that takes."""
    keys = (entry.key for entry in cloud.objects(workflow.bucket, newest_prefix(workflow.name)))
    named = list(dict.fromkeys(run for key in islice(keys, limit) if (run := newest_run(key))))
    if len(named) < limit:  # older versions wrote no such keys
        began = _ids(cloud, workflow).items()
        older = [run for run, _ in sorted(began, key=lambda one: one[1], reverse=True)]
        named = list(dict.fromkeys([*named, *older]))
    return named[:limit]


def read_run(
    cloud: JobCloud,
    workflow: Workflow,
    run: str,
    before: Facts | None = None,
    *,
    whole: bool = True,
) -> SeenRun | None:
    """The run as its objects show it now; None before it began.

    `before`: facts that an earlier call read; what no later one can change is not read again.
    `whole`: False: of a run that ended, its end alone, without its jobs.
    """
    bucket = workflow.bucket
    keys = [entry.key for entry in cloud.objects(bucket, run_prefix(run))]
    frozen = _object(cloud, Frozen, bucket, run_key(run), keys)
    if frozen is None:
        return None
    retries = tuple(_retry(cloud.fetch(bucket, retry_key(run, n))) for n in retry_numbers(keys))
    facts = Facts(
        frozen=frozen,
        wall_s=time.time(),
        admission=_object(cloud, Admission, bucket, admission_key(run, len(retries)), keys),
        cancel=_object(cloud, Cancel, bucket, cancel_key(run), keys),
        retries=retries,
        ended=_object(cloud, RunResult, bucket, run_result_key(run), keys),
        started=started_steps(keys),
        reads={} if before is None else before.lasting(),
    )
    if facts.ended is not None and facts.stands and not whole:
        return SeenRun(workflow=frozen.workflow, facts=facts, state=_end_of(facts.ended))
    state = state_of(facts)
    functions = _functions(cloud, frozen.workflow) if state.wanted else {}
    while state.wanted:
        facts = _more(cloud, functions, facts, state)
        state = state_of(facts)
    return SeenRun(workflow=frozen.workflow, facts=facts, state=_as_stored(facts, state))


def _end_of(ended: RunResult) -> Run:
    """The state at the end of a run, whose jobs were not read."""
    steps = {
        one.name: Step(
            name=one.name, state=one.state, reason=_reason(one.reason), detail=one.detail
        )
        for one in ended.steps
    }
    reason = _reason(ended.reason)
    return Run(id=ended.run, state=ended.state, steps=steps, reason=reason, detail=ended.detail)


def _as_stored(facts: Facts, state: Run) -> Run:
    """The state; of a run that ended with its stored end, which outlives the results of jobs."""
    ended = facts.ended
    if ended is None or not facts.stands:
        return state
    steps = {
        one.name: replace(
            state.steps[one.name], state=one.state, reason=_reason(one.reason), detail=one.detail
        )
        for one in ended.steps
        if one.name in state.steps
    }
    reason = _reason(ended.reason)
    return replace(state, state=ended.state, reason=reason, detail=ended.detail, steps=steps)


def _reason(text: str) -> Reason:
    try:
        return Reason(text)
    except ValueError:  # of a newer version
        return Reason.FUNCTION_ERROR


def _functions(cloud: JobCloud, workflow: Workflow) -> dict[str, Function]:
    """The functions of the steps that are still deployed, by name."""
    served = cloud.served()
    return {step.name: cloud.function(step.name) for step in workflow.steps if step.name in served}


def _more(cloud: JobCloud, functions: dict[str, Function], facts: Facts, state: Run) -> Facts:
    def read(wanted: tuple[str, str]) -> tuple[str, Read]:
        step, job = wanted
        function = functions.get(step)
        result = None if function is None else cloud.result(function, job)
        return job, Read(result=result, etag=_LISTED)

    def listed(step: str) -> tuple[str, dict[str, str]]:
        function = functions.get(step)
        prefix = list_prefix(facts.run, step)
        bucket = "" if function is None else function.intermediate_bucket
        entries = cloud.objects(bucket, prefix) if bucket else ()
        names = (entry.key.removeprefix("results/") for entry in entries)
        return step, {name.removesuffix(".json"): _LISTED for name in names}

    reads = dict(for_each(read, state.wanted.jobs, READS_AT_ONCE, _nothing))
    lists = dict(map(listed, state.wanted.lists))
    return replace(facts, reads={**facts.reads, **reads}, listed={**facts.listed, **lists})


#: Stands for the etag of a result: this module replaces none.
_LISTED = "listed"


def _object(cloud: JobCloud, kind: type[T], bucket: str, key: str, keys: Iterable[str]) -> T | None:
    """An object of a run that was listed."""
    if key not in keys:
        return None
    return known(logger, decode_json_known(kind, cloud.fetch(bucket, key), key))


def _retry(body: bytes) -> Retry:
    try:
        return Retry.from_json(body)
    except (ValueError, RecursionError) as error:
        raise invalid(f"a retry of the run is not readable: {error}") from error


def _nothing(_: object) -> None:
    """Do nothing with one thing that is done."""


# ---------------------------------------------------------------------- requests


def cancel_run(cloud: JobCloud, seen: SeenRun, detail: str) -> None:
    """Ask for the end of a run; may be repeated. Raises CONFLICT when it ended otherwise."""
    if seen.over:
        if seen.state.state is not RunState.CANCELLED:
            message = f"{seen.id} ended before it could be cancelled: {seen.state.state}"
            raise AppError(ErrorCode.CONFLICT, message)
        return
    bucket, key = seen.workflow.bucket, cancel_key(seen.id)
    if seen.facts.cancelled is None:
        stale = cloud.head(bucket, key).etag if seen.facts.cancel is not None else None
        # the retry may be by a clock that is ahead of this one
        after_retry_s = nextafter(seen.facts.retried_at_s or 0.0, inf)
        body = encode_json(Cancel(at_s=max(time.time(), after_retry_s), detail=detail))
        try:
            cloud.services.write_once(bucket, key, body, replaces=stale)
        except AppError as error:
            if error.code is not ErrorCode.CONFLICT:
                raise  # another user asked for it
    _advance(cloud, seen)


def retry_run(cloud: JobCloud, seen: SeenRun, from_step: str = "") -> None:
    """Ask for another try of what failed, or of a step and all after it.

    Raises CONFLICT while the run is not over, and when another user asked first; INVALID for an
    unknown step, and for a run that succeeded, without a step.
    """
    names = [step.name for step in seen.workflow.steps]
    if from_step and from_step not in names:
        raise invalid(f"{seen.workflow.name} has no step {from_step!r}; it has {', '.join(names)}")
    if not seen.over or seen.facts.ended is None:
        raise AppError(ErrorCode.CONFLICT, f"{seen.id} is not over: it is {seen.state.state}")
    if seen.succeeded and not from_step:
        raise invalid(f"{seen.id} succeeded: name the step to begin from, with --from STEP")
    key = retry_key(seen.id, len(seen.facts.retries) + 1)
    retry = Retry(at_s=max(time.time(), seen.facts.ended.ended_at_s), from_step=from_step)
    cloud.services.write_once(seen.workflow.bucket, key, retry.to_json(), replaces=None)
    _advance(cloud, seen, token=True)  # that of the input was deleted when the run ended


def _advance(cloud: JobCloud, seen: SeenRun, *, token: bool = False) -> None:
    """Make some orchestrator look, by the queue of the workflow as it is deployed now."""
    deployed = cloud.workflow(seen.workflow.name) or seen.workflow
    cloud.services.send(deployed.queue_url, advance_body(seen.id, token=token))


# ---------------------------------------------------------------------- files


class Fetched(Value):
    """The files of runs that were fetched, and those that other jobs have replaced."""

    files: tuple[Path, ...]
    overwritten: tuple[str, ...] = ()  #: `s3://bucket/key`


def fetch_files(cloud: JobCloud, runs: Sequence[SeenRun], folder: Path, at_once: int) -> Fetched:
    """Fetch what the runs left, into `folder/<input>/<step>/<name>`.

    Of several steps that wrote one object the last one has its file. An object that another job
    has written since is not fetched. Raises INVALID before anything is fetched, for two that would
    be one file.
    """
    wanted: dict[Path, InputFile] = {}
    objects: list[tuple[str, str]] = []  # run and object of each
    for run in runs:
        source = PurePath(run.facts.frozen.input.key).name
        for file in run.files:
            name = PurePath(file.key).name
            to = folder / source / file.step / name
            if name in ("", "..") or to in wanted:
                where = f"s3://{file.bucket}/{file.key}"
                raise invalid(f"{where} and another output would be the file {str(to)!r}")
            wanted[to] = file
            objects.append((run.id, f"s3://{file.bucket}/{file.key}"))

    def fetch(one: tuple[Path, InputFile]) -> bool:
        to, file = one
        if not _is_still(cloud, file):
            return False
        cloud.download(file.bucket, file.key, to)
        if _is_still(cloud, file):
            return True
        to.unlink()  # it was replaced meanwhile
        return False

    ours = for_each(fetch, list(wanted.items()), at_once, _nothing)
    fetched = {one for one, own in zip(objects, ours, strict=True) if own}
    return Fetched(
        files=tuple(to for to, own in zip(wanted, ours, strict=True) if own),
        overwritten=tuple(dict.fromkeys(one[1] for one in objects if one not in fetched)),
    )


def _is_still(cloud: JobCloud, file: InputFile) -> bool:
    head = cloud.head(file.bucket, file.key)
    return file.is_still(head.version_id, head.etag)

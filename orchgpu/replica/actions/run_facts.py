"""The facts of a run, read through the object store; see `core/runs/facts.py` for what is read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from contract.result import Result
from contract.run import (
    admission_key,
    cancel_key,
    retry_key,
    retry_numbers,
    run_key,
    run_prefix,
    run_result_key,
    started_steps,
    step_job_id,
)
from corekit.aio.clock import Clock
from corekit.decode import decode_json_known
from corekit.errors import AppError
from corekit.values import replace
from orchgpu.core.function import Function
from orchgpu.core.runs.facts import Facts, Read, list_prefix
from orchgpu.core.runs.records import Admission, Cancel, Frozen, Retry, RunResult
from orchgpu.core.runs.state import Run, state_of
from orchgpu.core.runs.workflow import Workflow
from orchgpu.ports import ObjectStore, StoredObject, if_present
from orchgpu.replica.actions.objects import read_result

logger = logging.getLogger(__name__)

T = TypeVar("T")

RECORD_BYTES_MAX = 4 * 2**20  #: of an object of a run: a result names a thousand files
#: Results that are read at once.
READS_AT_ONCE = 16
#: Runs whose lasting facts a replica keeps between two folds.
KEPT_RUNS_MAX = 64


class RunFacts:
    """Reads the facts of runs; keeps what no later read can change, of the newest runs."""

    def __init__(
        self, store: ObjectStore, clock: Clock, functions: Callable[[], Mapping[str, Function]]
    ) -> None:
        """`functions`: those that are deployed now."""
        self._store = store
        self._clock = clock
        self._functions = functions
        self._kept: dict[str, Facts] = {}

    async def fold(
        self, workflow: Workflow, run: str, hints: Iterable[str], known: Iterable[Result] = ()
    ) -> tuple[Facts, Run] | None:
        """The complete facts of a run and its state; None for a run that was never started.

        `hints`: jobs that ended without success; `known`: stored results of jobs that succeeded.
        Raises AppError.
        """
        facts = await self._begun(workflow, run)
        if facts is None:
            return None
        facts = replace(facts, hints=frozenset(hints))
        if not facts.retries:  # else another result may have replaced it
            facts = replace(facts, reads={**_reads_of(known, facts), **facts.reads})
        state = state_of(facts)
        while state.wanted and not facts.stands:
            facts = await self._more(facts, state)
            state = state_of(facts)
        self._keep(facts)
        return facts, state

    def forget(self, run: str) -> None:
        self._kept.pop(run, None)

    async def _begun(self, workflow: Workflow, run: str) -> Facts | None:
        """Read the objects below the prefix of the run: one LIST, then a GET of each."""
        bucket = workflow.bucket
        keys = await self._store.etags(bucket, run_prefix(run))
        if run_key(run) not in keys:
            return None
        known = self._kept.get(run)
        frozen = known.frozen if known else await self._read(Frozen, bucket, run_key(run))
        if frozen is None:
            return None
        cancel = ended = None
        if cancel_key(run) in keys:
            cancel = await self._read(Cancel, bucket, cancel_key(run))
        if run_result_key(run) in keys:
            ended = await self._read(RunResult, bucket, run_result_key(run))
        retries, admission = await self._retries(bucket, run, keys), None
        if (key := admission_key(run, len(retries))) in keys:
            admission = await self._read(Admission, bucket, key)
        facts = Facts(
            frozen=frozen,
            wall_s=self._clock.wall_s(),
            cancel=cancel,
            retries=retries,
            admission=admission,
            ended=ended,
            ended_etag=keys.get(run_result_key(run), ""),
            started=started_steps(keys),
            reads={} if known is None else known.reads,
            gone=frozenset(
                step.name for step in frozen.workflow.steps if step.name not in self._functions()
            ),
        )
        # another replica may have ended the run: a retry since makes void what was read before it
        return replace(facts, reads=facts.lasting())

    async def _retries(self, bucket: str, run: str, keys: Iterable[str]) -> tuple[Retry, ...]:
        retries = []
        for key in (retry_key(run, n) for n in retry_numbers(keys)):
            stored = await self._get(bucket, key)
            try:
                retries.append(Retry.from_json((stored and stored.body) or b""))
            except (ValueError, RecursionError) as error:
                logger.warning("skipping s3://%s/%s: %s", bucket, key, error)
        return tuple(retries)

    async def _get(self, bucket: str, key: str) -> StoredObject | None:
        return await if_present(self._store.get(bucket, key, bytes_max=RECORD_BYTES_MAX))

    async def _read(self, kind: type[T], bucket: str, key: str) -> T | None:
        """An object of a run; None where it is absent, or not valid, which is logged."""
        stored = await self._get(bucket, key)
        if stored is None:
            return None
        try:
            return decode_json_known(kind, stored.body or b"", key)[0]
        except AppError as error:
            logger.warning("skipping s3://%s: %s", bucket, error, extra={"event": "run_unreadable"})
            return None

    async def _more(self, facts: Facts, state: Run) -> Facts:
        functions = self._functions()
        at_once = asyncio.Semaphore(READS_AT_ONCE)

        async def read(step: str, job: str) -> tuple[str, Read]:
            async with at_once:
                bucket = functions[step].intermediate_bucket
                found, etag = await read_result(self._store, bucket, job, facts.wall_s)
            needed = None if found is None else _needed(found, step, facts)
            return job, Read(result=needed, etag=etag)

        async def listed(step: str) -> tuple[str, dict[str, str]]:
            bucket = functions[step].intermediate_bucket
            keys = await self._store.etags(bucket, list_prefix(facts.run, step))
            return step, {
                key.removeprefix("results/").removesuffix(".json"): etag
                for key, etag in keys.items()
            }

        reads = dict(await together(read(step, job) for step, job in state.wanted.jobs))
        lists = dict(await together(listed(step) for step in state.wanted.lists))
        # what was read is newer than what was listed: a result may be replaced in between
        known = {
            step: {job: reads[job].etag if job in reads else etag for job, etag in jobs.items()}
            for step, jobs in {**facts.listed, **lists}.items()
        }
        return replace(facts, reads={**facts.reads, **reads}, listed=known)

    def _keep(self, facts: Facts) -> None:
        self._kept.pop(facts.run, None)
        if not facts.stands:
            self._kept[facts.run] = replace(facts, reads=facts.lasting(), listed={})
        while len(self._kept) > KEPT_RUNS_MAX:
            del self._kept[next(iter(self._kept))]


def _reads_of(known: Iterable[Result], facts: Facts) -> dict[str, Read]:
    """Results of steps with one job each; those of parts are read when all have ended."""
    steps = {step_job_id(facts.run, step.name): step.name for step in facts.frozen.workflow.steps}
    return {
        one.job_id: Read(result=_needed(one, steps[one.job_id], facts))
        for one in known
        if one.job_id in steps
    }


def _needed(result: Result, step: str, facts: Facts) -> Result:
    """The part of a result that a run needs: it may have thousands."""
    result = replace(result, log_tail="", provenance={})
    if facts.conditions_on(step):
        return result
    return replace(result, times={}, notes=[], document=None)


async def together(works: Iterable[Awaitable[T]]) -> list[T]:
    """The values of calls at once, in order. All have ended when one of their errors is raised."""
    values: list[T] = []
    for done in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(done, BaseException):
            raise done
        values.append(done)
    return values

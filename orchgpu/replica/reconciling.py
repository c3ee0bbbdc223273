"""The reconciler's work: lists inputs, looks for their jobs, sends the events of lost ones again.

`Search` serves the orchestrator and `orchgpu reconcile` alike; `Reconciler` is the orchestrator's
loop over all deployed functions. The decisions are in `core/reconcile.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from contract.keys import result_key
from contract.run import run_key
from corekit.aio.clock import Clock
from corekit.budget import Budget
from corekit.errors import AppError
from corekit.ids import RandomStream
from corekit.values import Value
from orchgpu.core.function import Function
from orchgpu.core.reconcile import (
    Cursor,
    Interval,
    ObjectVersion,
    Passes,
    Upload,
    listed_prefix,
    uploads,
)
from orchgpu.core.runs.workflow import Workflow
from orchgpu.ports import JobQueue, ObjectStore, if_present

logger = logging.getLogger(__name__)

#: One pass lists at most so many pages of 1000 versions; the next one continues there.
PAGES_MAX = 1000
#: The pause after each page: five pages a second, of S3's 5,500 reads a second and prefix.
PAGE_PAUSE_S = 0.2
NO_WORKFLOWS: Mapping[str, Workflow] = {}


class Listed(Value):
    """One page of a search."""

    versions: tuple[ObjectVersion, ...]
    uploads: tuple[Upload, ...]  #: of the interval, that start jobs
    after: Cursor | None  #: None: the last page


class Search:
    """The search for uploads without a job."""

    def __init__(self, store: ObjectStore, has_record: Callable[[str], Awaitable[bool]]) -> None:
        """`has_record`: whether the scheduler has the record of a job."""
        self._store = store
        self._has_record = has_record

    async def pages(
        self, function: Function | Workflow, interval: Interval
    ) -> AsyncIterator[Listed]:
        """The uploads of an interval, page by page. Raises AppError."""
        after = interval.after
        while True:
            page = await self._store.versions(
                function.input_bucket, listed_prefix(function), after=after
            )
            after = page.after
            found = tuple(uploads(function, page.versions, interval))
            yield Listed(versions=page.versions, uploads=found, after=after)
            if after is None:
                return
            await asyncio.sleep(PAGE_PAUSE_S)

    async def is_lost(self, function: Function | Workflow, upload: Upload) -> bool:
        """True when the upload's job has neither a result nor a record, or there is no run of it.

        Raises AppError.
        """
        if isinstance(function, Workflow):
            return await if_present(self._store.head(function.bucket, run_key(upload.job))) is None
        result = self._store.head(function.intermediate_bucket, result_key(upload.job))
        return await if_present(result) is None and not await self._has_record(upload.job)


class Reconciler:
    """The passes of one replica over the inputs of every function that it serves."""

    def __init__(
        self,
        *,
        queue: JobQueue,
        search: Search,
        clock: Clock,
        budget: Budget,
        jitter: RandomStream,
    ) -> None:
        self._queue = queue
        self._search = search
        self._clock = clock
        self._budget = budget
        self._jitter = jitter
        self._passes: dict[str, tuple[Function | Workflow, Passes]] = {}

    def load(
        self, functions: Mapping[str, Function], workflows: Mapping[str, Workflow] = NO_WORKFLOWS
    ) -> None:
        """Search for these from now on. No upload starts a job of a workflow's step."""
        steps = {step.name for workflow in workflows.values() for step in workflow.steps}
        served: dict[str, Function | Workflow] = {
            name: function for name, function in functions.items() if name not in steps
        }
        served |= {f"workflow {name}": workflow for name, workflow in workflows.items()}
        at_s, wall_s = self._clock.monotonic_s(), self._clock.wall_s()
        now: dict[str, tuple[Function | Workflow, Passes]] = {}
        for name, function in served.items():
            known = self._passes.get(name)
            if known is None:
                passes = Passes(function, self._budget, self._jitter, at_s=at_s, wall_s=wall_s)
            else:
                before, passes = known
                if before is not function:
                    passes.changed(function, at_s)
            now[name] = (function, passes)
        self._passes = now

    async def run_due(self) -> None:
        """Do every pass that is due, one after the other; a failed one begins again later."""
        for function, passes in list(self._passes.values()):
            if not passes.due(self._clock.monotonic_s()):
                continue
            try:
                await self._pass(function, passes)
            except AppError as error:
                logger.warning(
                    "searching for lost events of %s: %s",
                    function.name,
                    error,
                    extra={"event": "reconcile_failed"},
                )
                passes.failed(self._clock.monotonic_s())

    async def _pass(self, function: Function | Workflow, passes: Passes) -> None:
        backlog = await self._queue.backlog(function.queue_url)
        at_s, wall_s = self._clock.monotonic_s(), self._clock.wall_s()
        interval = passes.interval(at_s, wall_s, backlog)
        if interval is None:
            return
        pages, after = 0, interval.after
        async for page in self._search.pages(function, interval):
            for upload in passes.unsettled(page.uploads):
                if await self._search.is_lost(function, upload):
                    await self._send(function, upload)
                passes.settle(upload)
            pages, after = pages + 1, page.after
            if pages == PAGES_MAX:
                break
        passes.passed(interval, after, self._clock.monotonic_s())

    async def _send(self, function: Function | Workflow, upload: Upload) -> None:
        await self._queue.send(function.queue_url, [upload.body])
        logger.warning(
            "%s: no event of s3://%s/%s arrived; it is sent again",
            upload.job,
            function.input_bucket,
            upload.key,
            extra={"event": "event_lost", "job": upload.job},
        )

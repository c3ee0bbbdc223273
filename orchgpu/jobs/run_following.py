"""Runs of workflows followed to their ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence, Set
from pathlib import PurePath

from contract.states import StepState
from corekit.errors import AppError, ErrorCode
from corekit.values import Value
from gpu_scheduler.client import Disconnected
from gpu_scheduler.protocol.answers import RecordPush
from orchgpu.core.job import input_from_payload
from orchgpu.core.runs.state import Step
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.live.feed import Change, Feed
from orchgpu.jobs.runs import READS_AT_ONCE, SeenRun, StartedRun, read_run
from orchgpu.jobs.transfers import for_each

logger = logging.getLogger(__name__)

#: The pause between two looks at runs that are followed.
LOOK_EVERY_S = 0.5
#: The same while the scheduler reports no change of their jobs for `FRESH_S`.
QUIET_LOOK_EVERY_S = 5.0
FRESH_S = 5.0


class RunChange(Value):
    """A step of a followed run whose state changed, or the run itself."""

    started: StartedRun
    seen: SeenRun
    step: Step | None  #: None: the run


class Pace:
    """The pauses between looks at some runs: short ones after changes of their jobs.

    A run continues after the end of a job, by an orchestrator, and no change reports its own end:
    so there are looks for a while. While a job runs nothing of a run changes.
    """

    def __init__(self, runs: Set[str], now: Callable[[], float]) -> None:
        """`now`: monotonic, in seconds."""
        self._runs = runs
        self._now = now
        self._woken = asyncio.Event()
        self._changed_s: float | None = None  #: None: no change was seen by this connection

    def take(self, change: Change) -> None:
        """Note a change of a job of these runs."""
        if isinstance(change, Disconnected):
            self._changed_s = None
        if not isinstance(change, RecordPush) or change.record is None:
            return
        source = input_from_payload(change.record.block)
        if source is not None and source.step is not None and source.step.run in self._runs:
            self._changed_s = self._now()
            self._woken.set()

    @property
    def pause_s(self) -> float:
        """The longest pause from now on."""
        quiet = self._changed_s is not None and self._now() - self._changed_s > FRESH_S
        return QUIET_LOOK_EVERY_S if quiet else LOOK_EVERY_S

    async def wait(self) -> None:
        """Until the next look: a change ends a long pause."""
        pause_s = self.pause_s
        if pause_s <= LOOK_EVERY_S:
            await asyncio.sleep(pause_s)
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._woken.wait()
        self._woken.clear()

    async def follow(self, scheduler: str) -> None:
        """Take the scheduler's changes; while it does not answer there are none."""
        try:
            async with Feed(scheduler, on_change=self.take, deadline_s=None) as feed:
                while True:
                    await feed.subscribe()
                    await feed.changed(QUIET_LOOK_EVERY_S)
        except AppError as error:
            logger.debug("runs are followed without the scheduler: %s", error)
        finally:
            self._changed_s = None


@contextlib.asynccontextmanager
async def _woken(pace: Pace, scheduler: str | None) -> AsyncIterator[None]:
    if scheduler is None:
        yield
        return
    following = asyncio.create_task(pace.follow(scheduler), name="run-changes")
    try:
        yield
    finally:
        following.cancel()
        await asyncio.wait([following])


async def follow_runs(
    cloud: JobCloud,
    started: Sequence[StartedRun],
    on_change: Callable[[RunChange], None],
    *,
    within_s: float | None,
    scheduler: str | None = None,
) -> list[SeenRun]:
    """Follow to the end. Raises TIMEOUT after `within_s`, naming the runs that are not over.

    `scheduler`: whose changes of jobs show when to look; without it the runs are looked at all the
    time, as while it does not answer.
    """
    seen: dict[int, SeenRun] = {}
    pace = Pace({run for one in started for run in one.run_ids}, asyncio.get_running_loop().time)
    try:
        async with asyncio.timeout(within_s), _woken(pace, scheduler):
            while left := [at for at in range(len(started)) if not _over(seen.get(at))]:
                for at in left:
                    now = await asyncio.to_thread(_look, cloud, started[at], seen.get(at))
                    if now is not None:
                        for step in _changed(seen.get(at), now):
                            on_change(RunChange(started=started[at], seen=now, step=step))
                        seen[at] = now
                await pace.wait()
    except TimeoutError:
        waiting = [one.run_ids[0] for at, one in enumerate(started) if not _over(seen.get(at))]
        message = f"not over after {within_s:g} s: {', '.join(waiting)}"
        raise AppError(ErrorCode.TIMEOUT, message, runs=waiting) from None
    return [seen[at] for at in range(len(started))]


def ended_runs(
    cloud: JobCloud, started: Sequence[StartedRun], *, within_s: float | None
) -> Iterator[tuple[int, SeenRun]]:
    """Each run as it ends, with its place in the sequence. Raises TIMEOUT as `follow_runs` does."""
    left = dict(enumerate(started))
    ends_s = None if within_s is None else time.monotonic() + within_s
    while left:
        looks = for_each(
            lambda one: (one[0], _look(cloud, one[1], None)),
            list(left.items()),
            READS_AT_ONCE,
            lambda _: None,
        )
        for at, seen in looks:
            if seen is not None and seen.over:
                del left[at]
                yield at, seen
        if left and ends_s is not None and time.monotonic() >= ends_s:
            waiting = [one.run_ids[0] for one in left.values()]
            message = f"not over after {within_s:g} s: {', '.join(waiting)}"
            raise AppError(ErrorCode.TIMEOUT, message, runs=waiting)
        if left:
            time.sleep(LOOK_EVERY_S)


def _over(seen: SeenRun | None) -> bool:
    return seen is not None and seen.over


def _look(cloud: JobCloud, started: StartedRun, before: SeenRun | None) -> SeenRun | None:
    for run in started.run_ids if before is None else (before.id,):
        seen = read_run(cloud, started.workflow, run, None if before is None else before.facts)
        if seen is not None:
            return seen
    return None


def _changed(before: SeenRun | None, now: SeenRun) -> Iterator[Step | None]:
    """The steps with a new state, in the order of the workflow, then the run itself (None)."""
    old = {} if before is None else before.state.steps
    for name, step in now.state.steps.items():
        state = old[name].state if name in old else StepState.BLOCKED
        if step.state is not state:
            yield step
    if now.over and not _over(before):
        yield None


def as_started(seen: SeenRun) -> StartedRun:
    """The run as if its input had been uploaded here."""
    key = seen.facts.frozen.input.key
    return StartedRun(
        workflow=seen.workflow,
        file=PurePath(key),
        key=key,
        run_ids=(seen.id,),
        uploaded_s=seen.facts.frozen.stored_at_s,
    )

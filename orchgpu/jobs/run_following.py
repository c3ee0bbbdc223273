"""Runs of workflows followed to their ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath

from contract.states import StepState
from corekit.errors import AppError, ErrorCode
from corekit.values import Value
from orchgpu.core.runs.state import Step
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.runs import READS_AT_ONCE, SeenRun, StartedRun, read_run
from orchgpu.jobs.transfers import for_each

#: The pause between two looks at runs that are followed.
LOOK_EVERY_S = 0.5


class RunChange(Value):
    """A step of a followed run whose state changed, or the run itself."""

    started: StartedRun
    seen: SeenRun
    step: Step | None  #: None: the run


async def follow_runs(
    cloud: JobCloud,
    started: Sequence[StartedRun],
    on_change: Callable[[RunChange], None],
    *,
    within_s: float | None,
) -> list[SeenRun]:
    """Follow to the end. Raises TIMEOUT after `within_s`, naming the runs that are not over."""
    seen: dict[int, SeenRun] = {}
    try:
        async with asyncio.timeout(within_s):
            while left := [at for at in range(len(started)) if not _over(seen.get(at))]:
                for at in left:
                    now = await asyncio.to_thread(_look, cloud, started[at], seen.get(at))
                    if now is not None:
                        for step in _changed(seen.get(at), now):
                            on_change(RunChange(started=started[at], seen=now, step=step))
                        seen[at] = now
                await asyncio.sleep(LOOK_EVERY_S)
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

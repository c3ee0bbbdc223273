"""An orchestrator that kills itself, once, at a named point. Run as a program by the tests.

    python crashing_orchestrator.py POINT MARKER --scheduler ADDR … --ready-file F

`before:ACTION` and `after:ACTION[:EVENT]` name actions and events of the job machine;
`on:EVENT:WORD` an event that comes from outside. POINT#N is the N-th time that it comes there; of
several points, with commas between them, the first one counts. While the file MARKER exists,
nothing crashes any more. At `packing:KEY`, the key of a poison job, every one dies.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.runs.actions import Admit, RunAction, StartStep
from orchgpu.core.runs.records import Admission
from orchgpu.core.runs.workflow import Workflow
from orchgpu.replica import acting, runs
from orchgpu.replica.acting import event_of_push
from orchgpu.replica.actions.performer import Performer
from orchgpu.replica.actions.runs import RunPerformer

POINT, MARKER = sys.argv[1], Path(sys.argv[2])
#: Point → the times that it is still passed.
PASSED = {
    point: int(number or 1) - 1
    for point, _, number in (one.partition("#") for one in POINT.split(","))
}


def crash_at(point: str) -> None:
    if point not in PASSED:
        return
    PASSED[point] -= 1
    if PASSED[point] >= 0:
        return
    try:
        MARKER.open("x").close()
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class CrashingPerformer(Performer):
    async def _outcome(
        self, action: do.Action, work: Awaitable[on.Event | None]
    ) -> on.Event | None:
        name = type(action).__name__
        crash_at(f"before:{name}")
        event = await super()._outcome(action, work)
        crash_at(f"after:{name}")
        crash_at(f"after:{name}:{type(event).__name__}")
        if isinstance(event, on.ResultRead) and event.result is not None:
            crash_at(f"after:{name}:Result")
        return event

    async def _pack(self, action: do.StageEnvelope, *arguments: Any) -> bytes:
        if f"packing:{action.input.key}" == POINT:
            os.kill(os.getpid(), signal.SIGKILL)
        body = await super()._pack(action, *arguments)
        crash_at("packed")
        return body


class CrashingRuns(RunPerformer):
    async def _requested(self, action: Admit, promise: str) -> Admission:
        admission = await super()._requested(action, promise)
        crash_at("promised")
        return admission

    async def perform(self, workflow: Workflow, action: RunAction) -> None:
        names = [type(action).__name__]
        if isinstance(action, StartStep):
            names.append(f"{names[0]}:{action.step}")
        for name in names:
            crash_at(f"before:{name}")
        await super().perform(workflow, action)
        for name in names:
            crash_at(f"after:{name}")


def crashing_events(push: Any, now: Any) -> on.Event | None:
    event = event_of_push(push, now)
    crash_at(f"on:{type(event).__name__}:{getattr(event, 'state', '')}")
    return event


if __name__ == "__main__":
    vars(acting).update(Performer=CrashingPerformer, event_of_push=crashing_events)
    vars(runs).update(RunPerformer=CrashingRuns)
    sys.argv = ["orchgpu", "orchestrate", *sys.argv[3:]]
    from orchgpu.cli import main

    main()

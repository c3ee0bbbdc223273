"""When runs that are followed are looked at: often after changes of their jobs, else seldom."""

from __future__ import annotations

import asyncio

from corekit.aio.vloop import run_virtual
from corekit.decode import encode
from corekit.values import replace
from gpu_scheduler.client import Disconnected
from gpu_scheduler.protocol.answers import RecordPush
from orchgpu.core.routing import StepOf
from orchgpu.jobs.run_following import FRESH_S, LOOK_EVERY_S, QUIET_LOOK_EVERY_S, Pace
from tests.history_records import job_record
from tests.unit.orchgpu.runs.run_world import INPUT, RUN


def push(run: str) -> RecordPush:
    of = StepOf(run=run, workflow="films", step="table")
    record = job_record(block={"function": "table", "input": encode(replace(INPUT, step=of))})
    return RecordPush(holder=record.holder, record=record)


def test_looks_are_seldom_while_nothing_changes_but_not_without_a_scheduler() -> None:
    now_s = [100.0]
    pace = Pace({RUN}, lambda: now_s[0])
    assert pace.pause_s == LOOK_EVERY_S, "no change was seen: it may not answer"
    pace.take(push("r" + "f" * 25))
    now_s[0] += 2 * FRESH_S
    assert pace.pause_s == LOOK_EVERY_S, "of another run"
    pace.take(push(RUN))
    now_s[0] += FRESH_S
    assert pace.pause_s == LOOK_EVERY_S, "its next step is being started"
    now_s[0] += 0.1
    assert pace.pause_s == QUIET_LOOK_EVERY_S
    pace.take(Disconnected(detail="it is gone"))
    assert pace.pause_s == LOOK_EVERY_S


def test_a_change_ends_a_long_pause() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        pace = Pace({RUN}, loop.time)
        pace.take(push(RUN))
        await asyncio.sleep(2 * FRESH_S)
        began_s = loop.time()
        await pace.wait()  # the change before it was seen by no look
        assert loop.time() == began_s
        await pace.wait()
        assert loop.time() - began_s == QUIET_LOOK_EVERY_S
        loop.call_later(1.0, pace.take, push(RUN))
        await pace.wait()
        assert loop.time() - began_s == QUIET_LOOK_EVERY_S + 1.0

    run_virtual(main())

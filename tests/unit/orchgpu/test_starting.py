"""Functions are started by Invoke once; whatever fails is left to the envelope's event."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from contract.keys import parse_staging_key, staging_key
from corekit.aio.clock import LoopClock
from corekit.aio.vloop import run_virtual
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from local_cloud.model.cloud import Cloud
from local_cloud.model.functions.functions import FunctionSettings
from orchgpu.core import actions as do
from orchgpu.core.completion import read_completion
from orchgpu.replica.actions.starting import INVOKED, DirectStarts, payload_of
from simulator.faults.memory_cloud import MemoryStarter
from tests.unit.orchgpu.jobs import FUNCTION, JOB, NOW

KEY = staging_key(FUNCTION.name, JOB, 1, 7)
BUDGET = Budget()


class Lambda:
    """A `FunctionStarter` with a given answer, which counts its calls."""

    def __init__(self, answer: Callable[[], Awaitable[None]]) -> None:
        self.answer = answer
        self.calls: list[tuple[str, str]] = []

    async def start(self, function: str, payload: str) -> None:
        self.calls.append((function, payload))
        await self.answer()

    async def unreserved(self) -> int:
        return 1000


async def accept() -> None:
    return


async def refuse() -> None:
    await asyncio.sleep(0)
    raise AppError(ErrorCode.EXHAUSTED, "lambda:Invoke search: TooManyRequestsException: Rate")


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_the_record_is_that_of_the_event_with_a_source_of_its_own() -> None:
    events = Lambda(accept)
    run_virtual(DirectStarts(events, LoopClock(), BUDGET).start(FUNCTION, KEY))
    ((name, payload),) = events.calls
    assert (name, payload) == (FUNCTION.name, payload_of(FUNCTION, KEY))
    (record,) = json.loads(payload)["Records"]
    assert record["eventSource"] == INVOKED
    assert record["s3"]["bucket"]["name"] == FUNCTION.intermediate_bucket
    assert parse_staging_key(record["s3"]["object"]["key"]) is not None


def test_lambdas_failure_record_of_such_a_start_names_the_attempt() -> None:
    failure = {
        "requestContext": {"condition": "RetriesExhausted"},
        "requestPayload": json.loads(payload_of(FUNCTION, KEY)),
        "responsePayload": {"errorType": "Runtime.ExitError", "errorMessage": "exit status 1"},
    }
    (notice,) = read_completion(json.dumps(failure), FUNCTION, NOW)
    assert isinstance(notice, do.RecordFunctionFailure)
    assert (notice.job, notice.attempt) == (JOB, 1)


@pytest.mark.parametrize(
    "function",
    [replace(FUNCTION, start="event"), replace(FUNCTION, object_bucket="out", object_key="{job}")],
)
def test_events_alone_start_what_shall_not_be_invoked(function: Any) -> None:
    events = Lambda(accept)
    run_virtual(DirectStarts(events, LoopClock(), BUDGET).start(function, KEY))
    assert events.calls == []


def test_a_failure_pauses_the_calls_of_its_function_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    events = Lambda(refuse)

    async def story() -> list[int]:
        starts = DirectStarts(events, LoopClock(), BUDGET)
        counts = []
        for pause_s in (0.0, BUDGET.retry_base_s - 0.1, 0.2, 2 * BUDGET.retry_base_s - 0.1, 0.2):
            await asyncio.sleep(pause_s)
            await asyncio.gather(*(starts.start(FUNCTION, KEY) for _ in range(3)))
            counts.append(len(events.calls))
        other = replace(FUNCTION, name="other")
        await starts.start(other, KEY)
        counts.append(len(events.calls))
        events.answer = accept
        await asyncio.sleep(BUDGET.retry_s_max)
        await starts.start(FUNCTION, KEY)
        return counts

    # calls that were under way when the first failed are not held back
    assert run_virtual(story()) == [3, 3, 6, 6, 9, 10]
    found = messages(caplog)
    assert [line.split(":")[0] for line in found] == [
        "search cannot be started by Invoke; events of its envelopes start it",
        "other cannot be started by Invoke; events of its envelopes start it",
        "search is started by Invoke again",
    ]
    assert "TooManyRequestsException" in found[0]


def test_a_call_without_an_answer_delays_no_attempt(caplog: pytest.LogCaptureFixture) -> None:
    async def hang() -> None:
        await asyncio.sleep(3600)

    async def story() -> float:
        starts = DirectStarts(Lambda(hang), LoopClock(), BUDGET)
        began_s = asyncio.get_running_loop().time()
        await starts.start(FUNCTION, KEY)
        return asyncio.get_running_loop().time() - began_s

    assert run_virtual(story()) == pytest.approx(BUDGET.invoke_s)
    assert messages(caplog)[0].endswith("no answer in 2 s")


def test_a_function_that_does_not_exist_is_not_an_error_of_the_job() -> None:
    cloud = Cloud()

    async def story() -> int:
        clock = LoopClock()
        starts = DirectStarts(MemoryStarter(cloud, clock), clock, BUDGET)
        await starts.start(FUNCTION, KEY)
        made = cloud.functions.create(clock.wall_s(), FunctionSettings(name=FUNCTION.name))
        await starts.start(FUNCTION, KEY)  # still within the pause
        paused = made.invocations.waiting()
        await asyncio.sleep(BUDGET.retry_base_s)
        await starts.start(FUNCTION, KEY)
        return made.invocations.waiting() - paused

    assert run_virtual(story()) == 1

"""Wake-ups are sent by queue, in batches, once for each job, and again after a failure."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.ids import JobId
from gpu_scheduler.core import actions as do
from gpu_scheduler.daemon.waker import BATCH_MAX, Waker, sender_of

FAST = Budget().scaled(0.001)


class Queues:
    """A sender that keeps what it gets; the first calls, and those of some queues, fail."""

    def __init__(self, failures: int = 0, bad: dict[str, ErrorCode] | None = None) -> None:
        self.sent: list[tuple[str, list[str]]] = []
        self.failures = failures
        self.bad = bad or {}
        self.refused: list[str] = []
        self.all_sent = 0
        self.done = threading.Semaphore(0)

    def __call__(self, queue: str, bodies: Sequence[str]) -> None:
        if queue in self.bad:
            self.refused.append(queue)
            raise AppError(self.bad[queue], "never")
        if self.failures:
            self.failures -= 1
            raise AppError(ErrorCode.UNAVAILABLE, "not now")
        self.sent.append((queue, [json.loads(body)["orchgpu"]["wake"]["job"] for body in bodies]))
        if sum(len(jobs) for _, jobs in self.sent) == self.all_sent:
            self.done.release()


def sent(
    queues: Queues, *wakes: tuple[str, str], budget: Budget = FAST
) -> list[tuple[str, list[str]]]:
    """The messages sent when all of those were whose queues are not bad."""

    async def main() -> None:
        waker = Waker(queues, budget)
        for job, queue in wakes:
            waker.wake(do.Wake(holder=JobId(job), queue=queue))
        queues.all_sent = len({wake for wake in wakes if wake[1] not in queues.bad})
        running = asyncio.create_task(waker.run())
        assert await asyncio.to_thread(queues.done.acquire, timeout=10)
        running.cancel()

    asyncio.run(main())
    return queues.sent


def test_a_job_is_woken_once_by_its_own_queue() -> None:
    assert sent(Queues(), ("a", "x"), ("b", "y"), ("a", "x"), ("c", "x")) == [
        ("x", ["a", "c"]),
        ("y", ["b"]),
    ]


def test_messages_are_sent_in_batches() -> None:
    wakes = [(f"j{number}", "x") for number in range(BATCH_MAX + 1)]
    assert [len(jobs) for _, jobs in sent(Queues(), *wakes)] == [BATCH_MAX, 1]


def test_a_failure_is_repeated() -> None:
    assert sent(Queues(failures=2), ("a", "x")) == [("x", ["a"])]


def test_a_queue_that_fails_holds_up_no_other_queue() -> None:
    queues = Queues(bad={"x": ErrorCode.UNAVAILABLE})
    wakes = [("a", "x"), ("b", "y"), *((f"j{number}", "z") for number in range(BATCH_MAX + 1))]
    assert [queue for queue, _ in sent(queues, *wakes)] == ["y", "z", "z"]
    assert "x" in queues.refused


def tries(code: ErrorCode, budget: Budget) -> int:
    """The tries of a wake-up that always fails, until one to another queue succeeds much later."""
    queues = Queues(bad={"x": code})

    async def main() -> int:
        waker = Waker(queues, budget)
        waker.wake(do.Wake(holder=JobId("a"), queue="x"))
        running = asyncio.create_task(waker.run())
        await asyncio.sleep(30 * FAST.reconnect_s_max)
        running.cancel()
        return len(queues.refused)

    return asyncio.run(main())


def test_wake_ups_of_a_queue_that_does_not_exist_and_old_ones_are_dropped() -> None:
    assert tries(ErrorCode.NOT_FOUND, FAST) == 1
    assert tries(ErrorCode.UNAVAILABLE, replace(FAST, accept_away_s=0.0)) == 0
    assert tries(ErrorCode.UNAVAILABLE, FAST) > 1


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("sqs", "expected sqs:ADDRESS"),
        ("sns:x", "sqs"),
        ("sqs:", "expected sqs:ADDRESS"),
        ("sqs:queue", "expected https://sqs.REGION"),
        ("sqs:https://sqs.eu-west-1.amazonaws.com", "expected https://sqs.REGION"),
    ],
)
def test_addresses_that_are_refused(address: str, text: str) -> None:
    with pytest.raises(AppError, match=text):
        sender_of(address)

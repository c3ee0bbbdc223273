"""Delivers notices of the ends of jobs and runs to their targets, at least once, by any replica.

A notice is a message of a queue that the replica reads anyway (`orchgpu/core/notify.py`). It is
deleted once it is delivered; else it stays hidden for a while and comes again, here or at another
replica, until it is too old. No job, lease or run waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping

from contract.run import run_result_key
from corekit.aio.clock import Clock
from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.decode import decode_json_known, encode
from corekit.errors import AppError, ErrorCode
from orchgpu.core.function import Function
from orchgpu.core.notify import (
    Notice,
    Target,
    cloud_event,
    document_of,
    notice_of,
    pause_s,
    text_of,
    webhook_headers,
)
from orchgpu.core.runs.records import RunResult
from orchgpu.core.runs.workflow import Workflow
from orchgpu.ports import JobQueue, Message, NoticeSender, ObjectStore
from orchgpu.replica.actions.objects import read_result
from orchgpu.replica.actions.run_facts import RECORD_BYTES_MAX

logger = logging.getLogger(__name__)

#: Notices in hand for one target: a dead one must not keep others waiting.
IN_HAND_MAX = 32
#: Called for each try: name of the function or workflow, and its outcome.
Counted = Callable[[str, str], None]


class Notices:
    """The notices of one replica."""

    def __init__(
        self,
        *,
        queue: JobQueue,
        store: ObjectStore,
        sender: NoticeSender | None,
        clock: Clock,
        budget: Budget,
        nursery: Nursery,
        counted: Counted,
    ) -> None:
        self._queue = queue
        self._store = store
        self._sender = sender
        self._clock = clock
        self._budget = budget
        self._nursery = nursery
        self._counted = counted
        self._in_hand: Counter[str] = Counter()

    def take(self, of: Function | Workflow, message: Message) -> asyncio.Task[None] | None:
        """Deliver the notice that a message is; None for any other message."""
        notice = notice_of(message.body)
        if notice is None:
            return None
        return self._nursery.start(self._handled(of, notice, message), f"notice/{notice.of}")

    async def _handled(self, of: Function | Workflow, notice: Notice, message: Message) -> None:
        age_s = 0.0
        if message.sent_at_s is not None:
            age_s = max(0.0, self._clock.wall_s() - message.sent_at_s)
        try:
            if await self._notified(of, notice, age_s):
                await self._queue.delete(_queue_of(of), [message.receipt_handle])
            else:
                budget = self._budget
                again_s = pause_s(
                    age_s, least_s=budget.notice_pause_s, most_s=budget.notice_pause_s_max
                )
                handles = [message.receipt_handle]
                await self._queue.set_visibility(_queue_of(of), handles, again_s)
        except AppError as error:  # the message comes again when its visibility ends
            logger.warning("%s", error, extra={"event": "notice_failed", "of": notice.of})

    async def _notified(self, of: Function | Workflow, notice: Notice, age_s: float) -> bool:
        """True when the notice is done with."""
        target = next((one for one in of.notify if one.name == notice.target), None)
        if target is None:
            return self._dropped(of, notice, "it is not a target of `notify` any more")
        if self._in_hand[target.name] >= IN_HAND_MAX:
            return False
        self._in_hand[target.name] += 1
        try:
            result = await self._result(of, notice)
            if result is None and age_s < self._budget.notice_age_s_max:
                return False  # not written yet
            if result is None:
                return self._dropped(of, notice, "its result does not exist")
            await self._deliver(of, target, document_of(notice, of.name, result))
        except (AppError, OSError, OverflowError, TypeError, ValueError) as error:
            # also of an address or a result that is not valid: its message ends, too
            gone = isinstance(error, AppError) and error.details.get("gone")
            if gone or age_s >= self._budget.notice_age_s_max:
                return self._dropped(of, notice, str(error))
            logger.warning(
                "%s is not notified of the end of %s yet: %s",
                _shown(target),
                notice.of,
                error,
                extra={"event": "notice_failed", "of": notice.of},
            )
            self._counted(of.name, "failed")
            return False
        finally:
            self._in_hand[target.name] -= 1
        self._counted(of.name, "delivered")
        return True

    def _dropped(self, of: Function | Workflow, notice: Notice, why: str) -> bool:
        logger.error(
            "a notice of the end of %s is dropped: %s",
            notice.of,
            why,
            extra={"event": "notice_dropped", "of": notice.of},
        )
        self._counted(of.name, "dropped")
        return True

    async def _result(self, of: Function | Workflow, notice: Notice) -> Mapping[str, object] | None:
        """The result that stands now; None while there is none.

        Of a run that a retry has ended again: the end that the notice is about.
        """
        if isinstance(of, Function):
            wall_s = self._clock.wall_s()
            result, _ = await read_result(self._store, of.intermediate_bucket, notice.job, wall_s)
            return None if result is None else vars(result)
        key = run_result_key(notice.run)
        try:
            stored = await self._store.get(of.bucket, key, bytes_max=RECORD_BYTES_MAX)
        except AppError as error:
            if error.code is ErrorCode.NOT_FOUND:
                return None
            raise
        ended, _ = decode_json_known(RunResult, stored.body or b"", key)
        if ended.retries < notice.retries:
            return None
        if ended.retries > notice.retries and notice.end:  # older versions sent none
            return notice.end
        found: Mapping[str, object] = encode(ended)
        return found

    async def _deliver(
        self, of: Function | Workflow, target: Target, document: Mapping[str, object]
    ) -> None:
        event = target.takes_events
        body = text_of(cloud_event(document) if event else document)
        if target.queue:
            await self._queue.send(f"{of.queue_url.rpartition('/')[0]}/{target.queue}", [body])
            return
        if self._sender is None:
            raise AppError(ErrorCode.INVALID, "this cloud notifies only queues")
        if target.topic:
            await self._sender.publish(target.topic, body)
            return
        key = await self._sender.secret(target.secret) if target.secret else None
        headers = webhook_headers(body, str(document["id"]), self._clock.wall_s(), key, event=event)
        within_s = self._budget.notice_answer_s
        await self._sender.post(target.webhook, body, headers, within_s)


def _queue_of(of: Function | Workflow) -> str:
    """The queue that the notices of a function or workflow are in."""
    return of.completion_url if isinstance(of, Function) else of.queue_url


def _shown(target: Target) -> str:
    """The path of a webhook may hold a secret of its receiver."""
    return "/".join(target.name.split("/", 3)[:3]) if target.webhook else target.name

"""The pollers of event source mappings: they receive, invoke, and delete what was finished."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial

from local_cloud.model.errors import CloudError
from local_cloud.model.functions.event_sources import EventSource, event_of, finished
from local_cloud.model.functions.function import Outcome
from local_cloud.model.functions.functions import LambdaFunction
from local_cloud.model.sqs.queue import Message, Queue
from local_cloud.server.context import Context

_WAIT_S = 20.0  #: of one look into an empty queue
#: The pause after a call that found no concurrency, or no function or queue.
_AGAIN_S = 1.0


class EventPolling:
    """One poller for each enabled mapping."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._sources = context.cloud.event_sources
        self._polled: set[str] = set()
        self._running: dict[str, int] = {}  #: invocations by mapping
        self._ended = asyncio.Event()

    def start(self) -> None:
        """Poll for every mapping, and for those that are made from now on."""
        self._sources.on_change = self._changed
        for mapping in self._sources.all():
            self._changed(mapping.uuid)

    def _changed(self, uuid: str) -> None:
        if self._mapping(uuid) is not None and uuid not in self._polled:
            self._polled.add(uuid)
            self._context.nursery.start_loop(partial(self._poll, uuid), f"mapping/{uuid}")

    def _mapping(self, uuid: str) -> EventSource | None:
        """None when it is disabled or deleted."""
        mapping = next((each for each in self._sources.all() if each.uuid == uuid), None)
        return mapping if mapping is not None and mapping.enabled else None

    async def _poll(self, uuid: str) -> None:
        while (mapping := self._mapping(uuid)) is not None:
            parts = self._sources.parts(mapping)
            if parts is None:
                await asyncio.sleep(_AGAIN_S)
                continue
            if not self._has_room(mapping):
                self._ended.clear()
                await self._ended.wait()
                continue
            function, queue = parts
            messages = queue.receive(self._context.now_s(), count_max=mapping.batch_max)
            if not messages:
                await self._context.pollers.wait(queue, _WAIT_S)
                if self._mapping(uuid) is None:
                    self._context.pollers.touched(queue)  # what woke it is another receiver's
                continue
            self._running[uuid] = self._running.get(uuid, 0) + 1
            work = self._run(mapping, function, queue, messages)
            self._context.nursery.start(work, f"mapped/{function.name}")
        self._polled.discard(uuid)

    def _has_room(self, mapping: EventSource) -> bool:
        most = mapping.concurrency_max or self._context.cloud.functions.concurrency_max
        return self._running.get(mapping.uuid, 0) < most

    async def _run(
        self,
        mapping: EventSource,
        function: LambdaFunction,
        queue: Queue,
        messages: Sequence[Message],
    ) -> None:
        try:
            outcome = await self._invoke(mapping, function, messages)
            for message in finished(mapping, messages, outcome):
                queue.delete(self._context.now_s(), message.handle)
        finally:
            self._running[mapping.uuid] -= 1
            self._ended.set()
            self._context.pollers.touched(queue)

    async def _invoke(
        self, mapping: EventSource, function: LambdaFunction, messages: Sequence[Message]
    ) -> Outcome:
        """Run once; tried again without concurrency for as long as the messages are hidden."""
        context = self._context
        event = event_of(messages, mapping.queue_arn, context.cloud.account.region)
        payload = json.dumps(event)
        while True:
            outcome = Outcome(payload="", throttled=True)
            try:
                context.cloud.functions.check_invoke(context.now_s(), function)
            except CloudError:
                pass
            else:
                request_id = context.cloud.new_request_id()
                outcome, _ = await context.runner.invoke(function, request_id, payload)
            until_s = context.now_s() + _AGAIN_S
            if not outcome.throttled or until_s > min(each.visible_at_s for each in messages):
                return outcome
            await asyncio.sleep(_AGAIN_S)

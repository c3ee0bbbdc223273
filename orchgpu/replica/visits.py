"""The visits of one process, such as an environment of Lambda; what they share stays open.

Variables: `ORCHGPU_SCHEDULER`, the address; `ORCHGPU_FUNCTIONS`, the functions that are served,
with commas; `ORCHGPU_SCHEDULER_KEY_SECRET`, an entry of a secret store with the scheduler's key.
The scheduler's CA is the file `ca.pem` beside the code.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from corekit.aio.clock import SystemClock
from corekit.aio.environment import budget_from_environment
from corekit.aio.process import log_as_json
from corekit.aio.supervise import Nursery
from corekit.errors import invalid
from corekit.ids import IdSource
from corekit.values import replace
from gpu_scheduler.client.access import Access, find_access
from orchgpu.adapters.clouds import open_cloud
from orchgpu.adapters.hosts import GatewayRuns
from orchgpu.adapters.registry import StoreRegistry
from orchgpu.adapters.scheduler import SchedulerAdapter
from orchgpu.core.machine import OrchestratorMachine
from orchgpu.ports import TRACEPARENT, CloudPorts, Message
from orchgpu.replica.visit import Arrival, Visit
from remote_gpu.middleware import render

SCHEDULER, KEY_SECRET = "ORCHGPU_SCHEDULER", "ORCHGPU_SCHEDULER_KEY_SECRET"
FUNCTIONS = "ORCHGPU_FUNCTIONS"
CA_FILE = "ca.pem"
#: A search for lost events looks at uploads of this time before it alone, in units of its pause: a
#: process knows of no earlier search.
SEARCHED_PAUSES = 4
#: Of a call, for what follows the last hand-back.
CLOSING_S = 1.0


class Visits:
    """Handles the events of Lambda's event source mappings and of the schedule.

    Made while Lambda starts the process, so that the first call takes no longer than others. Raises
    AppError when the cloud refuses access.
    """

    def __init__(self) -> None:
        budget = budget_from_environment()
        back_s = SEARCHED_PAUSES * budget.reconcile_every_s
        self._budget = replace(budget, reconcile_back_s=back_s, reconcile_overlap_s=back_s)
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        self._runs = self._stack.enter_context(GatewayRuns())
        self._searched_s = -math.inf
        ca = Path(os.environ.get("LAMBDA_TASK_ROOT", "."), CA_FILE)
        log_as_json()
        opening = self._open(find_access(ca=ca if ca.is_file() else None))
        self._cloud, self._access = self._loop.run_until_complete(opening)
        names = [name for name in os.environ.get(FUNCTIONS, "").split(",") if name]
        self._registry = StoreRegistry(self._cloud.store, self._cloud.state_bucket, only=names)

    def handle(self, event: Mapping[str, Any], context: Any) -> dict[str, object]:
        """One invocation; the messages that stay in their queues are its failures.

        Raises AppError when cloud or scheduler cannot be reached: all messages come again.
        """
        ends_s = time.monotonic() + context.get_remaining_time_in_millis() / 1000.0
        ends_s -= self._budget.drain_s + CLOSING_S
        arrivals = [_arrival(record) for record in event.get("Records", ())]
        visit = self._visit(arrivals, ends_s, sweep=not arrivals)
        stay = self._loop.run_until_complete(visit)
        return {"batchItemFailures": [{"itemIdentifier": name} for name in stay]}

    async def _visit(self, arrivals: list[Arrival], ends_s: float, *, sweep: bool) -> list[str]:
        cloud = self._cloud
        address = os.environ.get(SCHEDULER)
        if not address:
            raise invalid(
                f"the variable {SCHEDULER} names no scheduler: deploy --serverless sets it"
            )
        async with (
            SchedulerAdapter.connect(address, "visit", self._budget, self._access) as scheduler,
            Nursery("visit") as nursery,
        ):
            ids = IdSource(scheduler.session)
            visit = Visit(
                machine=OrchestratorMachine(
                    budget=self._budget, session=scheduler.session, ids=ids
                ),
                queue=cloud.queue,
                store=cloud.store,
                functions=cloud.functions,
                runs=self._runs,
                credentials=cloud.credentials,
                batch=cloud.batch,
                scheduler=scheduler,
                registry=self._registry,
                render=render,
                clock=SystemClock(),
                budget=self._budget,
                nursery=nursery,
                jitter=ids.stream("reconcile"),
                notices=cloud.notices,
            )
            await visit.begin()
            left_s = ends_s - time.monotonic()
            stay = await visit.serve(arrivals, within_s=left_s, sweep=sweep)
            now_s = time.monotonic()
            due = now_s - self._searched_s >= self._budget.reconcile_every_s
            if sweep and due and not visit.cut:
                self._searched_s = now_s
                await visit.search()
            return stay

    async def _open(self, access: Access) -> tuple[CloudPorts, Access]:
        cloud = await self._stack.enter_async_context(open_cloud("aws"))
        reference = os.environ.get(KEY_SECRET)
        if not reference or cloud.notices is None:
            return cloud, access
        key = (await cloud.notices.secret(reference)).decode().strip()
        return cloud, replace(access, key=key)


def _arrival(record: Mapping[str, Any]) -> Arrival:
    """A message as Lambda hands it over."""
    sent_ms = record.get("attributes", {}).get("SentTimestamp", "")
    trace = record.get("messageAttributes", {}).get(TRACEPARENT, {}).get("stringValue", "")
    message = Message(
        id=record["messageId"],
        receipt_handle=record["receiptHandle"],
        body=record["body"],
        sent_at_s=int(sent_ms) / 1000 if sent_ms.isdecimal() else None,
        traceparent=trace,
    )
    return Arrival(queue=record["eventSourceARN"].rpartition(":")[2], message=message)

"""Starts a function where its attempt runs, as soon as its envelope is stored.

In Lambda by Invoke: S3 delivers the event of an envelope typically within seconds, sometimes after
a minute or longer (S3 user guide, "Amazon S3 Event Notifications"), and the device is held
meanwhile. So the event is the second start, which the lease refuses (CLAIMED), and the only one
when the call failed.

On the host of its device, in AWS Batch or by an HTTP service, by an order, which the job machine
repeats: nothing else starts it there.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from contract.keys import staging_key
from corekit.aio.clock import Clock
from corekit.budget import Budget
from corekit.errors import AppError, invalid
from corekit.values import replace
from gpu_scheduler.model import GrantedLease
from orchgpu.core import actions as do
from orchgpu.core.batch import BatchRun, run_name
from orchgpu.core.function import Function, HostRun
from orchgpu.ports import (
    BatchQueue,
    Credentials,
    FunctionCredentials,
    FunctionStarter,
    RunStarter,
)
from remote_gpu.wire.runs import BatchOrder, Package, RunOrder

logger = logging.getLogger(__name__)

#: `eventSource` of the record of an Invoke; S3's own is `aws:s3`.
INVOKED = "orchgpu:invoke"
#: Credentials are renewed at half of their time, and no faster than this.
RENEWAL_S_MIN = 1.0
_WITHOUT_BATCH = "it was deployed again, without Batch, after this attempt opened"


@dataclass(slots=True)
class _Pause:
    """A function whose starts failed, without one that succeeded since."""

    pause_s: float
    ends_at_s: float


class DirectStarts:
    """Never raises: a start that fails is left to the event.

    After a failure the function is not called for a pause, doubled with each further one, and one
    line is logged when it begins and one when it is over.
    """

    def __init__(self, functions: FunctionStarter, clock: Clock, budget: Budget) -> None:
        self._functions = functions
        self._clock = clock
        self._budget = budget
        self._paused: dict[str, _Pause] = {}

    async def start(self, function: Function, key: str) -> None:
        """Start the function on the envelope at `key`, unless its events alone shall do so."""
        paused = self._paused.get(function.name)
        now_s = self._clock.monotonic_s()
        if not function.invoked or (paused is not None and now_s < paused.ends_at_s):
            return
        try:
            async with asyncio.timeout(self._budget.invoke_s):
                await self._functions.start(function.name, payload_of(function, key))
        except (AppError, TimeoutError) as error:
            self._failed(function.name, str(error) or f"no answer in {self._budget.invoke_s:g} s")
        else:
            if self._paused.pop(function.name, None) is not None:
                logger.info(
                    "%s is started by Invoke again",
                    function.name,
                    extra={"event": "invoke_works", "function": function.name},
                )

    def _failed(self, name: str, why: str) -> None:
        paused, now_s = self._paused.get(name), self._clock.monotonic_s()
        if paused is not None and now_s < paused.ends_at_s:
            return  # calls that began before the pause
        base_s, most_s = self._budget.retry_base_s, self._budget.retry_s_max
        pause_s = base_s if paused is None else min(2 * paused.pause_s, most_s)
        self._paused[name] = _Pause(pause_s, now_s + pause_s)
        if paused is None:
            logger.warning(
                "%s cannot be started by Invoke; events of its envelopes start it: %s",
                name,
                why,
                extra={"event": "invoke_failed", "function": name},
            )


class HostStarts:
    """Orders runs of the hosts, each with fresh credentials of its function's role."""

    def __init__(
        self,
        runs: RunStarter | None,
        credentials: FunctionCredentials | None,
        clock: Clock,
        batch: BatchQueue | None = None,
        services: FunctionStarter | None = None,
    ) -> None:
        self._runs = runs
        self._services = services
        self._credentials = credentials
        self._clock = clock
        self._batch = batch
        self._batch_answers = True

    async def order(self, action: do.OrderRun) -> float | None:
        """Seconds until the run needs other credentials; None = never.

        Raises AppError as `RunStarter`, `FunctionStarter` and `FunctionCredentials` do.
        """
        function, host = action.function, action.function.host
        if host is not None and host.service:
            await self._request(action, host.service)
            return None
        if action.granted is None:
            await self._submit(action)
            return None
        if host is None:
            why = "it was deployed again, for Lambda alone, after this attempt opened"
            raise invalid(f"{function.name} cannot run on a host: {why}")
        if self._runs is None or self._credentials is None:
            message = f"{function.name} cannot run on a host: this cloud has no roles of functions"
            raise invalid(message)
        name = f"{action.job}-{action.attempt}"
        credentials = await self._credentials.issue(host.role, name)
        await self._runs.start(action.granted, order_of(action, action.granted, host, credentials))
        if not credentials.ends_s:
            return None
        return max(RENEWAL_S_MIN, (credentials.ends_s - self._clock.wall_s()) / 2)

    async def _request(self, action: do.OrderRun, service: str) -> None:
        function, fence = action.function, action.granted.lease.fence if action.granted else 0
        if self._services is None:
            raise invalid(f"{function.name} cannot run at {service}: this cloud has no services")
        key = staging_key(function.name, action.job, action.attempt, fence, action.form)
        await self._services.start(service, payload_of(function, key))

    async def _submit(self, action: do.OrderRun) -> None:
        """Submit a run unless Batch has one of the attempt: an earlier try may have done it."""
        batch, queue = self._where(action)
        host, name = action.function.host, run_name(action.job, action.attempt)
        if await batch.runs(queue, name):
            return
        if host is None or host.batch is None:
            raise invalid(f"{action.function.name} cannot run in Batch: {_WITHOUT_BATCH}")
        await batch.submit(replace(host.batch, queue=queue), name, batch_order_of(action, host))

    async def in_batch(self, action: do.ReadRuns) -> tuple[BatchRun, ...] | None:
        """The runs of an attempt; None: Batch did not answer, and the next check asks again."""
        try:
            batch, queue = self._where(action)
            found = await batch.runs(queue, run_name(action.job, action.attempt))
        except AppError as error:
            if self._batch_answers:  # one line, not one for each job and check
                logger.warning("%s", error, extra={"event": "batch_failed", "job": action.job})
            self._batch_answers = False
            return None
        self._batch_answers = True
        return found

    async def end_in_batch(self, action: do.EndRuns) -> None:
        """End the runs of an attempt. One that is left finds it closed, or its job's result."""
        why = f"{action.job}: its attempt {action.attempt} is over"
        try:
            batch, queue = self._where(action)
            for run in await batch.runs(queue, run_name(action.job, action.attempt)):
                if not run.over and run.id != action.keep:
                    await batch.end(run.id, why)
        except AppError as error:
            logger.warning("%s", error, extra={"event": "batch_run_left", "job": action.job})

    def _where(self, action: do.OrderRun | do.ReadRuns | do.EndRuns) -> tuple[BatchQueue, str]:
        """Batch, and the queue of an attempt: a deploy meanwhile changes that of later ones."""
        function, host = action.function, action.function.host
        declared = "" if host is None or host.batch is None else host.batch.queue
        if self._batch is None:
            raise invalid(f"{function.name} cannot run in Batch: this cloud has none")
        if not (queue := action.queue or declared):
            raise invalid(f"{function.name} cannot run in Batch: {_WITHOUT_BATCH}")
        return self._batch, queue


def batch_order_of(action: do.OrderRun, host: HostRun) -> BatchOrder:
    """The order of a staged attempt without a device."""
    function = action.function
    key = staging_key(function.name, action.job, action.attempt, 0, action.form)
    return BatchOrder(**_order_of(action, host, key))


def _order_of(action: do.OrderRun, host: HostRun, key: str) -> dict[str, Any]:
    """The fields of an `Order` for the envelope at `key`."""
    function = action.function
    digest = function.package_sha256
    return {
        "function": function.name,
        "job": action.job,
        "attempt": action.attempt,
        "event": payload_of(function, key),
        "timeout_s": function.timeout_s,
        "memory_mib": function.memory_mib,
        "package": Package(bucket=host.package_bucket, key=host.package_key, sha256=digest),
        "variables": host.process,
    }


def order_of(
    action: do.OrderRun, granted: GrantedLease, host: HostRun, credentials: Credentials
) -> RunOrder:
    """The order of a staged attempt."""
    function, fence = action.function, granted.lease.fence
    key = staging_key(function.name, action.job, action.attempt, fence, action.form)
    return RunOrder(
        **_order_of(action, host, key),
        aws=credentials.variables,
        role=host.role,
        credentials_end_s=credentials.ends_s,
        log_group=host.log_group,
        network=host.network,
        image=host.image,
        command=host.command,
        warm=host.warm,
        called=host.call_s > 0,
    )


def payload_of(function: Function, key: str) -> str:
    """The event of an envelope in S3's form, with a source of its own."""
    bucket = function.intermediate_bucket
    record = {
        "eventVersion": "2.1",
        "eventSource": INVOKED,
        "eventName": "ObjectCreated:Put",
        "s3": {
            "s3SchemaVersion": "1.0",
            "bucket": {"name": bucket, "arn": f"arn:aws:s3:::{bucket}"},
            "object": {"key": quote(key)},
        },
    }
    return json.dumps({"Records": [record]})

"""Starts a function by Invoke as soon as its envelope is stored.

S3 delivers the event of an envelope typically within seconds, sometimes after a minute or longer
(S3 user guide, "Amazon S3 Event Notifications"), and the device is held meanwhile. So the event is
the second start, which the lease refuses (CLAIMED), and the only one when the call failed.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from urllib.parse import quote

from corekit.aio.clock import Clock
from corekit.budget import Budget
from corekit.errors import AppError
from orchgpu.core.function import Function
from orchgpu.ports import FunctionStarter

logger = logging.getLogger(__name__)

#: `eventSource` of the record of an Invoke; S3's own is `aws:s3`.
INVOKED = "orchgpu:invoke"


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

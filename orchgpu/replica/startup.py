"""The start of one orchestrator process: its settings, and retries.

The cloud and the scheduler may start later, or be away for a while. An orchestrator that ended
instead would need an operator, and every job would wait until then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from corekit.aio.backoff import Backoff
from corekit.aio.supervise import until_first
from corekit.budget import Budget
from corekit.errors import AppError
from gpu_scheduler.client.access import Access

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorSettings:
    """All that `app.run` needs. Endpoints of the cloud come from the environment."""

    cloud: str = "aws"  #: a package of `orchgpu.adapters`
    scheduler: str  #: "address:port" of ssgmd's socket endpoint
    access: Access = field(default_factory=Access)  #: to it: the key, and the CA of its TLS
    ready_file: Path | None = None  #: written once it serves: {"pid", "replica"}
    functions: tuple[str, ...] = ()  #: serve only these; empty = every deployed function
    metrics: str | None = None  #: "address:port" of the metrics endpoint; None = none
    emf: str | None = None  #: CloudWatch namespace of metrics in the log; None = none there
    search_every_s: float | None = None  #: pause between searches for uploads; None = the budget's
    replica: str | None = None  #: name in logs and sessions; None = made from host and pid


class Stopped(Exception):
    """The process was stopped before its start was complete."""


class StartupRetry:
    """Repeats a failed call, with pauses from `reconnect_base_s` up to `reconnect_s_max`."""

    def __init__(self, stop: asyncio.Event, budget: Budget) -> None:
        self._stop = stop
        self._budget = budget

    async def until_done(self, what: str, call: Callable[[], Awaitable[_T]]) -> _T:
        """The value of `call`, repeated after every retryable failure; each failure is logged.

        Raises other failures (no credentials, access denied) at once, and Stopped.
        """
        backoff = Backoff(self._budget.reconnect_base_s, self._budget.reconnect_s_max)
        while True:
            try:
                return await self._or_stopped(call())
            except AppError as error:
                if not error.retryable:
                    raise
                pause_s = backoff.next_s()
                logger.warning(
                    "%s cannot be reached; the next try is in %.1f s: %s",
                    what,
                    pause_s,
                    error.message,
                    extra={"event": "start_waits"},
                )
            await self._or_stopped(asyncio.sleep(pause_s))

    async def _or_stopped(self, work: Awaitable[_T]) -> _T:
        task = asyncio.ensure_future(work)
        await until_first(task, self._stop.wait())
        if task.cancelled():
            raise Stopped
        return task.result()

"""The leases of this host in its event loop: the table with its clock, its log and its performers.

The parts of gpud state which steps they carry out (`on`), change the table by `apply`, and wait for
changes (`until`); none of them knows the others.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial

from corekit.aio.supervise import contained
from corekit.ids import LeaseId
from gpu_scheduler.model import EndReason
from remote_gpu.host.leases.lease_log import LeaseLog
from remote_gpu.host.leases.steps import LeaseStep, LeaseStepKind
from remote_gpu.host.leases.table import LeaseTable

_TICK_S_MAX = 1.0  #: longest time between two checks of deadlines


class Leases:
    """The table of leases; lives in the event loop."""

    def __init__(self, table: LeaseTable, log: LeaseLog) -> None:
        self.table = table
        self.log = log
        self._acts: dict[LeaseStepKind, list[Callable[[LeaseStep], None]]] = defaultdict(list)
        self._waiting: list[asyncio.Future[None]] = []

    def now_s(self) -> float:
        """The machine's monotonic clock, shared with the lease log."""
        return time.monotonic()

    def on(self, kind: LeaseStepKind, *acts: Callable[[LeaseStep], None]) -> None:
        """Have these called, in this order and after earlier ones, for each step of a kind."""
        self._acts[kind] += acts

    def apply(self, steps: list[LeaseStep]) -> None:
        """Carry out steps in order; slow ones in tasks of their own."""
        for step in steps:
            with contained(f"{step.kind.value} of {step.lease}", partial(self._failed, step.lease)):
                self.log.write(step, step.kind.value, self.now_s())
                for act in self._acts[step.kind]:
                    act(step)
        if steps:
            self.wake()

    def end(self, lease: LeaseId, reason: EndReason, detail: str) -> None:
        """End a lease, if it is installed, and report it."""
        self.apply(self.table.end(lease, reason, detail))

    def _failed(self, lease: LeaseId, error: Exception) -> None:
        self.end(lease, EndReason.REVOKED, f"an error of gpud: {error!r}")

    def expire(self) -> float:
        """End everything whose deadline has passed; returns the monotonic time."""
        now_s = self.now_s()
        self.apply(self.table.expire(now_s))
        return now_s

    def installed(self) -> tuple[LeaseId, ...]:
        """Leases installed here, those that are ending included."""
        return tuple(entry.lease for entry in self.table)

    async def until(self, ready: Callable[[], bool], wait_s: float) -> bool:
        """Wait until a change of the table makes `ready` true, or `wait_s` has elapsed."""
        deadline_s = self.now_s() + wait_s
        while not ready():
            left_s = deadline_s - self.now_s()
            if left_s <= 0:
                return False
            await self._next_change(left_s)
        return True

    async def _next_change(self, wait_s: float) -> None:
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(change)
        await asyncio.wait({change}, timeout=wait_s)

    def wake(self) -> None:
        """Let those that wait for a change evaluate their conditions again."""
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            if not change.done():
                change.set_result(None)

    async def keep_deadlines(self) -> None:
        """End leases when their own deadlines pass, with or without a scheduler; never ends."""
        while True:
            now_s = self.expire()
            next_s = self.table.next_deadline_s()
            wait_s = _TICK_S_MAX if next_s is None else min(_TICK_S_MAX, max(0.0, next_s - now_s))
            await self._next_change(wait_s)

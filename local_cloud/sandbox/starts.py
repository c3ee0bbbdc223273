"""Turns to start environments: as many start at the same time as the machine has cores.

AWS starts each environment on processor time of its own. Here they share the cores: forty
interpreters that start together on two cores all exceed the time of INIT, which each of them alone
needs a fraction of. Environments that run are not counted; the concurrency limit is theirs.

An invocation that waits for its turn takes an environment that becomes idle meanwhile instead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from local_cloud.model.functions.environments import Environment


@dataclass(slots=True)
class _Waiting:
    fresh: Environment
    answer: asyncio.Future[Environment | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Starts:
    """`most` starts at the same time; further ones wait, in order."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: deque[_Waiting] = deque()
        self._closed = False

    async def turn(self, fresh: Environment) -> Environment | None:
        """Wait until `fresh` may be started: None, and `ended` must follow. Or an idle environment
        of its function and revision, which takes its place.
        """
        waiting = _Waiting(fresh)
        if self._closed:
            waiting.answer.cancel()
        elif self._free:
            self._free -= 1
            return None
        self._waiting.append(waiting)
        return await waiting.answer

    def close(self) -> None:
        """Nothing starts any more: the invocations that wait, and later ones, are cancelled."""
        self._closed = True
        for waiting in self._waiting:
            waiting.answer.cancel()

    def ended(self) -> None:
        """A start ended, well or not: the next one may begin."""
        while self._waiting and not self._closed:
            first = self._waiting.popleft()
            if not first.answer.done():  # a cancelled invocation starts nothing
                first.answer.set_result(None)
                return
        self._free += 1

    def offer(self, idle: Environment) -> bool:
        """Give an environment after its run to the first invocation that waits for one like it."""
        wanted = (idle.function, idle.revision)
        for waiting in self._waiting:
            fresh = waiting.fresh
            if (fresh.function, fresh.revision) == wanted and not waiting.answer.done():
                self._waiting.remove(waiting)
                waiting.answer.set_result(idle)
                return True
        return False

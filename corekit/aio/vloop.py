"""An asyncio event loop on virtual time: when every task waits, time jumps to the next timer.

Only for code without real sockets, files in other threads or subprocesses: with real I/O in flight
a jump would be wrong. A wait that can never end raises `Deadlock` instead of hanging.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Every task waits and no timer is armed: on real time this would hang."""


class _JumpingSelector(selectors.PollSelector):
    """Instead of sleeping until the next timer, moves the loop's clock there."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Deadlock("every task is waiting and no timer is armed")
        self.now_s += timeout
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`loop.time()` starts at 0 and moves only by jumps between timers."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run_virtual(main: Coroutine[object, object, T]) -> T:
    """`asyncio.run` on virtual time: deterministic, and as fast as its callbacks."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)

"""What one job cost this replica: the time of its own, with the waiting for AWS taken out.

Only the calls themselves are taken out, port by port (`without_aws`): packing, parsing, deciding
and the scheduler's answers count as ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from corekit.aio.clock import Clock

Interval = tuple[float, float]
PortT = TypeVar("PortT")

#: Of the job whose action the running task performs.
_CALLS: ContextVar[list[Interval]] = ContextVar("aws_calls")


def without_aws(port: PortT, clock: Clock) -> PortT:
    """The same port; its calls are taken out of the job for which `Story.tell` was called."""
    return cast("PortT", _Noted(port, clock))


class _Noted:
    def __init__(self, port: Any, clock: Clock) -> None:
        self._port = port
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._port, name)

        async def noted(*arguments: Any, **named: Any) -> Any:
            started_s = self._clock.monotonic_s()
            try:
                return await call(*arguments, **named)
            finally:
                calls = _CALLS.get(None)
                if calls is not None:
                    calls.append((started_s, self._clock.monotonic_s()))

        return noted


@dataclass(slots=True)
class Story:
    """Collected while a job is in hand; all times monotonic seconds."""

    received_s: float
    staged_s: dict[int, float] = field(default_factory=dict)  #: attempt → its envelope is there
    ended_s: dict[int, float] = field(default_factory=dict)  #: attempt → its lease's end noticed
    noticed_s: float | None = None  #: the result was noticed
    away: list[Interval] = field(default_factory=list)  #: AWS calls, pauses between attempts

    def tell(self) -> None:
        """The AWS calls of the running task belong to this story from here on."""
        _CALLS.set(self.away)

    def pause(self, begin_s: float, length_s: float) -> None:
        """The next attempt starts so much later on purpose."""
        self.away.append((begin_s, begin_s + length_s))

    def own_s(self, done_s: float) -> float:
        """From message to `done_s`, less AWS calls, pauses and the time that functions had it.

        Never more than all of that time: an end may be noticed before we know that it began.
        """
        all_of_it = (self.received_s, done_s)
        away = _union([*self.away, *self._runs(done_s)])
        return done_s - self.received_s - sum(_overlap(all_of_it, one) for one in away)

    def _runs(self, done_s: float) -> Iterator[Interval]:
        """When an attempt was its function's: from its envelope to the first word of its end."""
        for attempt, staged_s in self.staged_s.items():
            said = (self.ended_s.get(attempt), self.noticed_s)
            yield staged_s, min((at_s for at_s in said if at_s is not None), default=done_s)


def _union(intervals: list[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > start:
            merged.append((start, end))
    return merged


def _overlap(left: Interval, right: Interval) -> float:
    return max(0.0, min(left[1], right[1]) - max(left[0], right[0]))

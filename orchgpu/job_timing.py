"""The time of its own that one job cost this replica, without its calls to the cloud.

Only the calls themselves are taken out, port by port (`without_cloud`): packing, parsing, deciding
and the scheduler's answers count as the orchestrator's.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar, cast

from corekit.aio.clock import Clock
from gpu_scheduler.model import LeaseState
from orchgpu.core import actions as do
from orchgpu.core import events as on

logger = logging.getLogger(__name__)

Interval = tuple[float, float]
PortT = TypeVar("PortT")
_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")

#: The calls to the cloud of the job whose action the running task performs.
_CALLS: ContextVar[list[Interval]] = ContextVar("cloud_calls")


def without_cloud(port: PortT, clock: Clock) -> PortT:
    """The same port; its calls are taken out of the job that the calling task is attached to."""
    return cast("PortT", _Measured(port, clock))


class _Measured:
    def __init__(self, port: object, clock: Clock) -> None:
        self._port = port
        self._clock = clock

    def __getattr__(self, name: str) -> Callable[..., Awaitable[object]]:
        return self._measured(getattr(self._port, name))

    def _measured(
        self, call: Callable[_Arguments, Awaitable[_Answer]]
    ) -> Callable[_Arguments, Awaitable[_Answer]]:
        async def measured(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Answer:
            started_s = self._clock.monotonic_s()
            try:
                return await call(*arguments, **named)
            finally:
                calls = _CALLS.get(None)
                if calls is not None:
                    calls.append((started_s, self._clock.monotonic_s()))

        return measured


@dataclass(slots=True)
class JobTiming:
    """Collected while a job is in hand; all times monotonic seconds."""

    received_s: float
    staged_s: dict[int, float] = field(default_factory=dict)  #: attempt → its envelope is there
    ended_s: dict[int, float] = field(default_factory=dict)  #: attempt → its lease's end noticed
    noticed_s: float | None = None  #: the result was noticed
    away: list[Interval] = field(default_factory=list)  #: calls to the cloud, pauses

    def attach(self) -> None:
        """The calls to the cloud of the running task belong to this job from here on."""
        _CALLS.set(self.away)

    def pause(self, begin_s: float, length_s: float) -> None:
        """The next attempt starts so much later on purpose."""
        self.away.append((begin_s, begin_s + length_s))

    def own_s(self, done_s: float) -> float:
        """From message to `done_s`, less calls to the cloud, pauses and functions' time.

        Never more than all of that time: an end may be noticed before we know that it began.
        """
        whole = (self.received_s, done_s)
        away = _union([*self.away, *self._runs(done_s)])
        return done_s - self.received_s - sum(_overlap(whole, interval) for interval in away)

    def _runs(self, done_s: float) -> Iterator[Interval]:
        """When an attempt was its function's: from its envelope to the first notice of its end."""
        for attempt, staged_s in self.staged_s.items():
            notices = (self.ended_s.get(attempt), self.noticed_s)
            yield staged_s, min((at_s for at_s in notices if at_s is not None), default=done_s)


class JobTimings:
    """The timings of all jobs in hand; each job that finishes here is one line of the log."""

    def __init__(self, clock: Clock, finished: Callable[[str, float], None]) -> None:
        """`finished`: called with the job and its own time in seconds."""
        self._clock = clock
        self._finished = finished
        self._jobs: dict[str, JobTiming] = {}

    def begin(self, job: str, received_s: float) -> None:
        """A job is in hand, unless it was before."""
        if job not in self._jobs:
            self._jobs[job] = JobTiming(received_s=received_s)

    def attach(self, job: str) -> None:
        """The calls to the cloud of the running task belong to that job from here on."""
        if job in self._jobs:
            self._jobs[job].attach()

    def starting(self, action: do.Action) -> None:
        """An action is about to be performed."""
        timing = self._jobs.get(action.job)
        if timing is None:
            return
        if isinstance(action, do.ForgetJob):
            del self._jobs[action.job]
            if action.known_as is not None:
                self._jobs[action.known_as] = timing
        elif isinstance(action, do.ArmTimer) and action.timer is do.Timer.NEXT_ATTEMPT:
            timing.pause(self._clock.monotonic_s(), action.in_s)

    def noticed(self, event: on.Event) -> None:
        """The notice of result or report, or the end of the lease, whichever comes first: our turn
        again."""
        if not isinstance(event, (on.ResultNoticed, on.ReportNoticed, on.LeaseChanged)):
            return
        timing = self._jobs.get(event.job)
        if timing is None:
            return
        if isinstance(event, on.ResultNoticed):
            timing.noticed_s = timing.noticed_s or event.at_s
        elif isinstance(event, on.ReportNoticed) or event.state is LeaseState.ENDED:
            timing.ended_s.setdefault(event.attempt, event.at_s)

    def performed(self, action: do.Action, event: on.Event | None) -> None:
        """An action led to that event."""
        timing = self._jobs.get(action.job)
        if timing is None:
            return
        if isinstance(event, on.StagedRecorded):
            timing.staged_s[event.attempt] = self._clock.monotonic_s()
        if isinstance(event, on.Finished) and isinstance(action, do.FinishJob):
            now_s = self._clock.monotonic_s()
            own_s = timing.own_s(now_s)
            self._finished(action.job, own_s)
            _log_finished(action, own_s, now_s - timing.received_s)


def _log_finished(action: do.FinishJob, own_s: float, in_hand_s: float) -> None:
    """The one canonical line of a job."""
    logger.info(
        "%s %s",
        action.job,
        action.outcome,
        extra={
            "event": "job_finished",
            "job": action.job,
            "outcome": action.outcome,
            "reason": action.reason,
            "own_ms": round(own_s * 1000, 3),
            "in_hand_s": round(in_hand_s, 4),
        },
    )


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

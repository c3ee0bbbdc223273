"""The time of its own that one job cost this replica.

Taken out are the actions that are calls to the cloud, the pauses between attempts, and the time of
the function; deciding and the scheduler's answers count as the orchestrator's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from corekit.aio.clock import Clock
from gpu_scheduler.model import LeaseState
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.job import Job
from orchgpu.replica.observer import Observer, Performed

logger = logging.getLogger(__name__)

Interval = tuple[float, float]

#: Actions that are calls to the cloud; packing an envelope is a part of the one that stores it.
_CALLS = (
    do.ReadInput,
    do.ReadResult,
    do.ReadReport,
    do.StageEnvelope,
    do.RemoveEnvelope,
    do.CloseAttempt,
    do.WriteResult,
    do.SendDeadLetter,
    do.DeleteMessages,
    do.ExtendVisibility,
)


@dataclass(slots=True)
class JobTiming:
    """Collected while a job is in hand; all times monotonic seconds."""

    received_s: float
    staged_s: dict[int, float] = field(default_factory=dict)  #: attempt → its envelope is there
    ended_s: dict[int, float] = field(default_factory=dict)  #: attempt → its lease's end noticed
    noticed_s: float | None = None  #: the result was noticed
    away: list[Interval] = field(default_factory=list)  #: calls to the cloud, pauses

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


class OwnTimes(Observer):
    """The timings of all jobs in hand; each job that finishes here is one line of the log."""

    def __init__(self, clock: Clock, finished: Callable[[str, float], None]) -> None:
        """`finished`: called with the function of a job and its own time in seconds."""
        self._clock = clock
        self._finished = finished
        self._jobs: dict[str, JobTiming] = {}

    def noticed(self, event: on.Event) -> None:
        """The notice of result or report, or the end of the lease, whichever comes first: our turn
        again."""
        timing = self._jobs.get(event.job) if isinstance(event, on.JobEvent) else None
        if timing is None:
            return
        if isinstance(event, on.ResultNoticed):
            timing.noticed_s = timing.noticed_s or event.at_s
        elif isinstance(event, on.ReportNoticed) or (
            isinstance(event, on.LeaseChanged) and event.state is LeaseState.ENDED
        ):
            timing.ended_s.setdefault(event.attempt, event.at_s)

    def starting(self, job: Job | None, action: do.Action) -> None:
        if job is not None and job.id not in self._jobs:
            self._jobs[job.id] = JobTiming(received_s=job.received_at_s)
        timing = self._jobs.get(action.job)
        if timing is None:
            return
        if isinstance(action, do.ForgetJob):
            del self._jobs[action.job]
            if action.known_as is not None:
                self._jobs[action.known_as] = timing
        elif isinstance(action, do.ArmTimer) and action.timer is do.Timer.NEXT_ATTEMPT:
            now_s = self._clock.monotonic_s()
            timing.away.append((now_s, now_s + action.in_s))

    def performed(self, done: Performed) -> None:
        job, action, event, began = done
        timing = self._jobs.get(action.job)
        if timing is None:
            return
        now_s = self._clock.monotonic_s()
        if isinstance(action, _CALLS):
            timing.away.append((began["at_s"], now_s))
        if isinstance(event, on.StagedRecorded):
            timing.staged_s[event.attempt] = now_s
        if isinstance(event, on.Finished) and isinstance(action, do.FinishJob):
            own_s = timing.own_s(now_s)
            if job is not None:
                self._finished(job.function.name, own_s)
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

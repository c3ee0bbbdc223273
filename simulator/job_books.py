"""A second set of books about jobs, kept from the journal's entries alone."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from gpu_scheduler.model import RETRY_AT, Record, Step
from gpu_scheduler.protocol import changes as to

#: In this order a job goes through them, within one attempt. RUNNING may be known before STAGED:
#: a warm function's session can be faster than the word of its orchestrator.
_ORDER = (Step.RECEIVED, Step.WAITING, Step.RESERVED, Step.STAGED, Step.COMMITTED, Step.ENDED)
#: Ages travel as floating-point seconds.
_ROUNDING_S = 1e-6


class RecordChecker:
    """Whether records tell the truth about time, and attempts wait out their pause."""

    def __init__(self) -> None:
        self._paused: dict[str, tuple[int, float]] = {}  #: holder → attempt that failed, until when

    def note(self, entry: to.Entry, wall_s: float) -> list[str]:
        """Follow one entry; everything that is not as it must be, as a sentence."""
        written = [part.record for part in entry.parts if isinstance(part, to.RecordWritten)]
        return [broken for record in written for broken in self._judge(record, wall_s)]

    def _judge(self, record: Record, wall_s: float) -> Iterable[str]:
        holder = record.holder
        failed, until_s = self._paused.get(holder, (record.attempt, 0.0))
        if record.attempt > failed and wall_s < until_s - _ROUNDING_S:
            yield f"{holder}:{record.attempt} was opened {until_s - wall_s:.3f} s too early"
        if RETRY_AT in record.times:
            self._paused[holder] = (record.attempt, record.times[RETRY_AT])
        else:
            self._paused.pop(holder, None)
        steps = [(step, record.times[step]) for step in _ORDER if step in record.times]
        for (one, one_s), (other, other_s) in pairwise(steps):
            if other_s < one_s - _ROUNDING_S:
                yield f"{holder} is {other} {one_s - other_s:.3f} s before it is {one}"

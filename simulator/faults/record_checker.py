"""Checks of job records by the journal's entries alone."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from contract.states import Reason
from corekit.budget import Budget
from corekit.ids import attempt_id
from gpu_scheduler.model import RETRY_AT, Record, Step
from gpu_scheduler.protocol import changes as to

#: The order of a job's steps within one attempt. RUNNING may be known before STAGED: the session of
#: a warm function can be faster than its orchestrator's report.
_ORDER = (Step.RECEIVED, Step.WAITING, Step.RESERVED, Step.STAGED, Step.COMMITTED, Step.ENDED)
#: Orchestrators that end while they pack a job before it is packed for the last time.
STRIKES = Budget().strikes_max
#: Ages travel as floating-point seconds.
_ROUNDING_S = 1e-6


class RecordChecker:
    """Checks the times of records, the pauses between attempts, and that strikes are deserved."""

    def __init__(self) -> None:
        self.ended: set[str] = set()  #: sessions of orchestrators that were killed
        self.silent: set[str] = set()  #: living ones that the scheduler has not heard since
        self._paused: dict[str, tuple[int, float]] = {}  #: holder → attempt that failed, until when

    def note(self, entry: to.Entry, wall_s: float) -> list[str]:
        """Apply one entry; a sentence for every violation in it."""
        written = [part.record for part in entry.parts if isinstance(part, to.RecordWritten)]
        return [broken for record in written for broken in self._check(record, wall_s)]

    def _check(self, record: Record, wall_s: float) -> Iterable[str]:
        holder = record.holder
        if not set(record.ended_owners) <= self.ended | self.silent:
            yield f"{holder} counts {record.ended_owners}, of which some live"
        if record.reason == Reason.POISON and len(self.ended & set(record.ended_owners)) <= STRIKES:
            yield f"{holder} is POISON by {record.ended_owners}"
        failed, until_s = self._paused.get(holder, (record.attempt, 0.0))
        if record.attempt > failed and wall_s < until_s - _ROUNDING_S:
            opened = attempt_id(holder, record.attempt)
            yield f"{opened} was opened {until_s - wall_s:.3f} s too early"
        if RETRY_AT in record.times:
            self._paused[holder] = (record.attempt, record.times[RETRY_AT])
        else:
            self._paused.pop(holder, None)
        steps = [(step, record.times[step]) for step in _ORDER if step in record.times]
        for (one, one_s), (other, other_s) in pairwise(steps):
            if other_s < one_s - _ROUNDING_S:
                yield f"{holder} is {other} {one_s - other_s:.3f} s before it is {one}"

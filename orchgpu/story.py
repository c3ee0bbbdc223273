"""What one job cost this replica: the time of its own, with the waiting for AWS taken out."""

from __future__ import annotations

from dataclasses import dataclass, field

Interval = tuple[float, float]


@dataclass(slots=True)
class Story:
    """Collected while a job is in hand; all times monotonic seconds."""

    received_s: float
    staged_s: float | None = None  #: the scheduler knows the envelope is there
    ended_s: float | None = None  #: the result or the lease's end was noticed
    aws_calls: list[Interval] = field(default_factory=list)

    def own_s(self, done_s: float) -> float:
        """From message to staged, and from the lease's end to `done_s`, less every AWS call."""
        segments = [(self.received_s, self.staged_s if self.staged_s is not None else done_s)]
        if self.staged_s is not None and self.ended_s is not None:
            segments.append((self.ended_s, done_s))
        calls = _union(self.aws_calls)
        return sum(b - a - sum(_overlap((a, b), call) for call in calls) for a, b in segments)


def _union(intervals: list[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _overlap(left: Interval, right: Interval) -> float:
    return max(0.0, min(left[1], right[1]) - max(left[0], right[0]))

"""The waiting requests, in order of service, grouped by what they need.

Requests that need the same share one `Need`: when its first does not fit, none of it does, so
100,000 waiters cost a decision no more than a few needs. Order: (−priority, waiting_since, id).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import replace

from corekit.ids import SessionId
from gpu_scheduler.core.changes import Waiting
from gpu_scheduler.model import Request

#: Everything that decides feasibility; what only orders or guides is set to one value.
Need = Request
Place = tuple[int, float, str]


def need_of(request: Request) -> Need:
    return replace(request, priority=0, tenant="", warm_key=None, max_wait_s=None)


def place_of(waiting: Waiting) -> Place:
    return (-waiting.request.priority, waiting.waiting_since_s, waiting.attempt)


class WaitingQueue:
    """Durable entries, and the order of those that may be served now."""

    def __init__(self) -> None:
        self.entries: dict[str, Waiting] = {}
        self.of_session: dict[SessionId, dict[str, None]] = {}
        self.passed_over: dict[str, None] = {}  #: grant not taken; back with their session's beat
        self._lines: dict[Need, list[Place]] = {}
        self._needs: dict[str, Need] = {}  #: of every entry: hashing a request once is enough

    # ------------------------------------------------------------------ reading

    def heads(self) -> list[Waiting]:
        """The first request of every need, in order of service: all a policy has to look at."""
        return [
            self.entries[place[2]] for place in sorted(line[0] for line in self._lines.values())
        ]

    def head(self) -> Waiting | None:
        first = min((line[0] for line in self._lines.values()), default=None)
        return None if first is None else self.entries[first[2]]

    def position(self, waiting: Waiting) -> int | None:
        """1 = next; None when it is parked. Also for a request that is not queued yet."""
        if self.is_parked(waiting.attempt):
            return None
        place = place_of(waiting)
        return 1 + sum(bisect_left(line, place) for line in self._lines.values())

    def is_parked(self, attempt: str) -> bool:
        waiting = self.entries.get(attempt)
        return waiting is not None and (waiting.session is None or attempt in self.passed_over)

    def in_order(self) -> list[Waiting]:
        """Everything: first those that may be served, then the parked."""
        places = sorted(place for line in self._lines.values() for place in line)
        parked = [w for w in self.entries.values() if self.is_parked(w.attempt)]
        return [*(self.entries[place[2]] for place in places), *sorted(parked, key=place_of)]

    def by_need(self) -> Iterator[tuple[Need, list[Waiting]]]:
        """All entries, parked ones too, grouped by need."""
        groups: dict[Need, list[Waiting]] = {}
        for attempt, need in self._needs.items():
            groups.setdefault(need, []).append(self.entries[attempt])
        yield from groups.items()

    # ------------------------------------------------------------------ changing

    def put(self, waiting: Waiting) -> None:
        """Queue a request, or replace what is known of it."""
        old = self.entries.get(waiting.attempt)
        if old is not None:
            self._leave_line(old)
            self._disown(old)
            self.passed_over.pop(waiting.attempt, None)
        self.entries[waiting.attempt] = waiting
        self._needs[waiting.attempt] = need_of(waiting.request)
        if waiting.session is not None:
            self.of_session.setdefault(waiting.session, {})[waiting.attempt] = None
        self._join_line(waiting)

    def drop(self, attempt: str) -> None:
        """Idempotent."""
        waiting = self.entries.get(attempt)
        if waiting is None:
            return
        self._leave_line(waiting)
        self._disown(waiting)
        self.passed_over.pop(attempt, None)
        del self.entries[attempt], self._needs[attempt]

    def pass_over(self, attempt: str) -> None:
        """Its grant was not taken: it waits aside until its session shows life."""
        self._leave_line(self.entries[attempt])
        self.passed_over[attempt] = None

    def back_in_line(self, attempt: str) -> bool:
        """Undo `pass_over` at the old place; False when there was nothing to undo."""
        if attempt not in self.passed_over:
            return False
        del self.passed_over[attempt]
        self._join_line(self.entries[attempt])
        return True

    def _join_line(self, waiting: Waiting) -> None:
        if not self.is_parked(waiting.attempt):
            insort(self._lines.setdefault(self._needs[waiting.attempt], []), place_of(waiting))

    def _leave_line(self, waiting: Waiting) -> None:
        if self.is_parked(waiting.attempt):
            return
        need = self._needs[waiting.attempt]
        line = self._lines[need]
        del line[bisect_left(line, place_of(waiting))]
        if not line:
            del self._lines[need]

    def _disown(self, waiting: Waiting) -> None:
        if waiting.session is None:
            return
        theirs = self.of_session[waiting.session]
        del theirs[waiting.attempt]
        if not theirs:
            del self.of_session[waiting.session]

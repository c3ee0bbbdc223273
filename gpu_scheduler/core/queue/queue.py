"""The waiting requests, in order of service, in lines of equal need.

A line holds the requests of one tenant that need the same: when its first does not fit, none of it
does, so 100,000 waiters cost a decision no more than a few lines, and of those only the ones are
looked at that something which came free may serve (`Heads`, search.py). A line whose tenant has
used up its quota is benched: it keeps its place, but is not looked at until the tenant gives
something back; or, when no device that is up is small enough for its quota, others are up.
Order: by place, see `place_of`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from corekit.ids import SessionId
from gpu_scheduler.core.durable.changes import Waiting
from gpu_scheduler.core.queue.request_class import Heads, Kin, Place, kin_key, kin_of
from gpu_scheduler.model import Request, Sharing


@dataclass(eq=False, slots=True)
class Line:
    """Requests of one tenant and one kin that want the same memory."""

    tenant: str
    kin: Kin
    request: Request  #: one of them
    places: list[Place] = field(default_factory=list)  #: of those that may be served
    members: int = 0  #: the parked ones too
    benched: bool = False


Lines = dict[Kin, Heads]


class WaitingQueue:
    """Durable entries, and the order of those that may be served now."""

    def __init__(self, aging_s: float | None = None) -> None:
        self.entries: dict[str, Waiting] = {}
        self.of_session: dict[SessionId, dict[str, None]] = {}
        self.set_aside: dict[SessionId, dict[str, None]] = {}  #: grant not taken; until its beat
        self.lines: Lines = {}  #: of all that are not benched
        self.of_tenant: dict[str, Lines] = {}  #: the same by tenant
        self.woken: dict[Kin, None] = {}  #: to be judged against everything, not only what is new
        self._aging_s = aging_s
        self.passed: dict[str, int] = {}  #: heads, also former ones, and how often they were
        self._head: tuple[int, Place | None] | None = None  #: of `lines` on a day, once asked for
        self._order: list[Place] = []  #: of all that may be served, benched or not
        self._line_of: dict[str, Line] = {}
        self._lines: dict[tuple[str, Kin, int], Line] = {}
        self._kins: dict[tuple[Any, ...], Kin] = {}
        self._benched: dict[str, dict[Line, None]] = {}
        self._until_day: dict[Line, int] = {}  #: of these, see `bench`: the day they were

    # ------------------------------------------------------------------ reading

    def place_of(self, waiting: Waiting) -> Place:
        """Waiting for `aging_s` is worth one step of priority; without aging priority is all."""
        since_s, priority = waiting.waiting_since_s, waiting.request.priority
        rank = -priority if self._aging_s is None else since_s - priority * self._aging_s
        return (rank, since_s, waiting.attempt)

    def heads(self) -> list[Waiting]:
        """The first request of every line, in order of service."""
        return [
            self.entries[place[2]]
            for place in sorted(line.places[0] for line in self._lines.values() if line.places)
        ]

    def head(self, day: int, reach_mib: Callable[[Request], int]) -> Waiting | None:
        """The first that is not benched and that the devices of this day could serve.

        `reach_mib`: the most memory that those for a request have; see `capacity.reach_mib`.
        """
        if not self.lines:
            return None
        if self._head is None or self._head[0] != day:
            self._head = day, self._first_within(reach_mib)
        place = self._head[1]
        return None if place is None else self.entries[place[2]]

    def _first_within(self, reach_mib: Callable[[Request], int]) -> Place | None:
        first = min(heads.least for heads in self.lines.values())
        line = self._line_of[first[2]]
        if line.request.memory_mib <= reach_mib(line.kin.request):
            return first  # nearly always: no other kin is asked
        firsts = (heads.first(reach_mib(kin.request)) for kin, heads in self.lines.items())
        return min((place for place in firsts if place is not None), default=None)

    def position(self, waiting: Waiting) -> int | None:
        """1 = next; None when it is parked. Also for a request that is not queued yet."""
        if self.is_parked(waiting.attempt):
            return None
        return 1 + bisect_left(self._order, self.place_of(waiting))

    def is_parked(self, attempt: str) -> bool:
        waiting = self.entries.get(attempt)
        if waiting is None:
            return False
        return waiting.session is None or self.is_set_aside(waiting)

    def is_set_aside(self, waiting: Waiting) -> bool:
        """Its grant was not taken, and its session has not said anything since."""
        return waiting.session is not None and waiting.attempt in self.set_aside.get(
            waiting.session, ()
        )

    def in_order(self, limit: int | None = None) -> list[Waiting]:
        """The first of all: those that may be served, then the parked."""
        served = [self.entries[place[2]] for place in self._order[:limit]]
        if limit is not None and len(served) >= limit:
            return served
        parked = [w for w in self.entries.values() if self.is_parked(w.attempt)]
        return [*served, *sorted(parked, key=self.place_of)][:limit]

    def by_need(self) -> Iterator[tuple[Request, list[Waiting]]]:
        """All entries, parked ones too, line by line."""
        groups: dict[Line, list[Waiting]] = {}
        for attempt, line in self._line_of.items():
            groups.setdefault(line, []).append(self.entries[attempt])
        for line, waiting in groups.items():
            yield line.request, waiting

    # ------------------------------------------------------------------ changing

    def put(self, waiting: Waiting) -> None:
        """Queue a request, or replace what is known of it."""
        self.drop(waiting.attempt)
        self.entries[waiting.attempt] = waiting
        line = self._line_of[waiting.attempt] = self._line_for(waiting)
        line.members += 1
        if waiting.session is not None:
            self.of_session.setdefault(waiting.session, {})[waiting.attempt] = None
            self._join(waiting)

    def drop(self, attempt: str) -> None:
        """Idempotent."""
        waiting = self.entries.get(attempt)
        if waiting is None:
            return
        if not self.is_parked(attempt):
            self._leave(waiting)
        if waiting.session is not None:
            _take_out(self.of_session, waiting.session, attempt)
            if self.is_set_aside(waiting):
                _take_out(self.set_aside, waiting.session, attempt)
        self.passed.pop(attempt, None)
        line = self._line_of.pop(attempt)
        line.members -= 1
        if not line.members:
            self._end_line(line)
        del self.entries[attempt]

    def set_aside_one(self, attempt: str) -> None:
        """Its grant was not taken: it waits aside until its session shows life."""
        waiting = self.entries[attempt]
        assert waiting.session is not None, "only a session can fail to take a grant"
        self._leave(waiting)
        self.set_aside.setdefault(waiting.session, {})[attempt] = None

    def back_in_line(self, session: SessionId) -> None:
        """The session lives: what was set aside is at its old place."""
        for attempt in self.set_aside.pop(session, ()):
            self._join(self.entries[attempt])
            self.wake(attempt)

    def wake(self, attempt: str) -> None:
        """Judge this request, and those of its kin, against everything."""
        self.woken[self._line_of[attempt].kin] = None

    def wake_all(self) -> None:
        """Judge everybody: after a restart, or under another rule."""
        self.woken = dict.fromkeys(self._kins.values())

    def reorder(self, aging_s: float | None) -> None:
        """Another rule of order: everything is sorted anew."""
        if aging_s == self._aging_s:
            return
        served = [self.entries[place[2]] for place in self._order]
        self._aging_s = aging_s
        self._order = sorted(self.place_of(waiting) for waiting in served)
        self.lines, self.of_tenant, self._head = {}, {}, None
        for line in self._lines.values():
            line.places.clear()
        for place in self._order:
            self._line_of[place[2]].places.append(place)
        for line in self._lines.values():
            if line.places and not line.benched:
                self._show(line, None, line.places[0])

    # ------------------------------------------------------------------ quotas

    def bench(self, attempt: str, day: int | None = None) -> None:
        """The line of this request is not looked at until `unbench`.

        `day`: no device that is up on it is small enough, so another day may help.
        """
        line = self._line_of[attempt]
        if not line.benched:
            self._show(line, line.places[0] if line.places else None, None)
            line.benched = True
            self._benched.setdefault(line.tenant, {})[line] = None
            if day is not None:
                self._until_day[line] = day

    def benched_before(self, day: int) -> list[Line]:
        """Lines for which other devices may be up now."""
        return [line for line, then in self._until_day.items() if then != day]

    def benched(self, tenant: str) -> list[Line]:
        """Lines of a tenant that has used up its quota."""
        return list(self._benched.get(tenant, ()))

    def benched_tenants(self) -> list[str]:
        return list(self._benched)

    def unbench(self, line: Line) -> None:
        """The line is looked at again, against everything."""
        self._off_the_bench(line)
        self._show(line, None, line.places[0] if line.places else None)
        self.woken[line.kin] = None

    def _off_the_bench(self, line: Line) -> None:
        line.benched = False
        self._until_day.pop(line, None)
        theirs = self._benched[line.tenant]
        del theirs[line]
        if not theirs:
            del self._benched[line.tenant]

    def wake_whole(self, tenant: str) -> None:
        """Those of a tenant that want whole devices: larger ones may be within its quota now."""
        for kin in self.of_tenant.get(tenant, ()):
            if kin.request.sharing is Sharing.EXCLUSIVE:
                self.woken[kin] = None

    # ------------------------------------------------------------------ lines

    def _line_for(self, waiting: Waiting) -> Line:
        key = kin_key(waiting)
        kin = self._kins.get(key)
        if kin is None:
            kin = self._kins[key] = kin_of(waiting)
        request = waiting.request
        name = (request.tenant, kin, request.memory_mib)
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = Line(request.tenant, kin, request)
            kin.lines += 1
        return line

    def _end_line(self, line: Line) -> None:
        if line.benched:
            self._off_the_bench(line)
        kin = line.kin
        del self._lines[line.tenant, kin, line.request.memory_mib]
        kin.lines -= 1
        if not kin.lines:
            self.woken.pop(kin, None)
            del self._kins[kin.key]

    def _join(self, waiting: Waiting) -> None:
        line, place = self._line_of[waiting.attempt], self.place_of(waiting)
        insort(self._order, place)
        old = line.places[0] if line.places else None
        insort(line.places, place)
        if not line.benched:
            self._show(line, old, line.places[0])

    def _leave(self, waiting: Waiting) -> None:
        line, place = self._line_of[waiting.attempt], self.place_of(waiting)
        del self._order[bisect_left(self._order, place)]
        old = line.places[0]
        del line.places[bisect_left(line.places, place)]
        if not line.benched:
            self._show(line, old, line.places[0] if line.places else None)

    def _show(self, line: Line, old: Place | None, new: Place | None) -> None:
        """Tell both indexes that a line has another head."""
        if old == new:
            return
        self._head = None
        theirs = self.of_tenant.setdefault(line.tenant, {})
        for lines in (self.lines, theirs):
            heads = lines.get(line.kin)
            if heads is None:
                heads = lines[line.kin] = Heads()
            heads.swap(line.request.memory_mib, old, new)
            if not heads:
                del lines[line.kin]
        if not theirs:
            del self.of_tenant[line.tenant]


def _take_out(groups: dict[SessionId, dict[str, None]], session: SessionId, attempt: str) -> None:
    theirs = groups[session]
    del theirs[attempt]
    if not theirs:
        del groups[session]

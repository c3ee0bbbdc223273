"""The waiting requests, in order of service, in first_by_class of equal need.

A line holds the requests of one tenant that need the same: when its first does not fit, none of it
does, so 100,000 waiters cost a decision no more than a few first_by_class, and of those only the ones are
searched at that something which came free may serve (`FirstByMemory`, search.py). A line whose tenant has
used up its quota is suspended: it keeps its place, but is not searched at until the tenant gives
something back; or, when no device that is up is small enough for its quota, others are up.
Order: by place, see `queue_key`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from corekit.ids import SessionId
from gpu_scheduler.core.queue.request_class import (
    FirstByMemory,
    QueueKey,
    RequestClass,
    class_key,
    request_class_of,
)
from gpu_scheduler.model import Request, Sharing
from gpu_scheduler.protocol.changes import Waiting


@dataclass(eq=False, slots=True)
class RequestGroup:
    """Requests of one tenant and one request_class that want the same memory."""

    tenant: str
    request_class: RequestClass
    request: Request  #: one of them
    places: list[QueueKey] = field(default_factory=list)  #: of those that may be served
    members: int = 0  #: the parked ones too
    suspended: bool = False


FirstByClass = dict[RequestClass, FirstByMemory]


class WaitingQueue:
    """Durable entries, and the order of those that may be served now."""

    def __init__(self, aging_s: float | None = None) -> None:
        self.entries: dict[str, Waiting] = {}
        self.of_session: dict[SessionId, dict[str, None]] = {}
        self.unresponsive: dict[SessionId, dict[str, None]] = {}  #: grant not taken; until its beat
        self.first_by_class: FirstByClass = {}  #: of all that are not suspended
        self.of_tenant: dict[str, FirstByClass] = {}  #: the same by tenant
        self.dirty: dict[
            RequestClass, None
        ] = {}  #: to be judged against everything, not only what is new
        self._aging_s = aging_s
        self.passed: dict[str, int] = {}  #: by_memory, also former ones, and how often they were
        self._head: tuple[int, QueueKey | None] | None = (
            None  #: of `first_by_class` on a availability_version, once asked for
        )
        self._order: list[QueueKey] = []  #: of all that may be served, suspended or not
        self._line_of: dict[str, RequestGroup] = {}
        self._lines: dict[tuple[str, RequestClass, int], RequestGroup] = {}
        self._classes: dict[tuple[Any, ...], RequestClass] = {}
        self._suspended: dict[str, dict[RequestGroup, None]] = {}
        self._suspended_at: dict[
            RequestGroup, int
        ] = {}  #: of these, see `suspend`: the availability_version they were

    # ------------------------------------------------------------------ reading

    def queue_key(self, waiting: Waiting) -> QueueKey:
        """Waiting for `aging_s` is worth one step of priority; without aging priority is all."""
        since_s, priority = waiting.waiting_since_s, waiting.request.priority
        rank = -priority if self._aging_s is None else since_s - priority * self._aging_s
        return (rank, since_s, waiting.attempt)

    def by_memory(self) -> list[Waiting]:
        """The first request of every line, in order of service."""
        return [
            self.entries[place[2]]
            for place in sorted(line.places[0] for line in self._lines.values() if line.places)
        ]

    def head(
        self, availability_version: int, available_mib: Callable[[Request], int]
    ) -> Waiting | None:
        """The first that is not suspended and that the devices of this availability_version could serve.

        `available_mib`: the most memory that those for a request have; see `capacity.available_mib`.
        """
        if not self.first_by_class:
            return None
        if self._head is None or self._head[0] != availability_version:
            self._head = availability_version, self._first_within(available_mib)
        place = self._head[1]
        return None if place is None else self.entries[place[2]]

    def _first_within(self, available_mib: Callable[[Request], int]) -> QueueKey | None:
        first = min(by_memory.least for by_memory in self.first_by_class.values())
        line = self._line_of[first[2]]
        if line.request.memory_mib <= available_mib(line.request_class.request):
            return first  # nearly always: no other request_class is asked
        firsts = (
            by_memory.first(available_mib(request_class.request))
            for request_class, by_memory in self.first_by_class.items()
        )
        return min((place for place in firsts if place is not None), default=None)

    def position(self, waiting: Waiting) -> int | None:
        """1 = next; None when it is parked. Also for a request that is not queued yet."""
        if self.is_ineligible(waiting.attempt):
            return None
        return 1 + bisect_left(self._order, self.queue_key(waiting))

    def is_ineligible(self, attempt: str) -> bool:
        waiting = self.entries.get(attempt)
        if waiting is None:
            return False
        return waiting.session is None or self.is_unresponsive(waiting)

    def is_unresponsive(self, waiting: Waiting) -> bool:
        """Its grant was not taken, and its session has not said anything since."""
        return waiting.session is not None and waiting.attempt in self.unresponsive.get(
            waiting.session, ()
        )

    def in_order(self, limit: int | None = None) -> list[Waiting]:
        """The first of all: those that may be served, then the parked."""
        served = [self.entries[place[2]] for place in self._order[:limit]]
        if limit is not None and len(served) >= limit:
            return served
        parked = [w for w in self.entries.values() if self.is_ineligible(w.attempt)]
        return [*served, *sorted(parked, key=self.queue_key)][:limit]

    def by_group(self) -> Iterator[tuple[Request, list[Waiting]]]:
        """All entries, parked ones too, line by line."""
        groups: dict[RequestGroup, list[Waiting]] = {}
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
        if not self.is_ineligible(attempt):
            self._leave(waiting)
        if waiting.session is not None:
            _take_out(self.of_session, waiting.session, attempt)
            if self.is_unresponsive(waiting):
                _take_out(self.unresponsive, waiting.session, attempt)
        self.passed.pop(attempt, None)
        line = self._line_of.pop(attempt)
        line.members -= 1
        if not line.members:
            self._end_line(line)
        del self.entries[attempt]

    def mark_unresponsive(self, attempt: str) -> None:
        """Its grant was not taken: it waits aside until its session shows life."""
        waiting = self.entries[attempt]
        assert waiting.session is not None, "only a session can fail to take a grant"
        self._leave(waiting)
        self.unresponsive.setdefault(waiting.session, {})[attempt] = None

    def mark_responsive(self, session: SessionId) -> None:
        """The session lives: what was set aside is at its old place."""
        for attempt in self.unresponsive.pop(session, ()):
            self._join(self.entries[attempt])
            self.mark_dirty(attempt)

    def mark_dirty(self, attempt: str) -> None:
        """Judge this request, and those of its request_class, against everything."""
        self.dirty[self._line_of[attempt].request_class] = None

    def mark_all_dirty(self) -> None:
        """Judge everybody: after a restart, or under another rule."""
        self.dirty = dict.fromkeys(self._classes.values())

    def reorder(self, aging_s: float | None) -> None:
        """Another rule of order: everything is sorted anew."""
        if aging_s == self._aging_s:
            return
        served = [self.entries[place[2]] for place in self._order]
        self._aging_s = aging_s
        self._order = sorted(self.queue_key(waiting) for waiting in served)
        self.first_by_class, self.of_tenant, self._head = {}, {}, None
        for line in self._lines.values():
            line.places.clear()
        for place in self._order:
            self._line_of[place[2]].places.append(place)
        for line in self._lines.values():
            if line.places and not line.suspended:
                self._show(line, None, line.places[0])

    # ------------------------------------------------------------------ quotas

    def suspend(self, attempt: str, availability_version: int | None = None) -> None:
        """The line of this request is not searched at until `resume`.

        `availability_version`: no device that is up on it is small enough, so another availability_version may help.
        """
        line = self._line_of[attempt]
        if not line.suspended:
            self._show(line, line.places[0] if line.places else None, None)
            line.suspended = True
            self._suspended.setdefault(line.tenant, {})[line] = None
            if availability_version is not None:
                self._suspended_at[line] = availability_version

    def suspended_before(self, availability_version: int) -> list[RequestGroup]:
        """Lines for which other devices may be up now."""
        return [line for line, then in self._suspended_at.items() if then != availability_version]

    def suspended(self, tenant: str) -> list[RequestGroup]:
        """Lines of a tenant that has used up its quota."""
        return list(self._suspended.get(tenant, ()))

    def suspended_tenants(self) -> list[str]:
        return list(self._suspended)

    def resume(self, line: RequestGroup) -> None:
        """The line is searched at again, against everything."""
        self._clear_suspension(line)
        self._show(line, None, line.places[0] if line.places else None)
        self.dirty[line.request_class] = None

    def _clear_suspension(self, line: RequestGroup) -> None:
        line.suspended = False
        self._suspended_at.pop(line, None)
        theirs = self._suspended[line.tenant]
        del theirs[line]
        if not theirs:
            del self._suspended[line.tenant]

    def mark_exclusive_dirty(self, tenant: str) -> None:
        """Those of a tenant that want whole devices: larger ones may be within its quota now."""
        for request_class in self.of_tenant.get(tenant, ()):
            if request_class.request.sharing is Sharing.EXCLUSIVE:
                self.dirty[request_class] = None

    # ------------------------------------------------------------------ first_by_class

    def _line_for(self, waiting: Waiting) -> RequestGroup:
        key = class_key(waiting)
        request_class = self._classes.get(key)
        if request_class is None:
            request_class = self._classes[key] = request_class_of(waiting)
        request = waiting.request
        name = (request.tenant, request_class, request.memory_mib)
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = RequestGroup(request.tenant, request_class, request)
            request_class.first_by_class += 1
        return line

    def _end_line(self, line: RequestGroup) -> None:
        if line.suspended:
            self._clear_suspension(line)
        request_class = line.request_class
        del self._lines[line.tenant, request_class, line.request.memory_mib]
        request_class.first_by_class -= 1
        if not request_class.first_by_class:
            self.dirty.pop(request_class, None)
            del self._classes[request_class.key]

    def _join(self, waiting: Waiting) -> None:
        line, place = self._line_of[waiting.attempt], self.queue_key(waiting)
        insort(self._order, place)
        old = line.places[0] if line.places else None
        insort(line.places, place)
        if not line.suspended:
            self._show(line, old, line.places[0])

    def _leave(self, waiting: Waiting) -> None:
        line, place = self._line_of[waiting.attempt], self.queue_key(waiting)
        del self._order[bisect_left(self._order, place)]
        old = line.places[0]
        del line.places[bisect_left(line.places, place)]
        if not line.suspended:
            self._show(line, old, line.places[0] if line.places else None)

    def _show(self, line: RequestGroup, old: QueueKey | None, new: QueueKey | None) -> None:
        """Tell both indexes that a line has another head."""
        if old == new:
            return
        self._head = None
        theirs = self.of_tenant.setdefault(line.tenant, {})
        for first_by_class in (self.first_by_class, theirs):
            by_memory = first_by_class.get(line.request_class)
            if by_memory is None:
                by_memory = first_by_class[line.request_class] = FirstByMemory()
            by_memory.swap(line.request.memory_mib, old, new)
            if not by_memory:
                del first_by_class[line.request_class]
        if not theirs:
            del self.of_tenant[line.tenant]


def _take_out(groups: dict[SessionId, dict[str, None]], session: SessionId, attempt: str) -> None:
    theirs = groups[session]
    del theirs[attempt]
    if not theirs:
        del groups[session]

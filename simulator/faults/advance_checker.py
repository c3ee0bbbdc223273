"""Checks of leases granted ahead by the journal's entries alone, independent of the core's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from corekit.ids import AttemptId, LeaseId
from gpu_scheduler.model import EndReason, LeaseState, Request
from gpu_scheduler.protocol import changes as to


class AdvanceChecker:
    """Checks that only requests that accept it wait for shares, after grants of the one order, and
    that no session opens without them."""

    def __init__(self) -> None:
        self._ahead: dict[LeaseId, AttemptId] = {}
        self._waiting: dict[AttemptId, Request] = {}
        self._live: set[LeaseId] = set()
        self.counts: Counter[str] = Counter()  #: granted ahead, booked, gave way, withdrawn

    def note(self, entry: to.Entry) -> list[str]:
        """Apply one entry; a sentence for every violation in it."""
        return [one for part in entry.parts for one in self._note(part)]

    def _note(self, part: to.Part) -> Iterable[str]:
        match part:
            case to.LeaseGranted(lease=lease, request=request):
                self._live.add(lease.id)
                if not lease.after:
                    return
                self._ahead[lease.id] = lease.attempt
                self.counts["granted"] += 1
                if request.advance is None:
                    yield f"{lease.id} is granted ahead, but its request does not accept it"
                if not set(lease.after) <= self._live:
                    yield f"{lease.id} is granted ahead of {lease.after}, which are over"
            case to.LeaseBooked(lease=name, after=()):
                self.counts["booked"] += 1
                if self._ahead.pop(name, None) is None:
                    yield f"{name} is booked, but was not ahead"
            case to.LeaseBooked(lease=name):
                self.counts["gave way"] += 1
                self._ahead[name] = AttemptId("")
            case to.LeaseChanged(lease=name):
                yield from self._changed(part, name)
            case _:
                pass

    def _changed(self, part: to.LeaseChanged, name: LeaseId) -> Iterable[str]:
        if part.state is LeaseState.ACTIVE and name in self._ahead:
            yield f"{name} is ACTIVE without its shares"
        if part.state is not LeaseState.ENDED:
            return
        self._live.discard(name)
        was_ahead = self._ahead.pop(name, None) is not None
        if part.reason is EndReason.WITHDRAWN:
            self.counts["withdrawn"] += 1
            if not was_ahead:
                yield f"{name} is withdrawn, but it has its shares"

"""Checks of preemption by the journal's entries alone, independent of the core's own checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from corekit.ids import AttemptId, HostId, JobId, LeaseId, split_attempt
from gpu_scheduler.core.state.state import DRAINED
from gpu_scheduler.model import EndReason, LeaseState, Request
from gpu_scheduler.parameters import Parameters
from gpu_scheduler.protocol import changes as to

#: Ages travel as floating-point seconds.
_ROUNDING_S = 1e-6


class PreemptionChecker:
    """Checks that only leases that agreed end for a request that may preempt, after their grace.

    A lease whose host drains itself needs not agree, and gets no more grace than is left.
    """

    def __init__(self, parameters: Parameters | None = None) -> None:
        self._grace_s = (parameters or Parameters()).preempt_grace_s
        self._requests: dict[AttemptId, Request] = {}
        self._leases: dict[LeaseId, tuple[AttemptId, Request, LeaseState]] = {}
        self._noticed_s: dict[LeaseId, float] = {}
        self._hosts: dict[LeaseId, frozenset[HostId]] = {}
        self._draining: dict[HostId, bool] = {}
        self._drained: dict[LeaseId, None] = {}
        self.ended: Counter[JobId] = Counter()  #: job → attempts that were preempted or withdrawn
        self._last: dict[AttemptId, bool] = {}  #: whether its latest lease ended so

    def note(self, entry: to.Entry, wall_s: float, *, by_host: bool) -> list[str]:
        """Apply one entry; a sentence for every violation in it. `by_host`: a host reported the
        end of a session."""
        return [one for part in entry.parts for one in self._note(part, wall_s, by_host)]

    def _note(self, part: to.Part, wall_s: float, by_host: bool) -> Iterable[str]:
        match part:
            case to.RequestQueued(waiting=waiting):
                self._requests[waiting.attempt] = waiting.request
            case to.LeaseGranted(lease=lease, request=request):
                self._leases[lease.id] = (lease.attempt, request, lease.state)
                self._hosts[lease.id] = frozenset(share.host for share in lease.shares)
            case to.HostDraining(host=host, draining=draining):
                self._draining[host] = draining
            case to.LeasePreempted(lease=name, attempt=attempt) if attempt == DRAINED:
                self._drained[name] = None
                if not any(self._draining.get(host) for host in self._hosts[name]):
                    yield f"{name} is preempted for a drain, but its host does not drain"
            case to.LeasePreempted(lease=name, attempt=attempt):
                self._noticed_s[name] = wall_s
                yield from self._wrong_victim(name, attempt)
            case to.LeaseChanged(lease=name) if name in self._leases:
                attempt, request, before = self._leases[name]
                self._leases[name] = (attempt, request, part.state)
                is_preempted = part.reason is EndReason.PREEMPTED
                if part.state is LeaseState.ENDED:
                    self._count(attempt, is_preempted or part.reason is EndReason.WITHDRAWN)
                if part.state is LeaseState.ENDED and is_preempted:
                    yield from self._wrong_end(name, request, before, wall_s, by_host)
            case _:
                pass

    def _count(self, attempt: AttemptId, is_preempted: bool) -> None:
        """An attempt has several leases when one ends before it is used; its last one decides."""
        self.ended[split_attempt(attempt)[0]] += is_preempted - self._last.get(attempt, False)
        self._last[attempt] = is_preempted

    def _wrong_victim(self, lease: LeaseId, attempt: AttemptId) -> Iterable[str]:
        _, victim, _ = self._leases[lease]
        wanted = self._requests[attempt]
        if not wanted.preempts or wanted.priority <= victim.priority:
            yield f"{lease} is preempted for {attempt}, which may not preempt it"
        if not victim.preemptible:
            yield f"{lease} is preempted, but did not agree to it"

    def _wrong_end(
        self, lease: LeaseId, request: Request, before: LeaseState, wall_s: float, by_host: bool
    ) -> Iterable[str]:
        if lease in self._drained:
            return
        if not request.preemptible:
            yield f"{lease} ends as preempted, but did not agree to it"
        if by_host or before is not LeaseState.ACTIVE or not self._grace_s:
            return  # its session ended by itself, or had not begun
        noticed_s = self._noticed_s.get(lease)
        if noticed_s is None:
            yield f"{lease} ends as preempted without a notice"
        elif wall_s < noticed_s + self._grace_s - _ROUNDING_S:
            early_s = noticed_s + self._grace_s - wall_s
            yield f"{lease} ends {early_s:.3f} s before its grace time is over"

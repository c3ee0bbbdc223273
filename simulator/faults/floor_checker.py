"""Checks of warm floors after every decision, independent of the core's own (ADR 58).

That a floor delays no request is an invariant of the queue (`simulator.invariants`): what could be
served does not wait, and that check knows no floors. That workers leave a lease its memory is
checked by each host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from gpu_scheduler.core import events as on
from gpu_scheduler.core.handlers.floors import CHECK_S
from gpu_scheduler.core.state.state import State
from gpu_scheduler.floors import TENANT_WORKERS_MAX
from gpu_scheduler.protocol import changes as to
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol import ops

#: From the end of the last floor until a check has taken its slots, with the delay of a timer.
ENDED_S = CHECK_S + 1.0


class FloorChecker:
    """Floors that end with their sessions, within quotas, at the cost of no lease."""

    def __init__(self) -> None:
        self._none_since_s: float | None = None
        self.counts: Counter[str] = Counter()  #: floors that were declared, workers that came

    def note(self, state: State, event: on.Event, entries: Sequence[to.Entry]) -> list[str]:
        """A sentence for every violation after one decision."""
        if isinstance(event, on.HostAsked) and isinstance(event.op, host_ops.Report):
            self.counts["workers"] += sum(len(one.added) for one in event.op.residents)
        return [
            *self._declared(event, entries),
            *self._ended(state, event),
            *_within_quotas(state),
        ]

    def _declared(self, event: on.Event, entries: Sequence[to.Entry]) -> Iterable[str]:
        if not (isinstance(event, on.Asked) and isinstance(event.op, ops.KeepWarm)):
            return
        self.counts["declared"] += len(event.op.floors)
        for part in [part for entry in entries for part in entry.parts]:
            if isinstance(part, to.LeaseChanged | to.LeasePreempted):
                yield f"a floor changes {part.lease}"

    def _ended(self, state: State, event: on.Event) -> Iterable[str]:
        for session in state.floors.sessions():
            if session not in state.sessions:
                yield f"the floors of {session} outlive it"
        if state.floors.wanted():
            self._none_since_s = None
        elif self._none_since_s is None:
            self._none_since_s = event.at_s
        elif state.floors.slots and event.at_s - self._none_since_s > ENDED_S:
            yield f"slots outlive the last floor: {sorted(state.floors.slots)}"


def _within_quotas(state: State) -> Iterable[str]:
    workers: Counter[str] = Counter()
    for (tenant, _), slots in state.floors.slots.items():
        workers[tenant] += len(slots)
    for tenant, count in workers.items():
        quota = state.parameters.quota(tenant).devices
        most = TENANT_WORKERS_MAX if quota is None else int(quota)
        if count > most:
            yield f"tenant {tenant} has {count} workers of floors, of at most {most}"

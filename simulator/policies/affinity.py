"""Virtual time with a penalty off affinity: the policy of Kernel-as-a-service, across all hosts.

A client is a tenant with a workload, or a tenant alone (`client`). As in Linux' CFS it has a
virtual time: the device time that its grants were expected to take, divided by the weight of its
tenant. Its *affine* devices are those with its warm worker; while no device has one, those that it
used last. The client with the least virtual time is next, on an affine device if one is free. For
another device it is compared as if it had had `penalty_runs` more requests of the same length, so
it begins cold only where the clients that are warm there are that far ahead, or do not wait.

A client that was idle continues at the virtual time of the present, the least one of all clients
that wait, and so earns no credit. A client of long requests that is warm nowhere could wait behind
a stream of new clients of short ones: a request that waited for `overdue_s` is next where it fits.

Work-conserving: no device is free while a request waits that fits; nothing is kept free, so large
requests may starve.

Kernel-as-a-service refuses more than 256 outstanding runs. Here later ones wait: a decision
compares the 256 groups that wait longest of those that fit, and for each up to 256 free devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import NamedTuple

from corekit.ids import DeviceId
from gpu_scheduler.api import (
    LARGE,
    Choice,
    Declaration,
    Pause,
    Policy,
    PolicyParameter,
    Scalar,
    Values,
    View,
    Waiting,
)
from gpu_scheduler.core.queue.view import PlacementKey
from gpu_scheduler.core.queue.warm_start import (
    WAIT_BOUND,
    Start,
    Starts,
)
from gpu_scheduler.model import Request

#: Requests of its own that a client is set back for a device without its contents.
PENALTY_RUNS = 10
#: Groups of equal requests that one decision compares.
OUTSTANDING_MAX = 256
#: Remembered values; above it those are dropped that no decision needs, and no new one is added.
REMEMBERED_MAX = 15_000
UNKNOWN_S = 1.0  #: the expected time of a request whose time is unknown
_COST = f"a step for up to {OUTSTANDING_MAX} groups that fit, and for 256 free devices of each"
_NOW = "now"  #: virtual time of the present
_TIME = "time/"  #: client → virtual time
_LAST = "last/"  #: device → the client that used it last
_PENALTY = "penalty_runs"
_OVERDUE = "overdue_s"


class Candidate(NamedTuple):
    """A start that is possible now, with the virtual time of its client."""

    start: Start
    client: str
    virtual_s: float
    score_s: float  #: the least one is served


class Affinity(Policy):
    """Order: virtual time of the client, with the penalty where no affine device is free."""

    summary = "the client with the least virtual time, on a device that is warm for it if possible"
    parameters = (
        PolicyParameter(
            name=_PENALTY,
            meaning="requests of its own that a client is set back for a device without affinity",
            default=float(PENALTY_RUNS),
            at_least=0.0,
            at_most=1e6,
        ),
        PolicyParameter(
            name="client",
            meaning="owner of a virtual time: a tenant with a workload, or a tenant",
            default="workload",
            choices=("workload", "tenant"),
        ),
        PolicyParameter(
            name=_OVERDUE,
            meaning="a request that waited for this long is next where it fits",
            default=600.0,
            at_least=0.0,
        ),
    )

    def declare(self, values: Values) -> Declaration:  # noqa: ARG002 - the same for all
        return Declaration(
            work_conserving=True, wait_bound=WAIT_BOUND, starves=LARGE, decision_cost=_COST
        )

    def decide(self, view: View) -> Choice | Pause:
        candidates = _Candidates(view)
        found = list(islice(candidates.all(), OUTSTANDING_MAX))
        if not found:
            return Pause()
        best = _overdue(view, found) or min(found, key=lambda one: one.score_s)
        oldest = islice(view.groups(), OUTSTANDING_MAX)
        waiting_s = (candidates.virtual_s(_client_of(view, one.request)) for one in oldest)
        now_s = min(chain((one.virtual_s for one in found), waiting_s))
        return Choice(best.start.waiting.attempt, best.start.devices, _after(view, best, now_s))


class _Candidates:
    """The candidates of one decision, with the last users of free devices."""

    def __init__(self, view: View) -> None:
        self.view, self.starts = view, Starts(view, None)
        self._used: dict[PlacementKey, dict[str, DeviceId]] = {}
        self._virtual_s = view.remembered(_TIME).values
        self._now_s = view.recalled_number(_NOW)
        self._penalty = view.number(_PENALTY)

    def all(self) -> Iterator[Candidate]:
        """The starts that are possible now, the oldest group first."""
        for group in self.view.fitting_groups():
            waiting = self.view.first(group)
            start = self.starts.best(waiting)
            if start is not None:
                yield self.one(waiting, start)

    def one(self, waiting: Waiting, start: Start) -> Candidate:
        """This start, or one on a device that the client used last."""
        view, request = self.view, waiting.request
        client, affine = _client_of(view, request), start.warm
        if request.count == 1 and not view.is_loaded(request):
            used = self._last_used(waiting).get(client)
            if used is not None:
                start, affine = start._replace(devices=(used,)), True
        virtual_s, penalty_s = self.virtual_s(client), 0.0
        if not affine:
            penalty_s = self._penalty * (_expected_s(view, request) / view.weight(request.tenant))
        return Candidate(start, client, virtual_s, virtual_s + penalty_s)

    def virtual_s(self, client: str) -> float:
        """The virtual time of a client that waits."""
        own_s = float(self._virtual_s.get(client, 0.0))
        return max(own_s, self._now_s)  # idle clients have earned no credit

    def _last_used(self, waiting: Waiting) -> dict[str, DeviceId]:
        """The first free device for this request that each client used last."""
        key = self.view.placement_key(waiting)
        if key is None:
            return self._users(waiting)
        if key not in self._used:
            self._used[key] = self._users(waiting)
        return self._used[key]

    def _users(self, waiting: Waiting) -> dict[str, DeviceId]:
        users: dict[str, DeviceId] = {}
        for device in self.view.sample(waiting):
            if client := self.view.recalled(_LAST + device):
                users.setdefault(client, device)
        return users


def _overdue(view: View, found: list[Candidate]) -> Candidate | None:
    """The first candidate in the order of the queue that waited for too long."""
    limit_s = view.number(_OVERDUE)
    return next((one for one in found if view.waits_s(one.start.waiting) >= limit_s), None)


def _client_of(view: View, request: Request) -> str:
    if view.values["client"] == "tenant":
        return request.tenant
    return f"{request.tenant}/{request.workload or ''}"


def _expected_s(view: View, request: Request) -> float:
    """The device time that a request is expected to take."""
    expected_s = view.expected_s(request)
    return (UNKNOWN_S if expected_s is None else expected_s) * request.count


def _after(view: View, best: Candidate, now_s: float) -> dict[str, Scalar | None]:
    """The changes of the memory with this grant."""
    request = best.start.waiting.request
    used_s = _expected_s(view, request) / view.weight(request.tenant)
    changed: dict[str, Scalar | None] = {_TIME + best.client: best.virtual_s + used_s}
    changed |= {_LAST + device: best.client for device in best.start.devices}
    forgotten: dict[str, Scalar | None] = {}
    if len(view.memory) >= REMEMBERED_MAX:
        forgotten = {name: None for name in view.memory if _is_past(view, name, now_s)}
        if len(view.memory) - len(forgotten) >= REMEMBERED_MAX:
            changed = {name: value for name, value in changed.items() if name in view.memory}
    return {**forgotten, **changed, _NOW: max(now_s, view.recalled_number(_NOW))}


def _is_past(view: View, name: str, now_s: float) -> bool:
    """True for the virtual time of a client that has no lead, and for a device that is gone."""
    if name.startswith(_TIME):
        return view.recalled_number(name) <= now_s
    return name.startswith(_LAST) and not view.is_known(name.removeprefix(_LAST))


POLICY = Affinity()

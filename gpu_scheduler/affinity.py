"""The policy `affinity` of Kernel-as-a-service: the client whose run is next, and its device. Pure.

Clients submit runs, each of which needs one device without interruption. A client has *affinity*
with the devices that still hold its kernels and data; elsewhere a run must load them first. As in
Linux' CFS each client has a virtual time, its device time over its weight, and the least one is
next. Off affinity a client counts as if it had had `PENALTY_RUNS` more runs of the same length, so
it goes there only when it is that far behind. The pairs of free devices and waiting clients are
compared together: a client waits for its own device while another one can use the free device.

* Work-conserving: no device is free while a run waits that accepts it.
* Idle clients earn no credit: one that submits again begins at the system's virtual time at the
  earliest, which advances with every run by its time over the weight of all active clients.
* Bound: clients that always wait differ in virtual time by `PENALTY_RUNS + 1` of their longest runs
  at most. Newcomers begin at the system's virtual time, so no client starves.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from corekit.errors import AppError, ErrorCode, invalid

#: Runs of its own that a client is set back for a device without its contents.
PENALTY_RUNS = 10
#: Runs of all clients, waiting and running.
OUTSTANDING_MAX = 256


def score_s(
    virtual_s: float,
    expected_s: float,
    weight: float,
    *,
    affine: bool,
    penalty_runs: float = PENALTY_RUNS,
) -> float:
    """The virtual time by which a client is compared for a device; the least one is served."""
    return virtual_s if affine else virtual_s + penalty_runs * expected_s / weight


def resumed_s(own_s: float, system_s: float) -> float:
    """The virtual time at which a client that was idle continues: it has earned no credit."""
    return max(own_s, system_s)


@dataclass(frozen=True, slots=True)
class RunStart:
    """The decision that a run begins."""

    client: str
    run: int
    device: str
    warm: bool  #: the device has the client's contents


@dataclass(slots=True)
class _Run:
    number: int
    expected_s: float
    devices: frozenset[str]  #: on which it may run


@dataclass(slots=True)
class _Client:
    name: str
    weight: float
    order: int  #: of joining
    virtual_s: float
    waiting: deque[_Run] = field(default_factory=deque)
    running: int = 0
    left: bool = False  #: forgotten with its last run

    @property
    def active(self) -> bool:
        return bool(self.waiting or self.running)


class Affinity:
    """Clients, their waiting runs and the devices. The same calls give the same decisions."""

    def __init__(self, devices: Iterable[str], clients_max: int | None = None) -> None:
        """`clients_max`: clients whose contents fit a device; the least recently used one is
        evicted. None: the caller reports evictions by `evicted`."""
        self._free = dict.fromkeys(devices)
        self._residents: dict[str, OrderedDict[str, None]] = {d: OrderedDict() for d in self._free}
        self._clients_max = clients_max
        self._clients: dict[str, _Client] = {}
        self._running: dict[int, tuple[_Client, _Run, str]] = {}
        self._outstanding = 0
        self._joined = 0
        self._virtual_s = 0.0  # of the system

    def join(self, client: str, weight: float = 1.0) -> None:
        """Add a client, or change the weight of a known one. Raises INVALID."""
        if not weight > 0:
            raise invalid(f"client {client}: the weight {weight} must be above 0")
        known = self._clients.get(client)
        if known is None or known.left:
            if known is not None:
                raise invalid(f"client {client} has left, and a run of it has not ended")
            self._joined += 1
            self._clients[client] = _Client(client, weight, self._joined, self._virtual_s)
        else:
            known.weight = weight

    def leave(self, client: str) -> None:
        """Remove a client with its waiting runs; those under way end by `done`. Idempotent."""
        gone = self._clients.get(client)
        if gone is None:
            return
        self._outstanding -= len(gone.waiting)
        gone.waiting.clear()
        gone.left = True
        self._forget(gone)

    def submit(
        self, client: str, run: int, expected_s: float, devices: Collection[str] = ()
    ) -> list[RunStart]:
        """Add a run, and return those that begin; `devices`: where it may run, empty = all.

        Raises INVALID for an unknown client or device, EXHAUSTED beyond `OUTSTANDING_MAX` runs.
        """
        entry = self._clients.get(client)
        if entry is None or entry.left:
            raise invalid(f"client {client} has not joined")
        accepted = frozenset(devices or self._residents)
        if unknown := sorted(accepted - self._residents.keys()):
            raise invalid(f"run {run} of {client}: no device {unknown[0]}")
        if not expected_s >= 0:
            raise invalid(f"run {run} of {client}: {expected_s} s is not a time")
        if self._outstanding >= OUTSTANDING_MAX:
            message = f"{self._outstanding} runs are outstanding; the limit is {OUTSTANDING_MAX}"
            raise AppError(ErrorCode.EXHAUSTED, message)
        if not entry.active:
            entry.virtual_s = resumed_s(entry.virtual_s, self._virtual_s)
        entry.waiting.append(_Run(run, expected_s, accepted))
        self._outstanding += 1
        return self._dispatch()

    def done(self, run: int, used_s: float) -> list[RunStart]:
        """End a run that took `used_s` of its device; returns the runs that begin.

        Raises INVALID for a run that is not under way.
        """
        if run not in self._running:
            raise invalid(f"run {run} is not under way")
        entry, ended, device = self._running.pop(run)
        self._free[device] = None
        self._outstanding -= 1
        weight = sum(client.weight for client in self._clients.values() if client.active)
        self._virtual_s += used_s / weight
        entry.running -= 1
        entry.virtual_s += (used_s - ended.expected_s) / entry.weight  # the rest of its start
        self._forget(entry)
        return self._dispatch()

    def evicted(self, device: str, client: str) -> None:
        """Note that a device has lost the contents of a client. Idempotent."""
        self._residents[device].pop(client, None)

    def residents(self, device: str) -> Sequence[str]:
        """The clients whose contents a device has, the least recently used first."""
        return tuple(self._residents[device])

    def virtual_s(self, client: str) -> float:
        """The virtual time of a client."""
        return self._clients[client].virtual_s

    def _forget(self, entry: _Client) -> None:
        if entry.left and not entry.running:
            del self._clients[entry.name]
            for residents in self._residents.values():
                residents.pop(entry.name, None)

    def _dispatch(self) -> list[RunStart]:
        started: list[RunStart] = []
        while (best := self._next()) is not None:
            started.append(self._start(*best))
        return started

    def _next(self) -> tuple[_Client, str] | None:
        """The waiting client and the free device with the least score; None: none fits."""
        pairs = [
            (self._score_s(entry, device), entry.order, number, entry, device)
            for entry in self._clients.values()
            if entry.waiting
            for number, device in enumerate(self._free)
            if device in entry.waiting[0].devices
        ]
        return min(pairs, key=lambda pair: pair[:3])[3:] if pairs else None

    def _score_s(self, entry: _Client, device: str) -> float:
        affine = entry.name in self._residents[device]
        return score_s(entry.virtual_s, entry.waiting[0].expected_s, entry.weight, affine=affine)

    def _start(self, entry: _Client, device: str) -> RunStart:
        run = entry.waiting.popleft()
        entry.running += 1
        entry.virtual_s += run.expected_s / entry.weight
        del self._free[device]
        self._running[run.number] = entry, run, device
        residents = self._residents[device]
        warm = entry.name in residents
        residents[entry.name] = None
        residents.move_to_end(entry.name)
        if self._clients_max is not None and len(residents) > self._clients_max:
            residents.popitem(last=False)
        return RunStart(entry.name, run.number, device, warm)

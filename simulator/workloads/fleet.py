"""Hosts that come and go in a simulated run, by the decisions of the production core.

A host joins `start_s` after its start, as its offer states, and is paid for from its start to its
end. The fleet looks every ten seconds, which is short beside the start of a machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from corekit.errors import invalid
from corekit.ids import DeviceId, HostId
from corekit.values import replace
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.model import COUNT_MAX, Device, HostState
from gpu_scheduler.names import POOL
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import DemandAnswer
from orchgpu.fleet.core.decide import decide
from orchgpu.fleet.core.model import (
    Action,
    Demand,
    Drain,
    Host,
    Memory,
    Offer,
    Offers,
    PolicyName,
    Start,
    Stop,
    View,
    Withdraw,
)
from simulator.workloads.devices import SimHost, hosts_of
from simulator.workloads.model import HostSpec, Run

if TYPE_CHECKING:
    from simulator.workloads.engine import Engine

#: Wall clock of the begin of a run: midnight UTC, so that hours of the day are those of the run.
BEGIN_S = 1_763_164_800.0
LOOK_EVERY_S = 10.0
_HOUR_S = 3600.0


@dataclass(slots=True)
class _Machine:
    """One host of the fleet: its pool, and its time."""

    offer: Offer
    launched_s: float
    ended_s: float | None = None
    joined: bool = False


@dataclass(slots=True)
class SimFleet:
    """The fleet of one run."""

    engine: Engine
    offers: Offers
    machines: dict[str, _Machine] = field(default_factory=dict)  #: with ended ones
    most: int = 0  #: hosts at the same time
    _memory: Memory = field(default_factory=Memory)
    _sizes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        devices = tuple(
            device for offer in self.offers.offers for device in declared_devices(offer)
        )
        self.engine.decide(on.CapacityDeclared, devices=devices)
        self.engine.call_at(0.0, self._look)

    # ------------------------------------------------------------------ decisions

    def _look(self) -> None:
        engine = self.engine
        decision = decide(self._view(), self.offers, self._memory, BEGIN_S + engine.now_s)
        self._memory = decision.memory
        for action in decision.actions:
            self._do(action)
        self.most = max(self.most, len(self._living()))
        if engine.now_s < engine.run_.duration_s or engine.unfinished:
            engine.call_at(engine.now_s + LOOK_EVERY_S, self._look)

    def _view(self) -> View:
        return View(
            demand=self._demand(),
            hosts=tuple(self._host(name, one) for name, one in self._living().items()),
            sizes=dict(self._sizes),
        )

    def _demand(self) -> tuple[Demand, ...]:
        actions = self.engine.ask_op(ops.Demand())
        answer = next(one.answer for one in actions if isinstance(one, do.Reply))
        assert isinstance(answer, DemandAnswer)
        return tuple(
            Demand(
                request=one.request,
                count=one.count,
                oldest_s=one.oldest_s,
                run_s=one.run_s,
                runs_s=one.runs_s,
            )
            for one in answer.groups
        )

    def _living(self) -> dict[str, _Machine]:
        return {name: one for name, one in self.machines.items() if one.ended_s is None}

    def _host(self, name: str, machine: _Machine) -> Host:
        state: HostState | None = None
        leases = 0
        if machine.joined:
            state = self.engine.machine.state.inventory.hosts[HostId(name)].shown_state
            leases = self._leases_on(HostId(name))
        return Host(
            id=name,
            pool=machine.offer.name,
            state=state,
            leases=leases,
            launched_s=BEGIN_S + machine.launched_s,
        )

    def _do(self, action: Action) -> None:
        match action:
            case Start():
                self._grow(action.offer, action.size)
            case Withdraw():
                self._sizes[action.offer] = sum(
                    one.offer.name == action.offer for one in self._living().values()
                )
            case Drain():
                self.engine.ask_op(ops.Drain(host=HostId(action.host)))
            case Stop():
                self._stop(action.host)

    # ------------------------------------------------------------------ hosts

    def _grow(self, pool: str, size: int) -> None:
        offer = next(one for one in self.offers.offers if one.name == pool)
        self._sizes[pool] = max(size, self._sizes.get(pool, 0))
        here = sum(one.offer.name == pool for one in self._living().values())
        for _ in range(self._sizes[pool] - here):
            name = f"{pool}-{len(self.machines)}"
            self.machines[name] = _Machine(offer, self.engine.now_s)
            self.engine.call_at(self.engine.now_s + offer.start_s, _Join(self, name))

    def join(self, name: str) -> None:
        """The host registers, unless it has been ended."""
        machine = self.machines[name]
        if machine.ended_s is None:
            machine.joined = True
            self.engine.add_host(_sim_host(name, machine.offer))

    def _stop(self, name: str) -> None:
        machine = self.machines[name]
        if machine.joined:
            assert not self._leases_on(HostId(name)), f"{name} was stopped with a lease"
            self._remove(HostId(name))
        machine.ended_s = self.engine.now_s
        self._sizes[machine.offer.name] -= 1

    def _leases_on(self, host: HostId) -> int:
        devices = self.engine.hosts[host].devices.values()
        return len({lease for one in devices for lease in one.leases})

    def _remove(self, name: HostId) -> None:
        for device in self.engine.hosts.pop(name).devices:
            del self.engine.devices[device]
        self.engine.decide(on.HostLeft, host=name)
        self.engine.ask_op(ops.Forget(host=name))

    # ------------------------------------------------------------------ figures

    def figures(self) -> dict[str, float]:
        """Cost and hosts up to the end of the run, or to the last job if that is later."""
        hours = [(end_s - launched_s) / _HOUR_S for launched_s, end_s in self.host_spans()]
        prices = [one.offer.usd_per_h for one in self.machines.values()]
        return {
            "fleet_usd": sum(h * price for h, price in zip(hours, prices, strict=True)),
            "fleet_host_h": sum(hours),
            "fleet_starts": float(len(self.machines)),
            "fleet_hosts_max": float(self.most),
        }

    def host_spans(self) -> list[tuple[float, float]]:
        """The time of each host, from its start to its end, or to the end of the run."""
        end_s = max(self.engine.now_s, self.engine.run_.duration_s)
        return [
            (one.launched_s, end_s if one.ended_s is None else one.ended_s)
            for one in self.machines.values()
        ]


@dataclass(frozen=True, slots=True)
class _Join:
    """The call by which a host registers."""

    fleet: SimFleet
    name: str

    def __call__(self) -> None:
        self.fleet.join(self.name)


def _sim_host(name: str, offer: Offer) -> SimHost:
    spec = HostSpec(
        name=name,
        devices=offer.devices,
        kind=offer.kind.value,
        model=offer.model,
        memory_mib=offer.memory_mib,
    )
    (host,) = hosts_of((spec,))
    return host


def declared_devices(offer: Offer) -> tuple[Device, ...]:
    """The devices of an offer, as `ssgmd --capacity` declares them."""
    hosts = min(offer.max, math.ceil(COUNT_MAX / offer.devices))
    return tuple(
        Device(
            id=DeviceId(f"{POOL}{offer.name}/{host}/{index}"),
            index=index,
            kind=offer.kind,
            model=offer.model,
            memory_mib=offer.memory_mib,
        )
        for host in range(hosts)
        for index in range(offer.devices)
    )


def with_policy(run: Run, policy: PolicyName) -> Run:
    """The run with another policy of its fleet. Raises INVALID for a run without a fleet."""
    if run.fleet is None:
        raise invalid("the run has no fleet, so it has no policy of one")
    rules = replace(run.fleet.rules, policy=policy)
    return replace(run, fleet=replace(run.fleet, rules=rules))

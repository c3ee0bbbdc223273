"""Schedulers, hosts and requesters whose steps are drawn from a seed; and what must always hold.

- A device is never in two leases on its host, and an ended lease never returns to it.
- An answered grant is in the log, and no two have one fence.
- A lease that its requester has accepted and not released is live in the end.
- When faults end, one scheduler leads and grants again.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field, replace

from corekit.budget import Budget
from corekit.ids import AttemptId, DeviceId, HostId, LeaseId, SessionId
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.model import Device, DeviceKind, LeaseLifetime, Request, Sharing
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol.codec import VERSION
from simulator.failover.memory_log import MemoryLog
from simulator.failover.node import Node
from simulator.faults.checkers import Violation

#: Nothing ends by silence of hosts or sessions: the steps starve them as they like.
BUDGET = replace(
    Budget(), client_gone_s=1e6, host_stale_s=1e6, host_lost_s=1e7, reserved_ttl_s=1e6, accept_s=1e6
)
DEVICES = 3
STEPS = 400
LENGTH_S = 80_000.0
SNAPSHOT_AFTER = (1, 5, 20, 2**30)  #: items; drawn once


@dataclass
class HostModel:
    """A host as `HostLink` behaves: it refuses older epochs, and applies pushes in their order."""

    id: HostId
    epoch: int = 0
    run: str = ""
    link: tuple[str, int] = ("", 0)  #: node and its run, while connected
    welcomed: bool = False
    inbox: deque[object] = field(default_factory=deque)
    held: dict[LeaseId, tuple[str, ...]] = field(default_factory=dict)
    gone: dict[LeaseId, None] = field(default_factory=dict)  #: leases that ended here

    def devices(self) -> tuple[Device, ...]:
        return tuple(
            Device(
                id=DeviceId(f"{self.id}/{number}"),
                index=number,
                kind=DeviceKind.CPU,
                model="sim",
                memory_mib=1024,
            )
            for number in range(DEVICES)
        )

    def hello(self, node: Node) -> host_ops.HostHello:
        self.link, self.welcomed = (node.name, node.connection), False
        self.inbox.clear()
        return host_ops.HostHello(
            host=self.id,
            incarnation="1",
            gateway="sim:1",
            devices=self.devices(),
            epoch_seen=self.epoch,
            installed=tuple(self.held),
            version=VERSION,
            run_seen=self.run,
        )

    def apply(self) -> None:
        """Apply the next message of the connection."""
        message, before = self.inbox.popleft(), [*self.held]
        if isinstance(message, host_ops.HostWelcome):
            known = message.epoch == self.epoch and message.run != self.run
            if message.epoch < self.epoch or known:
                self.link = ("", 0)
                return
            self.epoch, self.run, self.welcomed = message.epoch, message.run, True
            self.held = {one.lease: _devices(one) for one in message.installs}
        elif not self.welcomed:
            return
        elif isinstance(message, host_ops.InstallPush):
            self.held[message.install.lease] = _devices(message.install)
        elif isinstance(message, host_ops.End):
            self.held.pop(message.lease, None)
        self.gone.update(dict.fromkeys(lease for lease in before if lease not in self.held))
        if back := [lease for lease in self.held if lease in self.gone]:
            raise Violation(f"ended leases are installed again on {self.id}: {back}")
        used = [device for devices in self.held.values() for device in devices]
        if len(used) != len(set(used)):
            raise Violation(f"{self.id} has a device in two leases: {self.held}")


def _devices(install: host_ops.Install) -> tuple[str, ...]:
    return tuple(share.device for share in install.shares)


@dataclass
class Verdict:
    """The outcome of one seed."""

    seed: int
    epochs: int
    grants: int
    items: int
    overtaken: int  #: leaders that lost their next item
    compactions: int  #: snapshots that were stored, and followed by a trim
    trimmed: int  #: standbys that began again behind a newer snapshot


@dataclass
class World:
    """All of it; `run` draws the steps."""

    seed: int
    rng: random.Random = field(init=False)
    faults: bool = True
    asked: int = 0
    pending: dict[str, tuple[Node, int, ops.Op[answers.Done] | ops.Op[answers.AttemptAnswer]]] = (
        field(default_factory=dict)
    )
    granted: dict[LeaseId, int] = field(default_factory=dict)  #: answered: lease → fence
    kept: dict[LeaseId, None] = field(default_factory=dict)  #: accepted, and not given back
    ended: dict[LeaseId, None] = field(default_factory=dict)  #: given back
    suspended: dict[str, int] = field(default_factory=dict)  #: node → steps left

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        snapshot_after = self.rng.choice(SNAPSHOT_AFTER)
        self.log = MemoryLog(lambda: self.faults and self.rng.random() < 0.05, snapshot_after)
        self.nodes = [
            Node(name, self.log, BUDGET, self.rng, self._act)
            for name in ("a", "b", "c")[: self.rng.choice((2, 2, 3))]
        ]
        self.hosts = [HostModel(HostId(f"h{number}")) for number in range(2)]
        self.now_s = 0.0

    def run(self) -> Verdict:
        """All steps, then a quiet end. Raises Violation."""
        for _ in range(STEPS):
            self._step()
        self._settle()
        return self._verdict()

    # --- steps

    def _step(self) -> None:
        self.now_s += self.rng.choice((0.0, 0.01, 0.1, 0.5))
        for node in self.nodes:
            node.now_s = self.now_s
        self._fault()
        awake = [node for node in self.nodes if not self._is_suspended(node)]
        for node in self.rng.sample(awake, k=self.rng.randint(0, len(awake))):
            node.step()
        host = self.rng.choice(self.hosts)
        self._host(host)
        if self.rng.random() < 0.5:
            self._request()

    def _is_suspended(self, node: Node) -> bool:
        left = self.suspended.get(node.name, 0)
        self.suspended[node.name] = max(0, left - 1)
        return left > 0

    def _fault(self) -> None:
        if not self.faults or self.rng.random() > 0.06:
            return
        node = self.rng.choice(self.nodes)
        match self.rng.randrange(5):
            case 0:
                node.begin()  # kill -9, and a supervisor
            case 1 | 2:
                self.suspended[node.name] = self.rng.randint(5, self.rng.choice((60, 60, 200)))
            case 3 if not self.suspended.get(node.name):
                node.take_over_early()
                self.suspended[node.name] = self.rng.choice((0, 60, 200))
            case _ if node.leads and not self.suspended.get(node.name):
                node.hand_over()

    def _leaders(self) -> list[Node]:
        """Those that believe to lead, also when it is no longer true."""
        return [one for one in self.nodes if one.leads and not self.suspended.get(one.name)]

    def _host(self, host: HostModel) -> None:
        name, connection = host.link
        node = next((one for one in self.nodes if one.name == name), None)
        alive = node is not None and node.leads and node.connection == connection
        if not alive or self.rng.random() < 0.02:
            leaders = self._leaders()
            if leaders:
                chosen = self.rng.choice(leaders)
                self._ask_as_host(chosen, host)
        elif host.inbox:
            host.apply()

    def _ask_as_host(self, node: Node, host: HostModel) -> None:
        self.asked += 1
        token = f"{host.id}.{self.asked}"
        hello = host.hello(node)
        node.decide(
            on.HostAsked(host=host.id, reply_to=token, op=hello, at_s=self.now_s, wall_s=self.now_s)
        )

    def _request(self) -> None:
        leaders = self._leaders()
        if not leaders:
            return
        node = self.rng.choice(leaders)
        self.asked += 1
        token = f"r.{self.asked}"
        op: ops.Op[answers.Done] | ops.Op[answers.AttemptAnswer]
        live = [*self.kept]
        fresh = [lease for lease in self.granted if lease not in self.kept]
        if live and self.rng.random() < 0.4:
            lease = self.rng.choice(live)
            del self.kept[lease]  # from here on it may end
            self.ended[lease] = None
            op = ops.Release(lease=lease)
        elif fresh and self.rng.random() < 0.7:
            op = ops.Renew(lease=self.rng.choice(fresh[-3:]))
        else:
            op = ops.Reserve(
                attempt=AttemptId(f"t{self.asked}"),
                request=Request(sharing=Sharing.EXCLUSIVE),
                wait=False,
                hold=LeaseLifetime.DEADLINE,
                lease_s=LENGTH_S,
            )
        self.pending[token] = (node, node.connection, op)
        node.decide(
            on.Asked(
                session=SessionId("s"), reply_to=token, op=op, at_s=self.now_s, wall_s=self.now_s
            )
        )

    # --- what leaders do

    def _act(self, node: Node, action: do.Action) -> None:
        match action:
            case do.Reply() | do.ReplyError():
                self._answered(node, action)
            case do.PushToHost():
                self._deliver(node, action.host, action.push)
            case _:
                pass  # timers and pushes to sessions: nothing here depends on them

    def _deliver(self, node: Node, name: HostId, message: object) -> None:
        for host in self.hosts:
            if host.id == name and host.link == (node.name, node.connection):
                host.inbox.append(message)

    def _answered(self, node: Node, action: do.Reply | do.ReplyError) -> None:
        kind = action.reply_to.partition(".")[0]
        if kind != "r":
            if isinstance(action, do.Reply):
                self._deliver(node, HostId(kind), action.answer)
            return
        asked, connection, op = self.pending.pop(action.reply_to)
        if asked is not node or connection != node.connection:
            return  # the connection broke: the answer is lost
        if isinstance(action, do.ReplyError):
            return
        if isinstance(op, ops.Renew) and op.lease in self.granted and op.lease not in self.ended:
            self.kept[op.lease] = None
        elif isinstance(action.answer, answers.AttemptAnswer) and action.answer.granted:
            lease = action.answer.granted.lease
            if lease.fence in self.granted.values():
                raise Violation(f"fence {lease.fence} is granted twice")
            self.granted[lease.id] = lease.fence

    # --- the end

    def _settle(self) -> None:
        """No more faults: one leads, hosts connect, and every accepted lease lives."""
        self.faults = False
        self.suspended.clear()
        for _ in range(400):
            self.now_s += 0.05
            for node in self.nodes:
                node.now_s = self.now_s
                for _ in range(4):
                    node.step()
            for host in self.hosts:
                self._host(host)
        leaders = self._leaders()
        if len(leaders) != 1:
            raise Violation(f"{len(leaders)} schedulers lead in the end")
        (leader,) = leaders
        live = leader.machine.state.leases
        if lost := [lease for lease in self.kept if lease not in live]:
            raise Violation(f"accepted leases are lost: {lost}")
        self._check_history(leader)

    def _check_history(self, leader: Node) -> None:
        """Read the whole log again: it gives the leader's state, and has every answered grant."""
        reader = Node("reader", self.log, BUDGET, self.rng, self._act, now_s=self.now_s)
        reader.step()
        if reader.leads:
            raise Violation("the log is empty")
        if list(reader.machine.state.leases) != list(leader.machine.state.leases):
            raise Violation("the log gives another state than the leader has")
        text = b"".join(self.log.history.values())
        missing = [lease for lease in self.granted if lease.encode() not in text]
        if missing:
            raise Violation(f"answered grants are not in the log: {missing}")

    def _verdict(self) -> Verdict:
        (leader,) = self._leaders()
        return Verdict(
            seed=self.seed,
            epochs=leader.machine.state.epoch,
            grants=len(self.granted),
            items=len(self.log.history),
            overtaken=sum(node.overtaken for node in self.nodes),
            compactions=sum(node.compactions for node in self.nodes),
            trimmed=sum(node.trimmed for node in self.nodes),
        )


def simulate(seed: int) -> Verdict:
    """Run one seed. Raises Violation, naming what does not hold."""
    return World(seed).run()

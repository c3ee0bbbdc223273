"""A test harness of the scheduler's core that checks the invariants after every event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corekit.budget import Budget
from corekit.ids import DeviceId, HostId, IdSource, JobId, SessionId
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.core.inventory.devices import DeviceState, device_class_of
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.core.queue.policy import Policy
from gpu_scheduler.model import (
    Device,
    DeviceKind,
    EndReason,
    Health,
    HostState,
    Lease,
    LeaseLifetime,
    Record,
    Request,
    Usage,
)
from gpu_scheduler.parameters import Parameters
from gpu_scheduler.policy_registry import installed_policies
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol.changes import Entry, decode_entry, encode_entry
from simulator.invariants import check
from tests.scheduler_events import event_of

EPOCH_S = 1_000_000.0  #: the wall clock when the monotonic one is 0


class World:
    """A core with its own time: `advance` delivers due ticks, and beats of live sessions."""

    def __init__(
        self,
        bypass_max: int = 64,
        policies: Mapping[str, Policy] | None = None,
        **parameters: Any,
    ) -> None:
        self.budget = Budget()
        self.configured = Parameters(bypass_max=bypass_max, **parameters)
        self.policies = {**installed_policies(), **(policies or {})}
        self.now_s = 100.0
        self.journal: list[Entry] = []
        self.actions: list[do.Action] = []  #: of the last event
        self.wake_s: float | None = None
        self.alive: dict[str, None] = {}  #: sessions that beat while time advances
        self.hosts: dict[str, tuple[Device, ...]] = {}  #: hosts that report while time advances
        self.runs = 0
        self.start()

    def start(self) -> None:
        """A new process over the same journal."""
        self.runs += 1
        self.machine = self.replayed()
        self.wake_s = None
        self.handle(on.EpochBegan)

    def replayed(self) -> SchedulerMachine:
        machine = SchedulerMachine(self.budget, IdSource(self.runs), self.configured, self.policies)
        for entry in self.journal:
            machine.apply(decode_entry(encode_entry(entry)))
        return machine

    def handle(self, event: type[Any], **fields: Any) -> list[do.Action]:
        happened = event_of(event, at_s=self.now_s, wall_s=EPOCH_S + self.now_s, **fields)
        decision = self.machine.handle(happened)
        self.journal.extend(decision.changes)
        self.actions = list(decision.actions)
        for action in self.actions:
            if isinstance(action, do.WakeAt):
                self.wake_s = action.at_s
        assert check(self.machine.state) == []
        assert len(decision.changes) <= 1
        return self.actions

    def advance(self, seconds: float) -> list[do.Action]:
        """Let time pass; returns all actions but beats' answers."""
        end_s, seen = self.now_s + seconds, []
        beat_s = self.now_s
        while True:
            tick_s = max(self.now_s, min(self.wake_s or end_s, end_s))
            if (self.alive or self.hosts) and beat_s + 1.0 <= tick_s:
                beat_s = self.now_s = beat_s + 1.0
                seen += self.beat()
            elif tick_s < end_s or self.wake_s == end_s:
                self.now_s, self.wake_s = tick_s, None
                seen += self.handle(on.Ticked)
            else:
                self.now_s = end_s
                self.actions = seen
                return seen

    def beat(self) -> list[do.Action]:
        seen: list[do.Action] = []
        for session in self.alive:
            assert self.ask(ops.Beat, session) == answers.Done()
            seen += [a for a in self.actions if not isinstance(a, do.Reply)]
        for host, devices in self.hosts.items():
            said = self.handle(
                host_ops.Report, host=host, reply_to="beat", devices=devices, usage=()
            )
            seen += [a for a in said if not isinstance(a, do.Reply)]
        return seen

    # ------------------------------------------------------------------ words

    def ask(self, event: type[Any], session: str = "s1", **fields: Any) -> Any:
        """The answer to an op of a session: its value, or the error action."""
        self.handle(event, session=SessionId(session), reply_to="q", **fields)
        return self.answer()

    def host(self, name: str, *devices: Device, **fields: Any) -> Any:
        """Say hello; the host then reports while time advances."""
        said = {
            "incarnation": "one",
            "gateway": f"{name}:1",
            "epoch_seen": 0,
            "installed": (),
            **fields,
        }
        self.handle(host_ops.HostHello, host=HostId(name), reply_to="h", devices=devices, **said)
        if isinstance(self.answer(), host_ops.HostWelcome):
            self.hosts[name] = devices
        return self.answer()

    def report(self, name: str, *devices: Device, usage: tuple[Usage, ...] = ()) -> list[do.Action]:
        if name in self.hosts:
            self.hosts[name] = devices
        return self.handle(
            host_ops.Report, host=HostId(name), reply_to="h", devices=devices, usage=usage
        )

    def reserve(self, attempt: str = "a", request: Request | None = None, **fields: Any) -> Any:
        said = {
            "session": "s1",
            "wait": True,
            "hold": LeaseLifetime.SESSION,
            "lease_s": None,
            **fields,
        }
        return self.ask(ops.Reserve, attempt=attempt, request=request or Request(), **said)

    def attempt(
        self,
        holder: str = "job",
        n: int = 1,
        revision: int = 0,
        request: Request | None = None,
        **fields: Any,
    ) -> Any:
        said = {"session": "s1", "wait": True, "handle": "h1", "block": {}, **fields}
        return self.ask(
            ops.Attempt,
            holder=JobId(holder),
            n=n,
            revision=revision,
            request=request or Request(),
            **said,
        )

    def told(self, host: str, lease: Lease, change: str, **fields: Any) -> list[do.Action]:
        """What the gateway of `host` says about a lease's session."""
        return self.handle(
            host_ops.SessionChange,
            host=HostId(host),
            reply_to="h",
            lease=lease.id,
            state=host_ops.SessionState(change),
            nonce="n",
            **fields,
        )

    def release(self, lease: Lease, session: str = "s1") -> Any:
        return self.ask(ops.Release, session, lease=lease.id, reason=EndReason.RELEASED)

    def renew(self, lease: Lease, session: str = "s1") -> Any:
        return self.ask(ops.Renew, session, lease=lease.id)

    def staged(self, lease: Lease, session: str = "s1") -> Any:
        return self.ask(
            ops.StagedOp,
            session,
            holder=lease.holder,
            lease=lease.id,
            connect_by_s=self.budget.connect_by_s,
        )

    # ------------------------------------------------------------------ what came of it

    def answer(self) -> Any:
        """The one answer of the last event: its value, or the error action."""
        answers = [a for a in self.actions if isinstance(a, do.Reply | do.ReplyError)]
        assert len(answers) == 1, answers
        return answers[0].answer if isinstance(answers[0], do.Reply) else answers[0]

    def pushes(self, kind: type[Any], session: str | None = None) -> list[Any]:
        return [
            a.push
            for a in self.actions
            if isinstance(a, do.PushToSession)
            and isinstance(a.push, kind)
            and session in (None, a.session)
        ]

    def granted(self, attempt: str, request: Request, **fields: Any) -> Any:
        """The lease of a request that is granted at once."""
        answer = self.reserve(attempt, request, **fields)
        assert answer.outcome is answers.Outcome.GRANTED, answer
        return answer.granted.lease

    def grants(self) -> list[str]:
        """The attempts that were told of a grant, in order."""
        return [push.attempt for push in self.pushes(answers.GrantedPush)]

    def pushed(self, kind: type[Any]) -> list[Any]:
        """The pushes of this kind to hosts, in order."""
        pushes = [a.push for a in self.actions if isinstance(a, do.PushToHost)]
        return [push for push in pushes if isinstance(push, kind)]

    def hosts_of(self, kind: type[Any]) -> list[HostId]:
        """The hosts that got these pushes."""
        actions = [a for a in self.actions if isinstance(a, do.PushToHost)]
        return [a.host for a in actions if isinstance(a.push, kind)]

    def did(self, kind: type[Any]) -> list[Any]:
        return [a for a in self.actions if isinstance(a, kind)]

    def record(self, holder: str = "job") -> Record:
        return self.machine.state.records[JobId(holder)]

    @property
    def leases(self) -> list[Lease]:
        return [entry.lease for entry in self.machine.state.leases.values()]


def world_with(*devices: Device, **parameters: Any) -> World:
    """A core with these parameters, and a host `h` with these devices."""
    world = World(**parameters)
    world.host("h", *devices)
    return world


def device(
    id_: str, memory_mib: int = 1000, kind: DeviceKind = DeviceKind.CUDA, **fields: Any
) -> Device:
    """A device with index 0 and model M, unless the fields differ."""
    made = {"index": 0, "model": "M", **fields}
    return Device(id=DeviceId(id_), memory_mib=memory_mib, kind=kind, **made)


def idle_state(of: Device) -> DeviceState:
    """The state of this device without leases, on a host that is up."""
    return DeviceState(
        device_class_of(of, gateway=True),
        host_state=HostState.UP,
        health=Health.OK,
        free_mib=of.memory_mib,
        free_permille=1000,
        exclusive=False,
        shared=False,
        reserved_for=None,
    )

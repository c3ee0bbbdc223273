"""Devices and their users around the scheduler's core alone: requests, waits, and run times.

No wire, no cloud, no faults: the effect of a policy on waiting and use. Every grant is accepted at
once, and held for as long as its request stated.
"""

from __future__ import annotations

import dataclasses
import heapq
from dataclasses import dataclass
from typing import Any

from corekit.budget import Budget
from corekit.ids import AttemptId, DeviceId, HostId, IdSource, LeaseId, SessionId
from corekit.values import Value
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.model import Device, DeviceKind, GrantedLease, Lease, LeaseLifetime, Request
from gpu_scheduler.parameters import Parameters
from gpu_scheduler.policy_registry import installed_policies
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import AttemptAnswer, GrantedPush
from gpu_scheduler.protocol.codec import VERSION
from simulator.faults.checkers import Violation
from simulator.faults.tenant_usage import TenantUsage

DEVICE_MIB = 1000
PER_HOST = 8
#: No host and no session falls silent: the queue is tested.
PATIENT = dataclasses.replace(
    Budget(), client_gone_s=1e9, host_stale_s=1e9, host_lost_s=2e9, accept_s=1.0
)


@dataclass(slots=True, kw_only=True)
class Use:
    """One request and its outcome."""

    attempt: str
    request: Request
    runs_s: float  #: its user holds the lease this long
    asked_s: float
    ahead: int = 0  #: requests that waited before it
    granted_s: float | None = None

    @property
    def waited_s(self) -> float:
        assert self.granted_s is not None, f"{self.attempt} was never served"
        return self.granted_s - self.asked_s


class Pool:
    """The production core on a clock that stands still between events."""

    def __init__(self, devices: int, parameters: Parameters) -> None:
        self.machine = SchedulerMachine(PATIENT, IdSource(1), parameters, installed_policies())
        self.now_s = 0.0
        self.uses: dict[str, Use] = {}
        self._wake_s: float | None = None
        self._ends: list[tuple[float, LeaseId]] = []
        self._usage = TenantUsage(parameters)
        self.tell(on.EpochBegan)
        for first in range(0, devices, PER_HOST):
            self._host(f"h{first}", range(first, min(devices, first + PER_HOST)))

    def _host(self, name: str, numbers: range) -> None:
        devices = tuple(
            Device(
                id=DeviceId(f"d{number}"),
                index=number - numbers.start,
                kind=DeviceKind.CUDA,
                model="M",
                memory_mib=DEVICE_MIB,
            )
            for number in numbers
        )
        hello = host_ops.HostHello(
            host=HostId(name),
            incarnation="1",
            gateway=f"{name}:1",
            devices=devices,
            epoch_seen=0,
            installed=(),
            version=VERSION,
        )
        self.tell_as_host(hello.host, hello)

    def ask(self, request: Request, runs_s: float, attempt: str | None = None) -> Use:
        """Send one request; one with a length is for a deadline lease, which the scheduler ends."""
        attempt = attempt or f"a{len(self.uses)}"
        use = self.uses[attempt] = Use(
            attempt=attempt, request=request, runs_s=runs_s, asked_s=self.now_s
        )
        hold = LeaseLifetime.SESSION if request.lease_s is None else LeaseLifetime.DEADLINE
        self.ask_op(ops.Reserve(request=request, wait=True, attempt=AttemptId(attempt), hold=hold))
        queue = self.machine.state.queue
        if attempt in queue.entries:
            use.ahead = (queue.position(queue.entries[attempt]) or 1) - 1
        return use

    def advance(self, until_s: float) -> None:
        """Let leases end and timers fire, in their order."""
        while True:
            end_s = self._ends[0][0] if self._ends else until_s
            next_s = min(end_s, self._wake_s if self._wake_s is not None else until_s)
            if next_s >= until_s:
                break
            self.now_s = max(self.now_s, next_s)
            if self._ends and self._ends[0][0] <= self.now_s:
                self._release(heapq.heappop(self._ends)[1])
            else:
                self._wake_s = None
                self.tell(on.Ticked)
        self.now_s = until_s

    def drain(self) -> None:
        """Let time pass until the queue is empty."""
        while self.machine.state.queue.entries:
            self.advance(self.now_s + 10.0)

    def ask_op(self, op: ops.Op[Value], session: str = "s") -> None:
        """One op of a session."""
        self.tell(on.Asked, session=SessionId(session), reply_to="r", op=op)

    def tell_as_host(self, host: HostId, op: host_ops.HostOp) -> None:
        """One op of a host."""
        self.tell(on.HostAsked, host=host, reply_to="h", op=op)

    def tell(self, event: type[Any], **fields: Any) -> None:
        """Handle one event and accept its grants. Raises Violation for an exceeded quota."""
        decision = self.machine.handle(event(at_s=self.now_s, wall_s=1e6 + self.now_s, **fields))
        broken = [text for entry in decision.changes for text in self._usage.note(entry)]
        if broken:
            raise Violation(broken[0])
        for action in decision.actions:
            match action:
                case do.WakeAt():
                    self._wake_s = action.at_s
                case do.PushToSession(push=GrantedPush(granted=granted)):
                    self.ask_op(ops.Renew(lease=granted.lease.id))
                    self._begins(granted.lease)
                case do.Reply(answer=AttemptAnswer(granted=GrantedLease(lease=lease))):
                    self._begins(lease)

    def _begins(self, lease: Lease) -> None:
        use = self.uses[lease.attempt]
        use.granted_s = self.now_s
        if lease.hold is LeaseLifetime.SESSION:
            opened = host_ops.SessionState.OPENED
            op = host_ops.SessionChange(lease=lease.id, state=opened, nonce="n")
            self.tell_as_host(lease.shares[0].host, op)
        if use.request.lease_s is None or use.runs_s < use.request.lease_s:
            heapq.heappush(self._ends, (self.now_s + use.runs_s, lease.id))

    def _release(self, lease: LeaseId) -> None:
        self.ask_op(ops.Release(lease=lease))

    # ------------------------------------------------------------------ judging

    def bound_s(self, use: Use) -> float:
        """Its longest wait, as every policy states it for equal priorities without quotas."""
        longest_s = max(other.runs_s for other in self.uses.values())
        return (use.ahead + 1) * (self.machine.state.parameters.bypass_max + 2) * longest_s

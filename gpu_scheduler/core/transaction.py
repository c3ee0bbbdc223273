"""A transaction: one event being handled, with its changes and actions so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from corekit.budget import Budget
from corekit.ids import HostId, IdSource, JobId, SessionId
from corekit.values import Value, replace
from gpu_scheduler.core import actions as do
from gpu_scheduler.core.replay.apply import apply_part
from gpu_scheduler.core.state.state import LeaseEntry, State
from gpu_scheduler.core.state.timers import TimerKind
from gpu_scheduler.data_sets import loaded_name
from gpu_scheduler.model import (
    GrantedLease,
    LeaseLifetime,
    LeaseState,
    Record,
    Request,
    Step,
)
from gpu_scheduler.names import away_queue, is_away
from gpu_scheduler.protocol import answers
from gpu_scheduler.protocol import changes as to
from gpu_scheduler.protocol import host as host_ops

#: Pushes after which an owner has something to do; `leases.end` decides about the end of a lease.
_WAKING = (answers.GrantedPush, answers.ImpossiblePush, answers.BusyPush)


@dataclass(slots=True, kw_only=True)
class Transaction:
    """Parts are applied as they are emitted, so later decisions of the transaction see them."""

    state: State
    budget: Budget
    ids: IdSource
    at_s: float
    wall_s: float
    parts: list[to.Part] = field(default_factory=list)
    actions: list[do.Action] = field(default_factory=list)
    capacity_freed: bool = False  #: a waiting request may fit now: serve the queue
    released: list[LeaseEntry] = field(default_factory=list)  #: leases whose shares became free

    # ------------------------------------------------------------------ output

    def emit(self, part: to.Part) -> None:
        apply_part(self.state, part)
        self.parts.append(part)

    def reply(self, reply_to: str, answer: Value) -> None:
        self.actions.append(do.Reply(reply_to=reply_to, answer=answer))

    def push(self, session: str | None, push: answers.Push) -> None:
        """A push to an owner that is away becomes a wake-up, where there is something to do."""
        if is_away(session):
            if isinstance(push, _WAKING) and push.holder is not None:
                self.wake(push.holder, session)
        elif session is not None:
            self.actions.append(do.PushToSession(session=SessionId(session), push=push))

    def wake(self, holder: JobId, owner: str | None) -> None:
        self.actions.append(do.Wake(holder=holder, queue=away_queue(owner)))

    def push_to_host(self, host: HostId, push: host_ops.HostPush) -> None:
        self.actions.append(do.PushToHost(host=host, push=push))

    def push_to_hosts(self, entry: LeaseEntry, push: host_ops.HostPush) -> None:
        """Push to all hosts of a lease."""
        for host in self.hosts_of(entry):
            self.push_to_host(host, push)

    # ------------------------------------------------------------------ records

    def write(self, record: Record, step: Step | None = None, **changed: Any) -> Record:
        """Write a record with the time of a new step; for RECEIVED, keep the first time."""
        times = record.times
        if step is not None and not (step is Step.RECEIVED and step.value in times):
            times = {**times, step.value: self.wall_s}
        new = replace(
            record, step=step or record.step, times=times, updated_s=self.wall_s, **changed
        )
        self.emit(to.record_part(self.state.records.get(new.holder), new))
        self._publish(new.holder, new)
        return new

    def forget(self, holder: JobId) -> None:
        """Remove the record of an ended job."""
        self.emit(to.RecordForgotten(holder=holder))
        self._publish(holder, None)

    def _publish(self, holder: JobId, record: Record | None) -> None:
        for session in self.state.record_watchers:
            self.push(session, answers.RecordPush(holder=holder, record=record))

    def record_of(self, holder: JobId | None) -> Record | None:
        return None if holder is None else self.state.records.get(holder)

    # ------------------------------------------------------------------ leases

    def granted(self, entry: LeaseEntry) -> GrantedLease:
        hosts = self.state.inventory.hosts
        gateways: dict[str, str] = {}
        for share in entry.lease.shares:
            gateway = hosts[share.host].gateway
            if gateway is not None:
                gateways[share.host] = gateway
        return GrantedLease(
            lease=entry.lease, epoch=self.state.epoch, gateways=gateways, secrets={}
        )

    def install(self, entry: LeaseEntry, host: HostId) -> host_ops.Install:
        """The install of a lease on one host, with the time left until its deadlines."""
        lease, left_s = entry.lease, None
        if entry.deadline_s is not None:
            left_s = max(0.0, entry.deadline_s - self.at_s)
        runs = lease.state is LeaseState.ACTIVE
        cap_s = (
            (left_s if runs else entry.lease_s) if lease.hold is LeaseLifetime.DEADLINE else None
        )
        waits = lease.state is LeaseState.RESERVED and entry.connect_by_s is not None
        shares = tuple(share for share in lease.shares if share.host == host)
        used: tuple[str, ...] = ()
        evicted: tuple[str, ...] = ()
        if entry.taken:  # rarely
            takes = [entry.taken[share.device] for share in shares if share.device in entry.taken]
            used = tuple(take.used.id for take in takes if take.used is not None)
            evicted = tuple(resident.id for take in takes for resident in take.evicted)
        return host_ops.Install(
            lease=lease.id,
            fence=lease.fence,
            secret="",
            state=lease.state,
            shares=shares,
            tenant=lease.tenant,
            hold=lease.hold,
            door=lease.door,
            sources=lease.sources,
            middleware=entry.request.middleware,
            workload=_loaded(entry.request),
            batch=entry.request.batch,
            residents=used,
            evict=evicted,
            cap_s=cap_s,
            connect_by_s=left_s if waits and not entry.ahead else None,
            ahead=entry.ahead,
            data_sets=entry.request.data_sets,
        )

    def push_installs(self, entry: LeaseEntry) -> None:
        """Install a lease on its hosts, or change it there."""
        for host in self.hosts_of(entry):
            self.push_to_host(host, host_ops.InstallPush(install=self.install(entry, host)))

    def hosts_of(self, entry: LeaseEntry) -> list[HostId]:
        """The hosts of a lease in the order of its shares; its session is on the first."""
        shares = entry.lease.shares
        if len(shares) == 1:
            return [shares[0].host]
        return list(dict.fromkeys(share.host for share in shares))

    def owner_of(self, entry: LeaseEntry) -> str | None:
        record = self.record_of(entry.lease.holder)
        return entry.session if record is None else record.owner

    def push_granted(self, entry: LeaseEntry) -> None:
        """Push a granted lease to its owner."""
        holder, attempt = entry.lease.holder, entry.lease.attempt
        push = answers.GrantedPush(holder=holder, attempt=attempt, granted=self.granted(entry))
        self.push(self.owner_of(entry), push)

    def deadline_in_s(self, waiting: to.Waiting) -> float | None:
        """Seconds until the deadline of the request, negative afterwards; None = no deadline."""
        deadline_s = waiting.request.deadline_s
        return None if deadline_s is None else waiting.waiting_since_s + deadline_s - self.wall_s

    def late_s(self, waiting: to.Waiting) -> float | None:
        """Seconds since the deadline of the request passed; None when it has not."""
        left_s = self.deadline_in_s(waiting)
        return None if left_s is None or left_s > 0 else abs(left_s)

    def start_wait_timer(self, waiting: to.Waiting) -> None:
        """Arm the timer of a waiting request: the earlier of `max_wait_s` and its deadline.

        `max_wait_s` counts while the request has a session, and starts again with each session. The
        deadline always counts, by the wall clock, even across restarts and hand-backs.
        """
        patience_s = None if waiting.session is None else waiting.request.max_wait_s
        lefts_s = [s for s in (patience_s, self.deadline_in_s(waiting)) if s is not None]
        if lefts_s:
            in_s = max(0.0, min(lefts_s))
            self.state.timers.arm(TimerKind.WAIT, waiting.attempt, self.at_s + in_s)
        else:
            self.state.timers.cancel(TimerKind.WAIT, waiting.attempt)

    def set_deadline(self, entry: LeaseEntry, in_s: float | None) -> None:
        """Replace the deadline of a lease; None = no deadline."""
        if in_s is None:
            entry.deadline_s = None
            self.state.timers.cancel(TimerKind.LEASE, entry.lease.id)
        else:
            entry.deadline_s = self.at_s + in_s
            self.state.timers.arm(TimerKind.LEASE, entry.lease.id, entry.deadline_s)


def _loaded(request: Request) -> str | None:
    """What workers of a lease have loaded, by one name; None = it is not named."""
    return None if request.workload is None else loaded_name(request.workload, request.data_sets)

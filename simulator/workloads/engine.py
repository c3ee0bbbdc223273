"""The production scheduler core on a clock that stands still between events.

Every grant is accepted at once: the delay of the wire is zero. Its session opens after the start of
its workload; that of a lease granted ahead waits for its shares. At one moment, requests arrive
before loads end, these before leases, leases before sessions start, and these before timers fire.
"""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import random
from collections.abc import Callable, Iterable
from typing import Any

from corekit.budget import Budget
from corekit.errors import AppError
from corekit.ids import AttemptId, DeviceId, HostId, IdSource, LeaseId, SessionId
from corekit.values import Value
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.model import EndReason, GrantedLease, Request, Resident
from gpu_scheduler.parameters import Parameters, given_of
from gpu_scheduler.policy_registry import installed_policies
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import (
    AttemptAnswer,
    BusyPush,
    GrantedPush,
    ImpossiblePush,
    Outcome,
    Push,
)
from gpu_scheduler.protocol.changes import Entry
from gpu_scheduler.protocol.codec import VERSION
from simulator.workloads.arrivals import open_arrivals
from simulator.workloads.batches import Batches, set_end
from simulator.workloads.devices import SimDevice, SimHost, hosts_of
from simulator.workloads.fleet import SimFleet
from simulator.workloads.jobs import Job, Running
from simulator.workloads.loads import Loads, key_of, published_key
from simulator.workloads.model import Arrival, ClosedLoop, Run, Workload, timing_on
from simulator.workloads.workflows import Workflows

#: No host and no session falls silent, and no grant expires: the queue is simulated.
PATIENT = dataclasses.replace(
    Budget(), client_gone_s=1e12, host_stale_s=1e12, host_lost_s=2e12, accept_s=1.0
)
_SESSION = SessionId("s")
_Form = tuple[str, str | None, int | None, int]
#: Kinds of event at one moment, in their order.
_ARRIVES, _LOADED, _ENDS, _IDLE, _STARTS, _CALLS = 0, 1, 2, 3, 4, 5


class Engine:
    """One run of one seed under one policy."""

    def __init__(
        self,
        run: Run,
        seed: int,
        policy: str | None = None,
        *,
        configured: Parameters | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self.run_, self.seed = run, seed
        policies = installed_policies()
        self.machine = SchedulerMachine(PATIENT, IdSource(seed), configured, policies)
        self.now_s = 0.0
        self.jobs: list[Job] = []
        self.decisions = 0
        self.entries: list[Entry] | None = None  #: of the journal, if a caller collects them
        self.hosts: dict[HostId, SimHost] = {}
        self.devices: dict[DeviceId, SimDevice] = {}
        self._by_attempt: dict[str, Job] = {}
        self._running: dict[LeaseId, Running] = {}
        self._batches = Batches()
        self._installs: dict[LeaseId, dict[DeviceId, Resident | None] | None] = {}
        self.loads = Loads()
        #: Equal requests are made once: (workload, tenant, client, source) → both.
        self._requests: dict[_Form, tuple[Workload, Request]] = {}
        self._events: list[tuple[float, int, int, Any]] = []  # the payload depends on the kind
        self._number = 0
        self._wake_s: float | None = None
        self._draws = random.Random(f"{seed}/{run.name}/closed")
        self._progress = progress
        self.decide(on.EpochBegan)
        wanted = {**run.parameters}
        if (policy or run.policy) is not None:
            wanted["policy"] = str(policy or run.policy)
        for name, value in wanted.items():
            self.ask_op(ops.SetParameter(name=name, value=given_of(name, str(value))))
        for host in hosts_of(run.hosts):
            self.add_host(host)
        self.fleet = None if run.fleet is None else SimFleet(self, run.fleet)
        in_force = policies[self.machine.state.parameters.policy]
        self.workflows = Workflows(
            run.workflows, self.ask_op, self._request_step, promises=in_force.promises
        )

    def add_host(self, host: SimHost) -> None:
        """Register a host with its devices."""
        self.hosts[host.name] = host
        self.devices.update(host.devices)
        hello = host_ops.HostHello(
            host=host.name,
            incarnation="1",
            gateway=f"{host.name}:1",
            devices=tuple(sim.device for sim in host.devices.values()),
            epoch_seen=0,
            installed=(),
            version=VERSION,
            advance=self.run_.advances,
            loads_ahead=self.run_.advances,
        )
        for action in self.ask_as_host(host.name, hello):
            if isinstance(action, do.Reply) and isinstance(action.answer, host_ops.HostWelcome):
                host.limits = action.answer.warm

    # ------------------------------------------------------------------ time

    def simulate(self) -> list[Job]:
        """Run to the end: all jobs, served or not."""
        for arrival in open_arrivals(self.run_, self.seed):
            self._at(arrival.at_s, _ARRIVES, arrival)
        for index, source in enumerate(self.run_.load):
            if isinstance(source, ClosedLoop):
                self._start_clients(index, source)
        self.advance(None if self.run_.drain else self.run_.duration_s)
        return self.jobs

    def advance(self, until_s: float | None) -> None:
        """Handle everything before that moment, or everything there is."""
        while self._events or self._wake_s is not None:
            next_s = self._events[0][0] if self._events else None
            if next_s is None or (self._wake_s is not None and self._wake_s < next_s):
                if until_s is None and next_s is None and not self.machine.state.queue.entries:
                    return  # only timers of the scheduler itself are left
                next_s = self._wake_s
            assert next_s is not None
            if until_s is not None and next_s >= until_s:
                break
            self.now_s = max(self.now_s, next_s)
            if self._progress is not None:
                self._progress(self.now_s)
            self._handle_next()
        if until_s is not None:
            self.now_s = max(self.now_s, until_s)

    def call_at(self, at_s: float, call: Callable[[], None]) -> None:
        """Call at a moment, after everything else of it."""
        self._at(at_s, _CALLS, call)

    @property
    def unfinished(self) -> bool:
        """Whether requests wait or leases run."""
        return bool(self._running or self.machine.state.queue.entries)

    def _handle_next(self) -> None:
        if not self._events or self._events[0][0] > self.now_s:
            self._wake_s = None
            self.decide(on.Ticked)
            return
        _, kind, _, what = heapq.heappop(self._events)
        if kind == _ARRIVES and what.workflow is not None:
            self.workflows.submit(what, self.now_s)
        elif kind == _ARRIVES:
            self.submit(what)
        elif kind == _ENDS:
            if what in self._running and self._running[what].ends_s <= self.now_s:
                self._finish(self._running.pop(what))
        elif kind == _LOADED:
            if what.device.loaded(what.lease, self.now_s):
                self._report((what.device.host,))
        elif kind == _STARTS:
            if what in self._running:
                self._started(self._running[what])
        elif kind == _CALLS:
            what()
        elif what in self.devices:  # else its host has ended
            self._evict_idle(what)

    def _at(self, at_s: float, kind: int, what: object) -> None:
        self._number += 1
        heapq.heappush(self._events, (at_s, kind, self._number, what))

    # ------------------------------------------------------------------ requests

    def submit(self, arrival: Arrival) -> Job:
        """Send one request of the load."""
        name = (arrival.workload, arrival.tenant, arrival.client, arrival.source)
        if name not in self._requests:
            workload = self._workload_of(arrival)
            self._requests[name] = workload, workload.request(arrival.tenant)
        workload, request = self._requests[name]
        return self.ask(arrival.request or request, arrival, workload)

    def _request_step(self, attempt: str, arrival: Arrival, workload: Workload) -> None:
        self.ask(workload.request(arrival.tenant), arrival, workload, attempt)

    def ask(
        self, request: Request, arrival: Arrival, workload: Workload, attempt: str | None = None
    ) -> Job:
        """Send a request; its arrival and workload have its times."""
        job = Job(
            attempt=f"a{len(self.jobs)}" if attempt is None else attempt,
            arrival=arrival,
            workload=workload,
            tenant=request.tenant,
            asked_s=self.now_s,
        )
        self.jobs.append(job)
        self._by_attempt[job.attempt] = job
        self.ask_op(ops.Reserve(request=request, wait=True, attempt=AttemptId(job.attempt)))
        return job

    def _workload_of(self, arrival: Arrival) -> Workload:
        workload = self.run_.workloads[arrival.workload]
        source = self.run_.load[arrival.source] if arrival.client is not None else None
        if isinstance(source, ClosedLoop) and source.own_workloads:
            return dataclasses.replace(workload, name=f"{workload.name}-{arrival.client}")
        return workload

    def _start_clients(self, index: int, loop: ClosedLoop) -> None:
        for client in range(loop.clients):
            self._at(loop.start_s, _ARRIVES, self._closed_arrival(index, loop, client))

    def _closed_arrival(self, index: int, loop: ClosedLoop, client: int) -> Arrival:
        return Arrival(
            at_s=self.now_s,
            workload=loop.workload,
            tenant=f"client-{client}" if loop.own_tenants else None,
            execution_normal=self._draws.gauss(0.0, 1.0),
            loading_normal=self._draws.gauss(0.0, 1.0),
            client=client,
            source=index,
        )

    # ------------------------------------------------------------------ decisions

    def ask_op(self, op: ops.Op[Value]) -> list[do.Action]:
        """One op of the session of all requests."""
        return self.decide(on.Asked, session=_SESSION, reply_to="r", op=op)

    def ask_as_host(self, host: HostId, op: host_ops.HostOp) -> list[do.Action]:
        """One op of a host."""
        return self.decide(on.HostAsked, host=host, reply_to="h", op=op)

    def decide(self, event: type[Any], **fields: Any) -> list[do.Action]:
        """Handle one event, then perform its actions."""
        self.decisions += 1
        decision = self.machine.handle(event(at_s=self.now_s, wall_s=1e6 + self.now_s, **fields))
        if self.entries is not None:
            self.entries += decision.changes
        actions = list(decision.actions)
        if self.run_.advances:  # the wake of a decision that follows from these is newer
            actions.sort(key=lambda action: not isinstance(action, do.WakeAt))
        for action in actions:
            self._perform(action)
        return actions

    def _perform(self, action: do.Action) -> None:
        if isinstance(action, do.Reply):
            if isinstance(action.answer, AttemptAnswer):
                self._answered(action.answer)
        elif isinstance(action, do.WakeAt):
            self._wake_s = action.at_s
        elif isinstance(action, do.PushToHost):
            self._pushed_to_host(action)
        elif isinstance(action, do.PushToSession):
            self._pushed(action.push)
        elif isinstance(action, do.ReplyError):
            raise AppError(action.code, action.message, **dict(action.details))

    def _pushed_to_host(self, action: do.PushToHost) -> None:
        push = action.push
        if isinstance(push, host_ops.InstallPush):
            self._install(action.host, push.install)
        elif isinstance(push, host_ops.End):
            self._ended_early(push.lease, push.reason)
        elif isinstance(push, host_ops.WarmLimitsPush):
            self.hosts[action.host].limits = push.limits

    def _pushed(self, push: Push) -> None:
        if isinstance(push, GrantedPush):
            self.ask_op(ops.Renew(lease=push.granted.lease.id))
            self._begin(push.granted)
        elif isinstance(push, BusyPush):
            self._refused(push.attempt, "busy")
        elif isinstance(push, ImpossiblePush):
            self._refused(push.attempt, "impossible")

    def _answered(self, answer: AttemptAnswer) -> None:
        if answer.granted is not None:
            self._begin(answer.granted)
        elif answer.outcome is not Outcome.WAITING:
            self._refused(self.jobs[-1].attempt, answer.outcome.value)

    def _refused(self, attempt: str, outcome: str) -> None:
        job = self._by_attempt[attempt]
        job.outcome, job.ended_s = outcome, self.now_s
        self._next(job)

    # ------------------------------------------------------------------ leases on devices

    def _install(self, name: HostId, install: host_ops.Install) -> None:
        known = self._running.get(install.lease)
        if known is not None:
            self._changed(known, name, install)
        elif install.ahead:
            self._installs[install.lease] = None
            if (load := self.loads.begin(self.hosts[name], install, self.now_s)) is not None:
                self._at(load.ends_s, _LOADED, load)
        elif self._installs.get(install.lease) is None:  # else it is repeated
            self._installs[install.lease] = self._place(name, install)

    def _place(self, name: HostId, install: host_ops.Install) -> dict[DeviceId, Resident | None]:
        host = self.hosts[name]
        host.evict(install)
        key = key_of(install)
        return {
            share.device: self.devices[share.device].install(install.lease, share.memory_mib, key)
            for share in install.shares
        }

    def _changed(self, known: Running, name: HostId, install: host_ops.Install) -> None:
        """A lease ahead gets its shares, or one without a session gives them to another one."""
        if known.opened or install.ahead is (known.warm is None):
            return
        if install.ahead:
            self._take_away(known)
            return
        known.warm, known.held_from_s = self._place(name, install), self.now_s
        if known.knocked_s is not None:
            self._open(known)

    def _take_away(self, known: Running) -> None:
        known.count_held(self.now_s)
        for name, resident in (known.warm or {}).items():
            device = self.devices[name]
            device.end(known.lease)
            if resident is not None:
                device.keep(resident, self.now_s, self.hosts[device.host].limits)
        known.warm, known.held_from_s = None, None

    def _begin(self, granted: GrantedLease) -> None:
        lease = granted.lease
        job = self._by_attempt[lease.attempt]
        running = Running(job, lease.id, lease.shares[0].host, self._installs.pop(lease.id))
        running.held_from_s = None if running.warm is None else self.now_s
        job.granted_s, job.outcome = self.now_s, "running"
        job.devices = tuple(share.device for share in lease.shares)
        self._running[lease.id] = running
        start_s = self._start_s(job)
        if start_s or running.warm is None:
            self._at(self.now_s + start_s, _STARTS, lease.id)
        else:
            self._open(running)

    def _start_s(self, job: Job) -> float:
        """The start of a function; its draw depends on no policy."""
        job.grants += 1
        return job.draw_start_s(f"{self.seed}/{self.run_.name}/{job.attempt}/{job.grants}")

    def _started(self, running: Running) -> None:
        """A function has started: its session opens, or waits for its shares."""
        if running.warm is not None:
            self._open(running)
            return
        running.knocked_s = self.now_s
        knocked = host_ops.SessionState.KNOCKED
        op = host_ops.SessionChange(lease=running.lease, state=knocked, nonce="n")
        self.ask_as_host(running.host, op)

    def _open(self, running: Running) -> None:
        job, warm = running.job, running.warm or {}
        waited_s = None if running.knocked_s is None else self.now_s - running.knocked_s
        job.function_wait_s += waited_s or 0.0
        running.opened, job.opened_s = True, self.now_s
        job.cold = sum(resident is None for resident in warm.values())
        first = self.devices[job.devices[0]].device
        batch = self._batches.join(running, self.now_s)
        job.set_times(first.model, first.kind.value)
        self.loads.opened(job, running.lease, warm, self.now_s)
        opened = host_ops.SessionState.OPENED
        op = host_ops.SessionChange(
            lease=running.lease,
            state=opened,
            nonce="n",
            waited_s=waited_s,
            new_sandbox=job.new_sandbox,
        )
        self.ask_as_host(running.host, op)
        for one in set_end(batch, self.now_s, first.model, first.kind.value):
            self._at(one.ends_s, _ENDS, one.lease)

    def _finish(self, running: Running) -> None:
        """End a lease: its workers stay warm and are reported before the lease is closed."""
        job = running.job
        job.ended_s, job.outcome = self.now_s, "done"
        running.count_held(self.now_s)
        for device in job.devices:
            self._keep(self.devices[device], running)
        self._report(dict.fromkeys(self.devices[device].host for device in job.devices))
        closed = host_ops.SessionState.CLOSED
        op = host_ops.SessionChange(
            lease=running.lease,
            state=closed,
            nonce="n",
            loading_s=job.loading_s,
            loaded_ahead_s=job.loaded_ahead_s or None,
        )
        self.ask_as_host(running.host, op)
        self._next(job)

    def _keep(self, device: SimDevice, running: Running) -> None:
        device.end(running.lease)
        job, limits = running.job, self.hosts[device.host].limits
        if not limits.workers_max:
            return
        used = (running.warm or {}).get(device.id)
        workload = job.workload
        if used is None and running.joined:
            return
        if used is None:
            self._number += 1
            timing = timing_on(workload.loading, device.device.model, device.device.kind.value)
            used = Resident(
                id=f"w{self._number}",
                workload=published_key(job.tenant, workload.name),
                memory_mib=workload.memory_mib if workload.warm_mib is None else workload.warm_mib,
                loading_s=job.loading_s + job.loaded_ahead_s or timing.median_s,
            )
        self.hosts[device.host].kept(device, used)
        device.keep(used, self.now_s, limits)
        if limits.idle_s_max < self.run_.duration_s:
            self._at(self.now_s + limits.idle_s_max, _IDLE, device.id)

    def _evict_idle(self, name: DeviceId) -> None:
        device = self.devices[name]
        device.evict_idle(self.now_s, self.hosts[device.host].limits)
        self._report((device.host,))

    def _report(self, hosts: Iterable[HostId]) -> None:
        for name in hosts:
            changes = self.hosts[name].report()
            if changes:
                self.ask_as_host(name, host_ops.Report(residents=changes))

    def _ended_early(self, lease: LeaseId, reason: EndReason) -> None:
        """The scheduler ended a lease; after its own `closed` a host is pushed this too."""
        self._installs.pop(lease, None)
        self.loads.stop(lease)
        running = self._running.pop(lease, None)
        if running is None:
            return
        job = running.job
        running.count_held(self.now_s)
        for device in running.warm or {}:
            self.devices[device].end(lease)
        if running.knocked_s is not None and not running.opened:
            job.function_wait_s += self.now_s - running.knocked_s
        if reason is EndReason.WITHDRAWN:  # the scheduler has queued its request again
            job.outcome, job.granted_s, job.devices = "waiting", None, ()
            job.withdrawn += 1
            return
        job.ended_s, job.outcome = self.now_s, "ended"
        self._next(job)

    def _next(self, job: Job) -> None:
        """Follow the end of a job: the next request of its client, the next steps of its run."""
        if job.arrival.workflow is not None:
            device = self.devices[job.devices[0]].device if job.devices else None
            model, kind = ("", "") if device is None else (device.model, device.kind.value)
            done = job.outcome == "done"
            self.workflows.step_ended(job.attempt, model, kind, self.now_s, done=done)
        client = job.arrival.client
        if client is None:
            return
        loop = self.run_.load[job.arrival.source]
        assert isinstance(loop, ClosedLoop)
        at_s = self.now_s + loop.think_s
        if at_s < self.run_.duration_s:
            self._at(at_s, _ARRIVES, self._closed_arrival(job.arrival.source, loop, client))

    # ------------------------------------------------------------------ outcome

    def trace(self) -> str:
        """A hash of all jobs and their times: equal runs have equal traces."""
        digest = hashlib.sha256()
        for job in self.jobs:
            times = (job.asked_s, job.opened_s, job.loading_s, job.ended_s)
            line = (job.attempt, job.workload.name, job.outcome, *times, *job.devices)
            digest.update(repr(line).encode() + b"\n")
        return digest.hexdigest()[:16]

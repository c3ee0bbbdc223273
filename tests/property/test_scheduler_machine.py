"""The scheduler core against a simple model, under any order of events, losses and restarts.

The model believes only what leaves the machine: it keeps, per host, the installs a host would have
after the actions so far, and checks after every single action that no device is promised twice.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from corekit.budget import Budget
from corekit.errors import ErrorCode
from corekit.ids import DeviceId, HostId, IdSource
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.core.state.state import DRAINED
from gpu_scheduler.model import (
    EndReason,
    Health,
    HostState,
    LeaseLifetime,
    LeaseState,
    Request,
    Step,
)
from gpu_scheduler.parameters import Parameters
from gpu_scheduler.policy_registry import installed_policies
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol.changes import decode_entry, encode_entry
from simulator.faults.tenant_usage import TenantUsage
from simulator.invariants import check
from tests.scheduler_events import event_of, is_answered

from .inputs import devices_of, requests, resident_changes, settings_, some_health

SESSIONS = ("s1", "s2", "s3")
HOSTS = ("h1", "h2")
JOBS = tuple(f"job{i}" for i in range(5))
CONFIGURED = Parameters(bypass_max=2)
POLICIES = installed_policies()


class SchedulerRules(RuleBasedStateMachine):
    """Events in any order; the journal is kept, restarted from and compacted."""

    machine: SchedulerMachine

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.journal: list[Any] = []
        self.runs = 0
        self.asked = 0
        self.fence = 0
        self.wake_s: float | None = None
        self.books = TenantUsage(CONFIGURED)
        #: what each host would hold: host → lease → shares, as its ordered channel told it
        self.installed: dict[str, dict[str, tuple[Any, ...]]] = {}
        self.restart()

    # ------------------------------------------------------------------ the model

    def happen(self, event: type[Any], **fields: Any) -> Any:
        """One event; returns its answer, if it is one that is answered."""
        self.asked += 1
        token = f"q{self.asked}"
        made = event_of(event, reply_to=token, at_s=self.now_s, wall_s=1e6 + self.now_s, **fields)
        decision = self.machine.handle(made)
        assert len(decision.changes) <= 1
        self.journal += [encode_entry(entry) for entry in decision.changes]
        assert [text for entry in decision.changes for text in self.books.note(entry)] == []
        replies = []
        for action in decision.actions:
            if isinstance(action, do.Reply | do.ReplyError):
                assert action.reply_to == token
                replies.append(action)
            self.perform(action)
        assert len(replies) == is_answered(event)
        if not replies:
            return None
        if isinstance(replies[0], do.ReplyError):
            assert replies[0].code is not ErrorCode.INTERNAL
            return None
        return replies[0].answer

    def perform(self, action: do.Action) -> None:
        match action:
            case do.PushToHost(push=host_ops.InstallPush(install=install)):
                assert install.fence > self.fence, "fences rise with every grant"
                self.fence = max(self.fence, install.fence - 1)
                here = self.installed.setdefault(action.host, {})
                here[install.lease] = install.shares
                self.assert_nothing_promised_twice(action.host)
            case do.PushToHost(push=host_ops.Preempt(lease=lease)):
                entry = self.machine.state.leases[lease]
                assert entry.request.preemptible or entry.preempted_for == DRAINED
            case do.PushToHost(push=host_ops.End(lease=lease)):
                self.installed.get(action.host, {}).pop(lease, None)
            case do.WakeAt():
                self.wake_s = action.at_s
            case _:
                pass

    def assert_nothing_promised_twice(self, host: str) -> None:
        known = self.machine.state.inventory.devices
        promised: dict[str, list[Any]] = {}
        for held in self.installed[host].values():
            for share in held:
                promised.setdefault(share.device, []).append(share)
        for device, shares in promised.items():
            assert sum(s.memory_mib for s in shares) <= known[DeviceId(device)].device.memory_mib
            assert sum(s.compute_guarantee_permille for s in shares) <= 1000
            assert len(shares) == 1 or not any(s.exclusive for s in shares)

    @property
    def records(self) -> Any:
        return self.machine.state.records

    @property
    def leases(self) -> list[Any]:
        return [entry.lease for entry in self.machine.state.leases.values()]

    # ------------------------------------------------------------------ the world

    @rule()
    def restart(self) -> None:
        """A new process replays the journal; time goes on meanwhile."""
        self.runs += 1
        self.now_s += 1.0
        machine = SchedulerMachine(Budget(), IdSource(self.runs), CONFIGURED, POLICIES)
        for line in self.journal:
            machine.apply(decode_entry(line))
        if self.runs > 1:
            assert machine.snapshot() == self.machine.snapshot()
        self.machine, self.wake_s = machine, None
        self.happen(on.EpochBegan)

    @rule()
    def compact(self) -> None:
        """The journal begins anew with a snapshot."""
        self.journal = [encode_entry(entry) for entry in self.machine.snapshot()]
        copy = SchedulerMachine(Budget(), IdSource("copy"))
        for line in self.journal:
            copy.apply(decode_entry(line))
        assert copy.snapshot() == self.machine.snapshot()
        assert check(copy.state) == []

    @rule(seconds=st.sampled_from([0.5, 3.0, 5.0, 11.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        """Nobody says anything; ticks come when they were asked for."""
        end_s = self.now_s + seconds
        while self.wake_s is not None and self.wake_s <= end_s:
            self.now_s, self.wake_s = max(self.now_s, self.wake_s), None
            self.happen(on.Ticked)
        self.now_s = end_s

    @rule(seconds=st.sampled_from([4.0, 400.0]))
    def scheduler_stops(self, seconds: float) -> None:
        self.now_s += seconds
        self.happen(on.Ticked)

    # ------------------------------------------------------------------ hosts

    @rule(
        host=st.sampled_from(HOSTS),
        incarnation=st.sampled_from("ab"),
        keeps=st.booleans(),
        data=st.data(),
    )
    def host_says_hello(self, host: str, incarnation: str, keeps: bool, data: Any) -> None:
        installed = tuple(self.installed.get(host, {})) if keeps else ()
        known = self.machine.state.inventory.hosts.get(HostId(host))
        said = {
            "incarnation": incarnation,
            "gateway": f"{host}:1",
            "devices": devices_of(host),
            "epoch_seen": 0,
            "installed": installed,
            "residents": data.draw(resident_changes(host)),
            "ephemeral": data.draw(st.booleans()),
        }
        if known is not None and known.incarnation != incarnation:
            if known.state is HostState.UP:
                assert self.happen(host_ops.HostHello, host=host, **said) is None
            self.happen(on.HostLeft, host=HostId(host))
        welcome = self.happen(host_ops.HostHello, host=host, **said)
        self.installed[host] = {
            i.lease: () if i.state is LeaseState.ENDING else i.shares for i in welcome.installs
        }
        self.assert_nothing_promised_twice(host)

    @rule(host=st.sampled_from(HOSTS), health=st.tuples(some_health, some_health))
    def host_reports(self, host: str, health: tuple[Health, Health]) -> None:
        self.happen(host_ops.Report, host=host, devices=devices_of(host, health), usage=())

    @rule(host=st.sampled_from(HOSTS), data=st.data())
    def host_publishes_residents(self, host: str, data: Any) -> None:
        self.happen(host_ops.Report, host=host, residents=data.draw(resident_changes(host)))

    @rule(
        host=st.sampled_from(HOSTS),
        session=st.sampled_from(SESSIONS),
        drained=st.booleans(),
        device=st.sampled_from([None, "0"]),
        revoke=st.booleans(),
    )
    def drain(
        self, host: str, session: str, drained: bool, device: str | None, revoke: bool
    ) -> None:
        named = None if device is None else DeviceId(f"{host}/{device}")
        what = {"host": host, "device": named, "session": session}
        if drained:
            self.happen(ops.Drain, revoke=revoke, **what)
        else:
            self.happen(ops.Undrain, **what)

    @rule(host=st.sampled_from(HOSTS), drains=st.booleans(), in_s=st.sampled_from([None, 0.0, 9.0]))
    def host_drains_itself(self, host: str, drains: bool, in_s: float | None) -> None:
        self.happen(host_ops.Draining, host=host, draining=drains, limit_s=in_s)
        if drains and in_s == 0.0:
            self.happen(on.HostLeft, host=HostId(host))

    @rule(request=requests)
    def a_dry_run_says_what_the_devices_say(self, request: Request) -> None:
        before = self.machine.snapshot()
        # of nobody who waits: a sign of life may bring back a grant that was not taken
        answer = self.happen(ops.Explain, session="onlooker", request=request)
        assert self.machine.snapshot() == before
        told = answer.explanation
        assert told.devices_known == len(told.devices) + told.devices_left_out
        assert told.devices_fitting == sum(one.reason is None for one in told.devices)
        state = self.machine.state
        reserved = state.head_reservation.devices or state.preemptions
        if answer.outcome is answers.Outcome.GRANTED and not reserved:
            assert told.devices_fitting >= request.count

    @rule(host=st.sampled_from(HOSTS), session=st.sampled_from(SESSIONS))
    def forget(self, host: str, session: str) -> None:
        if self.happen(ops.Forget, session=session, host=host) is not None:
            self.installed.pop(host, None)

    @precondition(lambda self: self.leases)
    @rule(
        data=st.data(),
        change=st.sampled_from(host_ops.SessionState),
        reason=st.sampled_from([None, EndReason.SESSION_LOST]),
        twice=st.booleans(),
    )
    def session_changes(
        self, data: Any, change: host_ops.SessionState, reason: EndReason | None, twice: bool
    ) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        host = lease.shares[0].host
        if change is host_ops.SessionState.FREED and lease.hold is LeaseLifetime.SESSION:
            for here in self.installed.values():  # its session gives back everywhere
                here.pop(lease.id, None)
        for _ in range(1 + twice):
            self.happen(
                host_ops.SessionChange,
                host=host,
                lease=lease.id,
                state=change,
                nonce="n",
                reason=reason,
            )

    # ------------------------------------------------------------------ jobs

    @rule(
        session=st.sampled_from(SESSIONS),
        holder=st.sampled_from(JOBS),
        request=requests | st.just(Request(count=0)),
        wait=st.booleans(),
        lost=st.booleans(),
        next_=st.booleans(),
    )
    def attempt(
        self, session: str, holder: str, request: Request, wait: bool, lost: bool, next_: bool
    ) -> None:
        record = self.records.get(holder)
        n = 1 if record is None else max(1, record.attempt + next_)  # 0 after a hand-back
        said: dict[str, Any] = {
            "session": session,
            "holder": holder,
            "n": n,
            "handle": "h",
            "block": {},
            "request": request,
            "wait": wait,
            "revision": 0 if record is None else record.revision,
        }
        first = self.happen(ops.Attempt, **said)
        if first is None:
            return
        assert first.record.owner == session
        assert first.record.attempt == n
        opened = first.outcome is answers.Outcome.OPENED
        assert [first.granted, first.explanation].count(None) == 1 + opened
        if lost:  # the answer was lost: the same again answers what stands
            second = self.happen(ops.Attempt, **said)
            stood = (answers.Outcome.GRANTED, answers.Outcome.WAITING)
            if first.outcome in (answers.Outcome.GRANTED, answers.Outcome.OPENED):
                assert second == first
            else:
                assert second.outcome in (first.outcome, *stood)

    @rule(session=st.sampled_from(SESSIONS), holder=st.sampled_from(JOBS))
    def adopt(self, session: str, holder: str) -> None:
        record = self.records.get(holder)
        free = record is not None and record.step is not Step.ENDED and record.owner is None
        revision = record.revision if record else 1
        said = {"holder": holder, "handle": None, "revision": revision}
        answer = self.happen(ops.Adopt, session=session, **said)
        if free:
            assert answer.record.owner == session

    @rule(session=st.sampled_from(SESSIONS), holder=st.sampled_from(JOBS))
    def hand_back(self, session: str, holder: str) -> None:
        record = self.records.get(holder)
        self.happen(
            ops.HandBack,
            session=session,
            holder=holder,
            revision=record.revision if record else 1,
        )

    @rule(session=st.sampled_from(SESSIONS), holder=st.sampled_from(JOBS))
    def fail(self, session: str, holder: str) -> None:
        record = self.records.get(holder)
        self.happen(
            ops.FailAttempt,
            session=session,
            holder=holder,
            reason="KILLED",
            detail="",
            revision=record.revision if record else 1,
            retry_at_s=None,
        )

    @rule(
        session=st.sampled_from(SESSIONS),
        holder=st.sampled_from(JOBS),
        outcome=st.sampled_from(["SUCCEEDED", "FAILED"]),
    )
    def finish(self, session: str, holder: str, outcome: str) -> None:
        answer = self.happen(
            ops.Finish,
            session=session,
            holder=holder,
            outcome=outcome,
            reason="NONE",
            detail="",
        )
        assert answer.record is None or answer.record.step is Step.ENDED
        assert not any(lease.holder == holder for lease in self.leases)

    @rule(session=st.sampled_from(SESSIONS), holder=st.sampled_from(JOBS))
    def reopen(self, session: str, holder: str) -> None:
        record = self.records.get(holder)
        self.happen(
            ops.Reopen,
            session=session,
            holder=holder,
            handle="again",
            revision=record.revision if record else 1,
        )

    # ------------------------------------------------------------------ leases

    @rule(
        session=st.sampled_from(SESSIONS),
        name=st.sampled_from("xyz"),
        request=requests,
        wait=st.booleans(),
        lease_s=st.sampled_from([None, None, 30.0]),
        lost=st.booleans(),
    )
    def reserve(
        self,
        session: str,
        name: str,
        request: Request,
        wait: bool,
        lease_s: float | None,
        lost: bool,
    ) -> None:
        said = {
            "session": session,
            "attempt": name,
            "request": request,
            "wait": wait,
            "hold": LeaseLifetime.SESSION if lease_s is None else LeaseLifetime.DEADLINE,
            "lease_s": lease_s,
        }
        first = self.happen(ops.Reserve, **said)
        if lost and first is not None and first.granted is not None:
            assert self.happen(ops.Reserve, **said) == first

    @rule(session=st.sampled_from(SESSIONS), setting=settings_, lost=st.booleans())
    def operator_sets(self, session: str, setting: tuple[str, Any], lost: bool) -> None:
        name, value = setting
        for _ in range(1 + lost):
            answer = self.happen(ops.SetParameter, session=session, name=name, value=value)
        assert answer is None or answer.parameters == self.machine.state.parameters

    @precondition(lambda self: self.leases)
    @rule(
        session=st.sampled_from(SESSIONS),
        data=st.data(),
        to=st.sampled_from(SESSIONS),
        pct=st.sampled_from([None, 20, 50, 100]),
        lost=st.booleans(),
    )
    def change_lease(self, session: str, data: Any, to: str, pct: int | None, lost: bool) -> None:
        """Another limit or another session; what is promised stays the same."""
        lease = data.draw(st.sampled_from(self.leases))
        before = [(s.memory_mib, s.compute_guarantee_pct) for s in lease.shares]
        for _ in range(1 + lost):
            if pct is None:
                answer = self.happen(ops.Transfer, session=session, lease=lease.id, to=to)
            else:
                answer = self.happen(
                    ops.Resize, session=session, lease=lease.id, compute_limit_pct=pct
                )
        if answer is not None:
            shares = answer.lease.shares
            assert [(s.memory_mib, s.compute_guarantee_pct) for s in shares] == before
            assert pct is None or all(s.compute_limit_pct == pct for s in shares)

    @precondition(lambda self: self.leases)
    @rule(
        session=st.sampled_from(SESSIONS),
        data=st.data(),
        op=st.sampled_from("wsr"),
        lost=st.booleans(),
    )
    def use_lease(self, session: str, data: Any, op: str, lost: bool) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        for _ in range(1 + lost):
            if op == "w":
                self.happen(ops.Renew, session=session, lease=lease.id)
            elif op == "r":
                reason = EndReason.RELEASED
                self.happen(ops.Release, session=session, lease=lease.id, reason=reason)
            else:
                said = {"lease": lease.id, "connect_by_s": 20.0}
                self.happen(ops.StagedOp, session=session, holder=lease.holder or "none", **said)

    @rule(session=st.sampled_from(SESSIONS), holder=st.sampled_from(JOBS), started=st.booleans())
    def progress_without_device(self, session: str, holder: str, started: bool) -> None:
        said = {"n": 1} if started else {"lease": None, "connect_by_s": 20.0}
        self.happen(
            ops.StartedOp if started else ops.StagedOp, session=session, holder=holder, **said
        )

    @rule(session=st.sampled_from(SESSIONS), again=st.booleans())
    def session_lives(self, session: str, again: bool) -> None:
        self.happen(ops.Hello if again else ops.Beat, session=session)

    @rule(session=st.sampled_from(SESSIONS))
    def look(self, session: str) -> None:
        """Reading changes nothing, and every view can be made."""
        self.happen(ops.Beat, session=session)  # a first sign of life may change something
        before = len(self.journal)
        for question in (ops.Inventory, ops.Leases):
            assert self.happen(question, session=session) is not None
        queue = self.happen(ops.Queue, session=session).queue
        assert [q.position for q in queue if q.position] == list(
            range(1, 1 + sum(q.position is not None for q in queue))
        )
        assert self.happen(ops.Orphans, session=session, limit=3) is not None
        assert self.happen(ops.Records, session=session, limit=3, after=None) is not None
        assert len(self.journal) == before

    # ------------------------------------------------------------------ always

    @invariant()
    def holds(self) -> None:
        assert check(self.machine.state) == []


SchedulerRules.TestCase.settings = settings(max_examples=80, stateful_step_count=50)
test_scheduler_machine = SchedulerRules.TestCase


# hypothesis makes `TestCase` by a property of the class, which no type checker takes for a base
@pytest.mark.soak
@pytest.mark.timeout(3600)
class TestForLong(SchedulerRules.TestCase):  # type: ignore[valid-type,misc]
    """The same for an hour at most: rare orders of events."""

    settings = settings(max_examples=3000, stateful_step_count=80)

"""The life cycle of a lease, deadline by deadline."""

from typing import Any

import pytest

from corekit.errors import ErrorCode
from corekit.ids import LeaseId
from corekit.values import replace
from gpu_scheduler.core import actions as do
from gpu_scheduler.model import (
    Door,
    EndReason,
    LeaseLifetime,
    LeaseState,
    Request,
    Sharing,
    Step,
)
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import host as host_ops
from tests.scheduler_world import World, device


def take(world: World, name: str = "a", **fields: Any) -> Any:
    answer = world.reserve(name, **fields)
    assert answer.outcome is answers.Outcome.GRANTED, answer
    return answer.granted.lease


def test_a_grant_is_one_entry_installed_with_its_fence(one: World) -> None:
    lease = take(one, request=Request(memory_mib=100, tenant="t"))
    [install] = one.pushed(host_ops.InstallPush)
    assert one.hosts_of(host_ops.InstallPush) == ["h1"]
    assert install.install.fence == lease.fence == one.machine.state.position
    assert install.install.tenant == "t"
    assert install.install.shares == lease.shares
    assert (lease.state, lease.door) == (LeaseState.RESERVED, Door.GATEWAY)


def test_fences_rise_over_restarts(one: World) -> None:
    fences = [take(one, "a").fence, take(one, "b").fence]
    one.start()
    one.host("h1", *one.hosts["h1"], installed=[x.id for x in one.leases])
    fences.append(take(one, "c").fence)
    assert fences == sorted(set(fences))


def test_reserved_expires_unless_renewed(one: World) -> None:
    one.alive["s1"] = None
    lease = take(one)
    one.advance(one.budget.reserved_ttl_s - 1)
    assert one.renew(lease) == answers.Done()
    one.advance(one.budget.reserved_ttl_s - 1)
    assert one.leases == [lease]
    one.advance(1.0)
    [push] = one.pushes(answers.LeasePush, "s1")
    assert (push.state, push.reason) == (LeaseState.ENDED, EndReason.EXPIRED)
    assert [end.reason for end in one.pushed(host_ops.End)] == [EndReason.EXPIRED]
    assert one.leases == []


def test_renewing_an_ended_lease_is_not_found(one: World) -> None:
    lease = take(one)
    one.release(lease)
    assert one.renew(lease).code is ErrorCode.NOT_FOUND


def test_releasing_an_ended_lease_succeeds(one: World) -> None:
    lease = take(one)
    one.release(lease)
    one.release(lease)
    assert one.answer() == answers.Done()
    assert one.pushed(host_ops.End) == []


def test_the_session_drives_the_states_of_a_lease(one: World, whole: Request) -> None:
    one.ask(ops.Watch, "s1", all=True)
    lease = one.attempt(request=whole).granted.lease
    one.staged(lease)
    states = []
    for change in ("opened", "freed", "closed"):
        one.told("h1", lease, change)
        [push] = one.pushes(answers.LeasePush, "s1")
        states.append((push.state, push.reason))
    assert states == [
        (LeaseState.ACTIVE, None),
        (LeaseState.ENDING, None),
        (LeaseState.ENDED, EndReason.DONE),
    ]
    assert push.device == "h1/0 cuda M"
    assert one.record().step is Step.RUNNING
    assert one.record().reason == "DONE"


def test_freed_shares_serve_the_next_request_at_once(one: World, whole: Request) -> None:
    first = take(one, "a", request=whole)
    one.told("h1", first, "opened")
    assert one.reserve("b", whole, session="s2").outcome is answers.Outcome.WAITING
    one.told("h1", first, "freed")
    [push] = one.pushes(answers.GrantedPush, "s2")
    assert push.attempt == "b"
    assert push.granted.lease.fence > first.fence
    # the old one goes on without its device; the host knows both
    assert [lease.state for lease in one.leases] == [LeaseState.ENDING, LeaseState.RESERVED]
    welcome = one.host("h1", *one.hosts["h1"], installed=[x.id for x in one.leases])
    assert [i.state for i in welcome.installs] == [LeaseState.ENDING, LeaseState.RESERVED]


def test_freed_and_closed_are_idempotent(one: World) -> None:
    lease = take(one)
    one.told("h1", lease, "opened")
    for change in ("opened", "freed", "freed", "closed", "closed", "opened"):
        one.told("h1", lease, change)
        assert one.answer() == answers.Done()
    assert [end.fence for end in one.pushed(host_ops.End)] == [0]  # opened, but long over


@pytest.mark.parametrize("reason", [EndReason.SESSION_LOST, EndReason.CAP, EndReason.REVOKED])
def test_the_end_of_a_session_has_the_reason_of_its_host(one: World, reason: EndReason) -> None:
    lease = one.attempt().granted.lease
    one.staged(lease)
    one.told("h1", lease, "opened")
    one.told("h1", lease, "closed", reason=reason, detail="because")
    [push] = one.pushes(answers.LeasePush, "s1")
    assert (push.reason, push.detail) == (reason, "because")
    assert one.record().reason == reason.value


def test_a_session_of_a_foreign_host_is_refused(one: World) -> None:
    one.host("h2", device("d2"))
    lease = take(one)
    assert lease.shares[0].host == "h1"
    one.told("h2", lease, "opened")
    assert one.answer().code is ErrorCode.INVALID


def test_staged_sets_connect_by_once(one: World) -> None:
    one.alive["s1"] = None
    lease = one.attempt().granted.lease
    assert one.staged(lease).record.step is Step.STAGED
    assert [s.connect_by_s for s in one.pushed(host_ops.Staged)] == [one.budget.connect_by_s]
    one.advance(one.budget.connect_by_s - 1)
    assert one.renew(lease) == answers.Done()
    one.staged(lease)
    assert one.pushed(host_ops.Staged) == []
    one.advance(1)
    [push] = one.pushes(answers.LeasePush, "s1")
    assert push.reason is EndReason.NOT_STARTED
    assert (one.record().step, one.record().reason) == (Step.STAGED, "NOT_STARTED")


def test_a_session_may_open_before_staged(one: World) -> None:
    lease = one.attempt().granted.lease
    one.told("h1", lease, "opened")
    record = one.staged(lease).record
    assert (record.step, record.strikes) == (Step.RUNNING, 0)
    assert "STAGED" in record.times
    one.alive["s1"] = None
    one.advance(one.budget.connect_by_s + 1)
    assert [x.state for x in one.leases] == [LeaseState.ACTIVE]


def test_staged_by_the_wrong_job_is_refused(one: World) -> None:
    lease = one.attempt("job").granted.lease
    one.attempt("other")
    one.ask(ops.StagedOp, holder="other", lease=lease.id, connect_by_s=1.0)
    assert one.answer().code is ErrorCode.CONFLICT
    one.ask(ops.StagedOp, holder="job", lease=LeaseId("none"), connect_by_s=1.0)
    assert one.answer().code is ErrorCode.NOT_FOUND


def test_a_lease_with_a_port_gets_its_address_from_its_host(one: World) -> None:
    lease = take(
        one, hold=LeaseLifetime.DEADLINE, lease_s=90.0, door=Door.PORT, sources=("10.0.0.0/8",)
    )
    install = one.pushed(host_ops.InstallPush)[0].install
    assert (install.door, install.sources) == (Door.PORT, ("10.0.0.0/8",))
    told = {"lease": lease.id, "address": "h1:9001", "reply_to": "h"}
    for _ in range(2):  # a host says it until it is acknowledged
        one.handle(host_ops.DoorOpened, host="h1", **told)
        assert one.answer() == answers.Done()
    one.handle(host_ops.DoorOpened, host="h1", **{**told, "address": "h1:9002"})
    (push,) = (a.push for a in one.did(do.PushToSession))
    assert push.granted.lease.doors == {"h1": "h1:9002"}
    one.start()  # durable
    assert one.leases[0].doors == {"h1": "h1:9002"}
    one.handle(host_ops.DoorOpened, host="elsewhere", **told)
    assert one.answer().code is ErrorCode.INVALID
    one.handle(host_ops.DoorOpened, host="h1", **{**told, "lease": LeaseId("over")})
    assert [a.lease for a in one.pushed(host_ops.End)] == ["over"]


def test_a_repeated_request_may_have_a_shorter_wait(one: World) -> None:
    whole = Request(sharing=Sharing.EXCLUSIVE)
    take(one, request=whole)
    one.reserve("b", replace(whole, max_wait_s=60.0))
    answer = one.reserve("b", replace(whole, max_wait_s=20.0))
    assert answer.outcome is answers.Outcome.WAITING


def test_a_deadline_lease_ends_at_its_length(one: World) -> None:
    lease = take(one, hold=LeaseLifetime.DEADLINE, lease_s=90.0)
    assert (lease.state, lease.door) == (LeaseState.ACTIVE, Door.GATEWAY)
    assert one.pushed(host_ops.InstallPush)[0].install.cap_s == 90.0
    one.told("h1", lease, "closed")  # sessions do not decide about it
    one.advance(89.0)
    assert len(one.leases) == 1
    one.advance(1.0)
    assert one.leases == []
    assert one.pushed(host_ops.End)[0].reason is EndReason.EXPIRED


def test_a_host_may_refuse_a_deadline_lease(one: World) -> None:
    lease = take(one, hold=LeaseLifetime.DEADLINE, lease_s=90.0)
    one.told("h1", lease, "closed", reason=EndReason.SESSION_LOST)
    assert len(one.leases) == 1
    one.told("h1", lease, "closed", reason=EndReason.DEVICE_BAD, detail="no room")
    assert one.leases == []


def test_a_deadline_lease_begins_when_its_grant_is_accepted(one: World, whole: Request) -> None:
    one.alive["s1"] = None
    first = take(one, "a", request=whole)
    one.reserve("b", whole, hold=LeaseLifetime.DEADLINE, lease_s=90.0)
    one.release(first)
    lease = one.pushes(answers.GrantedPush)[0].granted.lease
    assert lease.state is LeaseState.RESERVED
    one.advance(3.0)
    one.renew(lease)
    assert [x.state for x in one.leases] == [LeaseState.ACTIVE]
    one.advance(89.0)
    assert len(one.leases) == 1
    one.advance(1.0)
    assert one.leases == []


@pytest.mark.parametrize("lease_s", [None, 604_801.0])
def test_a_deadline_lease_has_a_length_within_the_limit(one: World, lease_s: float | None) -> None:
    assert one.reserve(hold=LeaseLifetime.DEADLINE, lease_s=lease_s).code is ErrorCode.INVALID


def test_a_job_on_a_deadline_lease_has_a_length_within_the_limit(one: World) -> None:
    for lease_s in (None, one.configured.lease_s_max + 1):
        request = Request(lease_s=lease_s)
        assert one.attempt(request=request, hold=LeaseLifetime.DEADLINE).code is ErrorCode.INVALID
        assert one.machine.state.records == {}


def test_a_gang_over_two_hosts_is_freed_and_ended_everywhere(world: World) -> None:
    world.host("h1", device("a"))
    world.host("h2", device("b"))
    lease = take(world, request=Request(count=2))
    assert set(world.hosts_of(host_ops.InstallPush)) == {"h1", "h2"}
    world.told("h1", lease, "opened")
    world.told("h1", lease, "freed")
    assert world.pushed(host_ops.End) == []  # its session still writes outputs and result
    world.told("h1", lease, "closed")
    assert set(world.hosts_of(host_ops.End)) == {"h1", "h2"}


def test_watchers_see_the_leases_of_others(one: World) -> None:
    one.ask(ops.Watch, "w", all=True)
    lease = take(one)
    assert [p.state for p in one.pushes(answers.LeasePush, "w")] == [LeaseState.RESERVED]
    one.release(lease)
    assert [p.state for p in one.pushes(answers.LeasePush, "w")] == [LeaseState.ENDED]
    one.ask(ops.Watch, "w", all=False)
    take(one, "b")
    assert one.pushes(answers.LeasePush, "w") == []
    one.ask(ops.Watch, "w", all=True)
    one.advance(one.budget.client_gone_s)
    take(one, "c")
    assert one.pushes(answers.LeasePush, "w") == []


def test_a_job_of_foreign_code_has_a_deadline_lease(one: World) -> None:
    refused = one.attempt(hold=LeaseLifetime.DEADLINE)
    assert "lease_s" in refused.message
    lease = one.attempt(request=Request(lease_s=90.0), hold=LeaseLifetime.DEADLINE).granted.lease
    assert (lease.hold, lease.state) == (LeaseLifetime.DEADLINE, LeaseState.ACTIVE)
    assert one.record().step is Step.RESERVED
    one.ask(ops.StagedOp, holder="job", lease=lease.id, connect_by_s=5.0)
    assert one.record().step is Step.STAGED
    one.advance(91.0)
    record = one.record()  # its owner looks for the object, and goes on
    assert (record.step, record.reason) == (Step.STAGED, EndReason.EXPIRED)

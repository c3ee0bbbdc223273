"""Changes of a lease by its holder: the elastic limit, the session, the length."""

from typing import Any

import pytest

from corekit.errors import ErrorCode
from corekit.ids import LeaseId
from corekit.values import replace
from gpu_scheduler.model import EndReason, Lease, LeaseLifetime, LeaseState, Request, Sharing
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import host as host_ops
from tests.scheduler_world import World, device


def resize(world: World, lease: Lease, pct: int, session: str = "s1") -> Any:
    return world.ask(ops.Resize, session, lease=lease.id, compute_limit_pct=pct)


def transfer(world: World, lease: Lease, to: str, session: str = "s1") -> Any:
    return world.ask(ops.Transfer, session, lease=lease.id, to=to)


# ---------------------------------------------------------------------- resize


def test_the_limit_changes_on_every_host_and_survives(world: World) -> None:
    world.host("h1", device("d1"))
    world.host("h2", device("d2"))
    gang = Request(count=2, memory_mib=100, compute_guarantee_pct=20)
    lease = world.reserve("a", gang).granted.lease
    answer = resize(world, lease, 50)
    assert [share.compute_limit_pct for share in answer.lease.shares] == [50, 50]
    pushes = zip(world.hosts_of(host_ops.Resize), world.pushed(host_ops.Resize), strict=True)
    told = [(host, push.lease, push.compute_limit_pct) for host, push in pushes]
    assert told == [("h1", lease.id, 50), ("h2", lease.id, 50)]
    world.start()
    assert [s.compute_limit_pct for x in world.leases for s in x.shares] == [50, 50]
    host = world.machine.state.inventory.devices
    assert [s.compute_limit_pct for d in host.values() for s in d.shares.values()] == [50, 50]


def test_resizing_to_the_present_limit_changes_nothing(one: World) -> None:
    lease = one.reserve("a", Request(memory_mib=100)).granted.lease
    entries = len(one.journal)
    assert isinstance(resize(one, lease, 100), answers.LeaseAnswer)
    assert len(one.journal) == entries
    assert one.pushed(host_ops.Resize) == []


def test_a_limit_lies_above_the_guarantee(one: World) -> None:
    lease = one.reserve("a", Request(memory_mib=1, compute_guarantee_pct=30)).granted.lease
    assert resize(one, lease, 29).code is ErrorCode.INVALID
    assert one.leases[0].shares[0].compute_limit_pct == 100


def test_whole_devices_have_no_limit(one: World) -> None:
    lease = one.reserve("a", Request(sharing=Sharing.EXCLUSIVE)).granted.lease
    assert resize(one, lease, 50).code is ErrorCode.INVALID


def test_an_ended_lease_cannot_be_changed(one: World) -> None:
    lease = one.reserve("a", Request(memory_mib=100)).granted.lease
    one.told("h1", lease, "opened")
    one.told("h1", lease, "freed")
    assert resize(one, lease, 50).code is ErrorCode.NOT_FOUND
    one.release(lease)
    assert transfer(one, lease, "s2").code is ErrorCode.NOT_FOUND


# ---------------------------------------------------------------------- transfer


def test_a_reservation_goes_to_another_session(one: World) -> None:
    lease = one.reserve("a").granted.lease
    assert transfer(one, lease, "s2").lease == lease
    assert [push.lease for push in one.pushes(answers.LeasePush, "s2")] == [lease.id]
    assert isinstance(transfer(one, lease, "s2"), answers.LeaseAnswer)  # its answer was lost: again
    one.start()
    one.reserve("a", session="s2")
    assert one.answer().granted.lease.id == lease.id


def test_a_reservation_of_a_connected_session_is_not_transferred(one: World) -> None:
    lease = one.reserve("a").granted.lease
    assert transfer(one, lease, "thief", session="thief").code is ErrorCode.CONFLICT
    one.alive["thief"] = None
    one.advance(one.budget.client_gone_s + 1)
    assert isinstance(transfer(one, lease, "thief", session="thief"), answers.LeaseAnswer)


def test_the_lease_of_a_job_is_not_transferred(one: World) -> None:
    lease = one.attempt("job").granted.lease
    assert transfer(one, lease, "s2").code is ErrorCode.CONFLICT


def test_an_unknown_lease_cannot_be_changed(one: World) -> None:
    assert one.ask(ops.Transfer, lease=LeaseId("nobody"), to="s2").code is ErrorCode.NOT_FOUND


# ---------------------------------------------------------------------- length


def opened(world: World, **fields: Any) -> Any:
    lease = world.reserve("a", Request(memory_mib=100, lease_s=30.0), **fields).granted.lease
    world.told("h1", lease, "opened")
    return lease


def test_a_session_lease_ends_at_its_length(one: World) -> None:
    lease = opened(one)
    one.alive["s1"] = None
    one.advance(29.9)
    assert [x.state for x in one.leases] == [LeaseState.ACTIVE]
    one.advance(0.2)
    assert one.leases == []
    ends = [(a.lease, a.reason) for a in one.pushed(host_ops.End)]
    assert ends == [(lease.id, EndReason.CAP)]


def test_a_length_goes_on_through_a_restart(one: World) -> None:
    opened(one)
    one.advance(20.0)
    one.start()
    one.host("h1", *one.hosts["h1"], installed=tuple(x.id for x in one.leases))
    one.advance(9.0)
    assert len(one.leases) == 1
    one.advance(2.0)
    assert one.leases == []


def test_a_freed_lease_has_no_length(one: World) -> None:
    lease = opened(one)
    one.told("h1", lease, "freed")
    one.advance(60.0)
    assert [x.state for x in one.leases] == [LeaseState.ENDING]


def test_a_deadline_lease_takes_its_length_from_the_request_too(one: World) -> None:
    one.reserve("a", Request(lease_s=30.0), hold=LeaseLifetime.DEADLINE)
    one.advance(29.0)
    assert len(one.leases) == 1
    one.advance(2.0)
    assert one.leases == []


# ---------------------------------------------------------------------- one attempt, one request


@pytest.mark.parametrize("other", [{"memory_mib": 900}, {"count": 2}, {"tenant": "b"}])
def test_a_granted_attempt_refuses_another_request(one: World, other: dict[str, Any]) -> None:
    asked = Request(memory_mib=100)
    lease = one.reserve("a", asked).granted.lease
    refused = one.reserve("a", replace(asked, **other))
    assert refused.code is ErrorCode.CONFLICT
    assert "attempt a already has another request (1 × device with 100 MiB)" in refused.message
    assert one.reserve("a", asked).granted.lease == lease
    assert len(one.leases) == 1


def test_a_waiting_attempt_refuses_another_request(one: World) -> None:
    one.reserve("filler", Request(memory_mib=600))
    asked = Request(memory_mib=900)
    for _ in range(2):
        assert one.reserve("a", asked, wait=True).outcome is answers.Outcome.WAITING
    assert one.reserve("a", Request(memory_mib=100), wait=True).code is ErrorCode.CONFLICT
    assert one.machine.state.queue.entries["a"].request == asked


def test_a_resized_and_renewed_lease_accepts_its_request_again(one: World) -> None:
    asked = Request(memory_mib=100, lease_s=30.0)
    lease = one.reserve("a", asked, hold=LeaseLifetime.DEADLINE, lease_s=30.0).granted.lease
    one.ask(ops.Resize, lease=lease.id, compute_limit_pct=40)
    one.ask(ops.Renew, lease=lease.id, lease_s=50.0)
    again = one.reserve("a", asked, hold=LeaseLifetime.DEADLINE, lease_s=30.0)
    assert again.granted.lease.id == lease.id
    assert (
        one.reserve("a", asked).code is ErrorCode.CONFLICT
    )  # held by its session, that is another

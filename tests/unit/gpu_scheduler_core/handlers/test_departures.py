"""Drains of hosts by themselves, and ephemeral hosts that are forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.errors import ErrorCode
from corekit.ids import HostId
from gpu_scheduler.core import events as on
from gpu_scheduler.model import (
    DeviceResidents,
    EndReason,
    HostState,
    LeaseLifetime,
    LeaseState,
    Request,
    Resident,
)
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import host as host_ops
from tests.scheduler_world import World, device, world_with

SMALL = Request(memory_mib=100)


@pytest.fixture
def one() -> World:
    world = world_with(device("d"))
    world.alive["s1"] = None
    return world


def drains(world: World, host: str = "h", **fields: Any) -> Any:
    said = {"draining": True, "reason": "SIGTERM", "limit_s": 120.0, **fields}
    world.handle(host_ops.Draining, host=HostId(host), reply_to="h", **said)
    return world.answer()


def leaves(world: World, host: str = "h") -> None:
    """The program ends: its connection closes."""
    world.hosts.pop(host, None)
    world.handle(on.HostLeft, host=HostId(host))


def view(world: World, host: str = "h") -> answers.HostView | None:
    found: answers.InventoryAnswer = world.ask(ops.Inventory)
    return next((one for one in found.hosts if one.host == host), None)


def present(world: World) -> answers.HostView:
    """The host, which is in the inventory."""
    shown = view(world)
    assert shown is not None
    return shown


def ends(world: World) -> list[tuple[EndReason | None, str]]:
    return [(p.reason, p.detail) for p in world.pushes(answers.LeasePush) if p.reason is not None]


# ---------------------------------------------------------------------- drains


def test_a_host_that_drains_gets_no_new_lease_and_keeps_no_warm_worker(one: World) -> None:
    assert drains(one) == answers.Done()
    (limits,) = one.pushed(host_ops.WarmLimitsPush)
    assert limits.limits.workers_max == 0
    assert one.reserve("a", SMALL).outcome is answers.Outcome.WAITING, "feasible, but not now"
    shown = present(one)
    assert shown.state is HostState.DRAINED
    assert shown.draining == answers.DrainView(reason="SIGTERM", left_s=120.0)


def test_leases_continue_until_a_notice_before_the_limit(one: World) -> None:
    lease = one.granted("a", SMALL)
    one.told("h", lease, "opened")
    drains(one, limit_s=120.0)
    assert one.pushed(host_ops.Preempt) == []
    one.advance(109.0)
    assert one.pushed(host_ops.Preempt) == []
    one.advance(2.0)
    (notice,) = one.pushed(host_ops.Preempt)
    assert (notice.lease, notice.grace_s) == (lease.id, 10.0)
    one.advance(10.0)
    assert [push.reason for push in one.pushed(host_ops.End)] == [EndReason.PREEMPTED]
    assert ends(one) == [(EndReason.PREEMPTED, "host h drains: SIGTERM")]


def test_a_lease_that_ends_by_itself_is_done(one: World) -> None:
    lease = one.granted("a", SMALL)
    one.told("h", lease, "opened")
    drains(one)
    one.told("h", lease, "closed", reason=EndReason.DONE)
    assert [reason for reason, _ in ends(one)] == [EndReason.DONE]


def test_a_script_that_ends_because_of_the_notice_may_be_tried_again(one: World) -> None:
    lease = one.granted("a", SMALL)
    one.told("h", lease, "opened")
    drains(one, limit_s=5.0)
    one.advance(0.1)
    assert [push.grace_s for push in one.pushed(host_ops.Preempt)] == [5.0], "no more than is left"
    one.told("h", lease, "closed", reason=EndReason.DONE)
    assert [reason for reason, _ in ends(one)] == [EndReason.PREEMPTED]


def test_a_lease_without_a_session_ends_at_the_notice_and_its_request_goes_elsewhere(
    one: World,
) -> None:
    one.granted("a", SMALL)
    drains(one, limit_s=5.0)
    one.advance(0.1)
    assert ends(one) == [(EndReason.PREEMPTED, "host h drains: SIGTERM")]
    assert one.pushed(host_ops.Preempt) == []


def test_a_deadline_lease_cannot_be_renewed_beyond_the_drain(one: World) -> None:
    lease = one.granted("a", SMALL, hold=LeaseLifetime.DEADLINE, lease_s=50.0)
    drains(one, limit_s=5.0)
    one.advance(0.1)
    assert one.ask(ops.Renew, lease=lease.id, lease_s=100.0).code is ErrorCode.CONFLICT
    assert "host h drains: SIGTERM" in one.answer().message


def test_a_lease_that_is_ending_keeps_its_session(one: World) -> None:
    lease = one.granted("a", SMALL)
    one.told("h", lease, "opened")
    one.told("h", lease, "freed")
    drains(one, limit_s=0.0)
    one.advance(1.0)
    assert [entry.state for entry in one.leases] == [LeaseState.ENDING]


def test_a_drain_without_a_limit_ends_no_lease(one: World) -> None:
    lease = one.granted("a", SMALL)
    one.told("h", lease, "opened")
    drains(one, reason="rebalance recommendation", limit_s=None)
    one.advance(3600.0)
    assert [entry.id for entry in one.leases] == [lease.id]
    drains(one, reason="spot interruption", limit_s=120.0)
    one.advance(121.0)
    assert one.leases == [], "the spot interruption has one"


def test_a_repeated_drain_does_not_begin_its_time_again(one: World) -> None:
    drains(one, limit_s=100.0)
    one.advance(60.0)
    written = len(one.journal)
    drains(one, limit_s=100.0)
    assert len(one.journal) == written
    assert present(one).draining == answers.DrainView(reason="SIGTERM", left_s=40.0)


def test_a_host_takes_leases_again(one: World) -> None:
    drains(one, reason="warm pool")
    one.reserve("a", SMALL)
    assert drains(one, draining=False) == answers.Done()
    assert one.grants() == ["a"]
    (limits,) = one.pushed(host_ops.WarmLimitsPush)
    assert limits.limits.workers_max == 4


def test_an_operator_cannot_end_the_drain_of_a_host(one: World) -> None:
    drains(one)
    assert one.ask(ops.Undrain, host="h", device=None).code is ErrorCode.CONFLICT
    assert "SIGTERM" in one.answer().message


def test_an_operators_drain_is_another_one(one: World) -> None:
    one.ask(ops.Drain, host="h", device=None, revoke=False)
    drains(one)
    drains(one, draining=False)
    shown = present(one)
    assert (shown.state, shown.draining) == (HostState.DRAINED, None)


def test_a_drain_survives_a_restart_of_the_scheduler(one: World) -> None:
    lease = one.granted("a", SMALL)
    one.told("h", lease, "opened")
    drains(one, limit_s=100.0)
    one.now_s += 60.0
    one.start()
    one.host("h", device("d"), installed=(lease.id,))
    shown = present(one)
    assert shown.draining == answers.DrainView(reason="SIGTERM", left_s=40.0)
    one.advance(31.0)
    assert [push.lease for push in one.pushed(host_ops.Preempt)] == [lease.id]


def test_a_program_that_was_started_again_does_not_drain(one: World) -> None:
    drains(one)
    leaves(one)
    one.host("h", device("d"), incarnation="two")
    shown = present(one)
    assert (shown.state, shown.draining) == (HostState.UP, None)
    one.granted("a", SMALL)


def test_an_unknown_host_cannot_drain(one: World) -> None:
    assert drains(one, "other").code is ErrorCode.NOT_FOUND


def test_a_drain_of_an_older_program_in_the_journal_is_ignored(one: World) -> None:
    drains(one)
    drained = [e for e in one.journal if "Draining" in type(e.parts[0]).__name__]
    leaves(one)
    one.host("h", device("d"), incarnation="two")
    one.journal += drained
    assert not one.replayed().state.inventory.hosts[HostId("h")].is_drained


# ---------------------------------------------------------------------- ephemeral hosts


def test_a_drained_host_without_leases_is_gone_at_once(one: World) -> None:
    drains(one)
    leaves(one)
    shown = present(one)
    assert (shown.state, shown.forgotten_in_s) == (HostState.LOST, None)
    one.advance(10_000.0)
    assert view(one) is not None, "it is not ephemeral"


def test_a_host_that_broke_off_with_leases_may_come_back(one: World) -> None:
    lease = one.granted("a", SMALL)
    one.told("h", lease, "opened")
    drains(one)
    leaves(one)
    shown = present(one)
    assert shown.state is HostState.STALE
    assert len(one.leases) == 1


@pytest.fixture
def fleet() -> World:
    world = World(forget_after_s=60.0)
    world.host("h", device("d"), ephemeral=True)
    world.alive["s1"] = None
    return world


def test_an_ephemeral_host_is_forgotten_after_it_was_lost(fleet: World) -> None:
    resident = Resident(id="w", workload="k", memory_mib=10, loading_s=1.0)
    change = (DeviceResidents(device=device("d").id, added=(resident,)),)
    fleet.handle(host_ops.Report, host=HostId("h"), reply_to="h", residents=change)
    fleet.hosts.clear()  # it is silent
    fleet.advance(20.5)
    shown = present(fleet)
    assert shown.state is HostState.LOST
    assert shown.forgotten_in_s == pytest.approx(59.5)
    fleet.advance(60.0)
    assert view(fleet) is None
    state = fleet.machine.state
    assert (state.inventory.hosts_forgotten, bool(state.inventory.residents)) == (1, False)
    assert fleet.reserve("a", SMALL).outcome is answers.Outcome.IMPOSSIBLE


def test_a_request_that_only_it_could_serve_becomes_impossible_then(fleet: World) -> None:
    drains(fleet)
    leaves(fleet)
    assert fleet.reserve("a", SMALL).outcome is answers.Outcome.WAITING, "it may come back"
    fleet.advance(60.0)
    assert [push.attempt for push in fleet.pushes(answers.ImpossiblePush)] == ["a"]


def test_with_declared_capacity_the_request_waits(fleet: World) -> None:
    fleet.handle(on.CapacityDeclared, devices=(device("any"),))
    drains(fleet)
    leaves(fleet)
    fleet.reserve("a", SMALL)
    fleet.advance(61.0)
    assert fleet.pushes(answers.ImpossiblePush) == []
    assert fleet.reserve("b", SMALL).outcome is answers.Outcome.WAITING
    fleet.host("h2", device("d2"), ephemeral=True)
    assert fleet.grants() == ["a", "b"]


def test_a_host_that_comes_back_in_time_stays(fleet: World) -> None:
    leaves(fleet)
    fleet.advance(70.0)
    fleet.host("h", device("d"), ephemeral=True, incarnation="two")
    fleet.advance(120.0)
    shown = present(fleet)
    assert shown.state is HostState.UP


def test_the_time_is_changed_while_it_counts(fleet: World) -> None:
    drains(fleet)
    leaves(fleet)
    fleet.ask(ops.SetParameter, name="forget_after_s", value="none")
    fleet.advance(3600.0)
    assert view(fleet) is not None
    fleet.ask(ops.SetParameter, name="forget_after_s", value=10)
    fleet.advance(0.1)
    assert view(fleet) is None


def test_a_restarted_scheduler_waits_again(fleet: World) -> None:
    drains(fleet)
    leaves(fleet)
    fleet.now_s += 50.0
    fleet.start()
    fleet.advance(79.0)
    assert view(fleet) is not None, "20 s until it is lost, and then 60 s"
    fleet.advance(1.5)
    assert view(fleet) is None


def test_a_forgotten_host_may_register_again(fleet: World) -> None:
    drains(fleet)
    leaves(fleet)
    fleet.advance(61.0)
    fleet.host("h", device("d"), ephemeral=True, incarnation="two")
    fleet.granted("a", SMALL)

"""Hosts that turn silent, return, restart, change, or are drained."""

from typing import Any

import pytest

from corekit.errors import ErrorCode
from corekit.ids import DeviceId, HostId
from gpu_scheduler.core import events as on
from gpu_scheduler.core.handlers import hosts as handlers
from gpu_scheduler.model import (
    EndReason,
    Health,
    HostState,
    LeaseLifetime,
    LeaseState,
    Request,
    Sharing,
    Step,
    Usage,
)
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import host as host_ops
from tests.scheduler_world import World, device


def state(world: World, host: str = "h1") -> Any:
    world.ask(ops.Inventory)
    return next(h.state for h in world.answer().hosts if h.host == host)


def run(world: World, request: Request | None = None) -> Any:
    """A job whose session is open."""
    lease = world.attempt(request=request).granted.lease
    world.staged(lease)
    world.told("h1", lease, "opened")
    return lease


def test_silence_is_stale_then_lost(one: World) -> None:
    one.alive["s1"] = None
    run(one)
    devices = one.hosts.pop("h1")
    one.advance(one.budget.host_stale_s - 0.1)
    assert state(one) is HostState.UP
    one.advance(0.1)
    assert state(one) is HostState.STALE
    assert one.reserve("b").explanation.counts == {"HOST_STALE": 1}
    assert len(one.leases) == 1
    one.advance(one.budget.host_lost_s - one.budget.host_stale_s)
    [push] = one.pushes(answers.LeasePush, "s1")
    assert state(one) is HostState.LOST
    assert (push.reason, push.holder) == (EndReason.HOST_LOST, "job")
    assert one.record().reason == "HOST_LOST"
    # it returns, the same as before, and must cut what is not in the full state
    welcome = one.host("h1", *devices, installed=("x",))
    assert welcome.installs == ()
    assert [p.attempt for p in one.pushes(answers.GrantedPush)] == ["b"]
    assert state(one) is HostState.UP


def test_a_host_without_a_connection_gets_no_new_leases(one: World) -> None:
    """A killed host program is detected by its connection, before its silence."""
    one.alive["s1"] = None
    devices = one.hosts.pop("h1")
    one.handle(on.HostLeft, host="h1")
    assert state(one) is HostState.STALE
    assert one.reserve("b").explanation.counts == {"HOST_STALE": 1}
    one.host("h1", *devices)
    assert [p.attempt for p in one.pushes(answers.GrantedPush)] == ["b"]
    assert state(one) is HostState.UP
    one.hosts.clear()
    one.handle(on.HostLeft, host="h1")
    one.advance(one.budget.host_lost_s)
    assert state(one) is HostState.LOST
    one.handle(on.HostLeft, host="h1")
    one.handle(on.HostLeft, host="nobody")
    assert state(one) is HostState.LOST


def test_a_reporting_host_is_never_stale(one: World) -> None:
    for _ in range(60):
        one.advance(1.0)
        assert state(one) is HostState.UP


def test_any_message_resets_the_silence(one: World) -> None:
    one.hosts.clear()
    lease = one.attempt().granted.lease
    one.advance(one.budget.host_stale_s - 1)
    one.told("h1", lease, "opened")
    one.advance(one.budget.host_stale_s - 1)
    one.handle(host_ops.Cut, host="h1", reply_to="h", lease="any")
    one.advance(one.budget.host_stale_s - 1)
    assert state(one) is HostState.UP


def test_a_late_report_makes_a_host_up_again(one: World) -> None:
    devices = one.hosts.pop("h1")
    one.advance(one.budget.host_lost_s + 5)
    one.report("h1", *devices)
    assert state(one) is HostState.UP
    one.advance(one.budget.host_stale_s)
    assert state(one) is HostState.STALE


def test_a_restarted_host_has_lost_its_sessions(one: World) -> None:
    running = run(one)
    reserved = one.attempt("second").granted.lease
    one.handle(on.HostLeft, host="h1")
    welcome = one.host("h1", *one.hosts["h1"], incarnation="two")
    assert [i.lease for i in welcome.installs] == [reserved.id]  # had no session yet
    assert one.pushes(answers.LeasePush, "s1")[0].lease == running.id
    assert one.record().reason == "HOST_RESTARTED"


def test_a_restarted_monitor_keeps_deadline_leases(world: World) -> None:
    """The holder still uses the device, so it is not allocated again."""
    world.host("h", device("d"), gateway=None)
    asked = Request(sharing=Sharing.EXCLUSIVE, advisory=True)
    world.reserve("a", asked, hold=LeaseLifetime.DEADLINE, lease_s=60.0)
    world.handle(on.HostLeft, host="h")
    welcome = world.host("h", device("d"), gateway=None, incarnation="two")
    assert [install.lease for install in welcome.installs] == [world.leases[0].id]
    assert world.reserve("b", asked).outcome is answers.Outcome.WAITING


def test_a_second_program_of_a_host_that_is_up_is_refused(one: World) -> None:
    """The refusal changes nothing; the second is accepted once the first is gone or silent."""
    lease = run(one)
    devices = one.hosts.pop("h1")
    refused = one.host("h1", *devices, incarnation="two")
    assert (refused.code, "another program is connected" in refused.message) == (
        ErrorCode.CONFLICT,
        True,
    )
    assert [entry.id for entry in one.leases] == [lease.id]
    one.advance(one.budget.host_stale_s - 0.1)
    assert one.host("h1", *devices, incarnation="two").code is ErrorCode.CONFLICT
    one.advance(0.1)
    assert state(one) is HostState.STALE, "a refused hello is no sign of life of the first"
    assert one.host("h1", *devices, incarnation="two").installs == ()
    assert one.leases == []


def test_a_reconnected_host_gets_its_full_state(one: World) -> None:
    running = run(one)
    reserved = one.attempt("second").granted.lease
    welcome = one.host("h1", *one.hosts["h1"], installed=(running.id,))
    assert [(i.lease, i.state) for i in welcome.installs] == [
        (running.id, LeaseState.ACTIVE),
        (reserved.id, LeaseState.RESERVED),
    ]
    assert [i.connect_by_s for i in welcome.installs] == [None, None]
    welcome = one.host("h1", *one.hosts["h1"], installed=(reserved.id,))
    assert one.record().reason == "SESSION_LOST"  # it closed while we did not listen


def test_a_large_full_state_comes_in_pages_without_what_was_granted_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "INSTALLS_PAGE", 50)
    world.host("h1", device("d", memory_mib=101))
    one_mib = Request(memory_mib=1)
    fences = [world.granted(f"a{n}", one_mib).fence for n in range(100)]
    installed = tuple(lease.id for lease in world.leases)
    welcome = world.host("h1", *world.hosts["h1"], installed=installed)
    assert welcome.more
    later = world.granted("later", one_mib).fence
    seen = [install.fence for install in welcome.installs]
    more = True
    while more:
        asked = {"host": HostId("h1"), "reply_to": "p", "after": seen[-1], "until": welcome.until}
        world.handle(host_ops.InstallsAsked, **asked)
        page = world.answer()
        seen += [install.fence for install in page.installs]
        more = page.more
    assert seen == fences
    assert later > welcome.until


def test_the_full_state_has_the_rest_of_connect_by(one: World) -> None:
    one.alive["s1"] = None
    lease = one.attempt().granted.lease
    one.staged(lease)
    one.advance(50.0)
    welcome = one.host("h1", *one.hosts["h1"], installed=(lease.id,))
    assert welcome.installs[0].connect_by_s == one.budget.connect_by_s - 50.0


def test_a_host_that_saw_this_epoch_from_another_run_is_refused(one: World) -> None:
    """Two daemons on copies of one state folder have the same epoch, and different runs."""
    state = one.machine.state
    assert one.host("h1", *one.hosts["h1"], epoch_seen=state.epoch, run_seen=state.run)
    refused = one.host("h1", *one.hosts["h1"], epoch_seen=state.epoch, run_seen="another")
    assert refused.code is ErrorCode.CONFLICT
    assert "copy of the other's state folder" in refused.message


def test_a_host_that_saw_a_later_epoch_is_refused(one: World) -> None:
    refused = one.host("h1", *one.hosts["h1"], epoch_seen=2)
    assert refused.code is ErrorCode.CONFLICT
    assert "epoch 2" in refused.message


def test_one_device_has_one_host(one: World) -> None:
    assert one.host("h2", device("d1")).code is ErrorCode.INVALID
    assert one.host("h2", device("x"), device("x", index=1)).code is ErrorCode.INVALID
    one.report("h1", device("d1"), device("d1"))
    assert one.answer().code is ErrorCode.INVALID


def test_a_report_of_an_unknown_host_is_refused(one: World) -> None:
    one.report("h9", device("d9"))
    assert one.answer().code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize(
    "change",
    [{"health": Health.BAD, "detail": "ECC"}, {"memory_mib": 100}, {"model": "other"}],
)
def test_a_device_that_goes_bad_ends_its_leases(world: World, change: dict[str, Any]) -> None:
    world.host("h1", device("d1"), device("d2", index=1))
    lease = run(world, Request(memory_mib=500))
    good = world.reserve("good", Request(memory_mib=700)).granted.lease
    assert lease.shares[0].device != good.shares[0].device
    world.report("h1", device("d1", **change), device("d2", index=1))
    [push] = world.pushes(answers.LeasePush, "s1")
    assert (push.reason, push.lease) == (EndReason.DEVICE_BAD, lease.id)
    assert [x.id for x in world.leases] == [good.id]


@pytest.mark.parametrize("memory_mib", [1001, 999, 500])
def test_a_size_that_holds_the_allocations_ends_no_lease(world: World, memory_mib: int) -> None:
    world.host("h1", device("d1"))
    lease = run(world, Request(memory_mib=500))
    world.report("h1", device("d1", memory_mib=memory_mib))
    assert world.pushes(answers.LeasePush, "s1") == []
    assert [x.id for x in world.leases] == [lease.id]
    assert world.machine.state.inventory.devices[DeviceId("d1")].device.memory_mib == memory_mib
    rest = world.reserve("rest", Request(memory_mib=memory_mib - 500 or 1))
    assert rest.outcome is (
        answers.Outcome.GRANTED if memory_mib > 500 else answers.Outcome.WAITING
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"memory_mib": 499}, "d1: has 499 MiB of memory now, but 500 MiB are allocated"),
        ({"model": "other"}, "d1: model changed from M to other"),
        ({"health": Health.BAD}, "d1: bad"),
    ],
)
def test_the_end_of_a_lease_by_a_change_has_its_detail(
    world: World, change: dict[str, Any], why: str
) -> None:
    world.host("h1", device("d1"))
    run(world, Request(memory_mib=500))
    world.report("h1", device("d1", **change))
    [push] = world.pushes(answers.LeasePush, "s1")
    assert (push.reason, push.detail) == (EndReason.DEVICE_BAD, why)


def test_a_device_that_disappears_is_known_but_bad(world: World) -> None:
    world.host("h1", device("d1"), device("d2", index=1))
    run(world, Request(memory_mib=1000))
    world.report("h1", device("d2", index=1))
    assert world.record().reason == "DEVICE_BAD"
    answer = world.reserve("two", Request(count=2))
    assert answer.outcome is answers.Outcome.WAITING
    assert answer.explanation.counts == {"BAD": 1}
    world.report("h1", device("d1"), device("d2", index=1))
    world.alive["s1"] = None
    world.advance(world.budget.device_clean_s)
    assert [p.attempt for p in world.pushes(answers.GrantedPush)] == ["two"]


def test_reports_without_news_are_not_journalled(one: World) -> None:
    before = len(one.journal)
    usage = Usage(device=DeviceId("d1"), memory_used_mib=7, utilisation_pct=3)
    one.report("h1", device("d1", resident=("k",)), usage=(usage,))
    one.ask(ops.Beat)
    assert len(one.journal) == before
    assert one.ask(ops.Inventory).hosts[0].devices[0].usage == usage


def test_drained_hosts_get_no_new_leases_and_keep_live_ones(one: World) -> None:
    lease = run(one)
    assert one.ask(ops.Drain, host="h1") == answers.Done()
    assert state(one) is HostState.DRAINED
    assert one.reserve("b").explanation.counts == {"DRAINED": 1}
    one.told("h1", lease, "closed")
    assert one.leases == []
    one.ask(ops.Undrain, host="h1")
    assert [p.attempt for p in one.pushes(answers.GrantedPush)] == ["b"]
    assert one.ask(ops.Drain, host="nowhere").message == "host nowhere is unknown"
    assert one.answer().code is ErrorCode.NOT_FOUND
    assert one.ask(ops.Drain, host="h1", device="zz").message == "host h1 has no device zz"


def test_a_host_lost_ends_gangs_on_the_others_too(world: World) -> None:
    world.host("h1", device("a"))
    world.host("h2", device("b"))
    world.reserve("gang", Request(count=2))
    world.alive["s1"] = None
    world.hosts.pop("h2")
    world.advance(world.budget.host_lost_s)
    ended = [
        (host, push.reason)
        for host, push in zip(world.hosts_of(host_ops.End), world.pushed(host_ops.End), strict=True)
    ]
    assert ended == [("h1", EndReason.HOST_LOST), ("h2", EndReason.HOST_LOST)]


def test_the_acknowledgement_of_a_revocation_changes_nothing(one: World) -> None:
    before = len(one.journal)
    one.handle(host_ops.Cut, host="h1", reply_to="h", lease="any")
    assert one.answer() == answers.Done()
    assert len(one.journal) == before


def test_the_inventory_shows_allocations(one: World) -> None:
    lease = one.reserve("a", Request(memory_mib=300, compute_guarantee_pct=20)).granted.lease
    [host] = one.ask(ops.Inventory).hosts
    [view] = host.devices
    assert (view.memory_free_mib, view.compute_free_pct, view.leases) == (700, 80, (lease.id,))
    assert one.ask(ops.Leases).leases == (lease,)


def test_step_is_untouched_by_silence(one: World) -> None:
    one.alive["s1"] = None
    run(one)
    one.hosts.clear()
    one.advance(one.budget.host_lost_s)
    assert one.record().step is Step.RUNNING


@pytest.mark.parametrize(
    ("wanted", "now", "hello"),
    [
        (Request(memory_mib=800), {"memory_mib": 500}, {}),
        (Request(models=("M",)), {"model": "N"}, {}),
        (Request(min_driver="540"), {"driver": "500"}, {}),
        (Request(middleware="rcuda"), {}, {"middlewares": ("builtin",)}),
        (Request(), {}, {"gateway": None}),
    ],
)
def test_a_waiting_request_is_refused_when_a_host_changes_its_devices(
    world: World,
    whole: Request,
    wanted: Request,
    now: dict[str, Any],
    hello: dict[str, Any],
) -> None:
    world.host("h1", device("d1", driver="550"), middlewares=("rcuda",))
    world.reserve("a", whole)
    assert world.reserve("b", wanted).outcome is answers.Outcome.WAITING
    if hello:
        world.host("h1", device("d1", driver="550"), **hello)
    else:
        world.report("h1", device("d1", **{"driver": "550", **now}))
    assert [push.attempt for push in world.pushes(answers.ImpossiblePush)] == ["b"]
    assert not world.machine.state.queue.entries


def test_a_waiting_request_is_refused_when_a_declared_device_is_smaller(world: World) -> None:
    world.handle(on.CapacityDeclared, devices=(device("d1", 1000),))
    assert world.reserve("a", Request(memory_mib=800)).outcome is answers.Outcome.WAITING
    world.host("h1", device("d1", 500))
    assert [push.attempt for push in world.pushes(answers.ImpossiblePush)] == ["a"]

"""A deadline lease may end later or sooner than it was granted, within the bounds on waiting."""

from typing import Any

import pytest

from corekit.errors import ErrorCode
from gpu_scheduler.model import Lease, LeaseLifetime, Request, Sharing
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import host as host_ops
from tests.scheduler_world import World

WHOLE = Request(sharing=Sharing.EXCLUSIVE)


@pytest.fixture
def lent(one: World) -> tuple[World, Lease]:
    """One device with a lease of one minute."""
    answer = one.reserve("a", WHOLE, hold=LeaseLifetime.DEADLINE, lease_s=60.0)
    return one, answer.granted.lease


def prolong(world: World, lease: Lease, lease_s: float) -> Any:
    return world.ask(ops.Renew, lease=lease.id, lease_s=lease_s)


def test_a_renewal_sets_the_remaining_length_also_on_the_host(lent: tuple[World, Lease]) -> None:
    world, lease = lent
    world.advance(50.0)
    assert prolong(world, lease, 100.0) == answers.Done()
    (told,) = [push.install for push in world.pushed(host_ops.InstallPush)]
    assert (told.lease, told.cap_s) == (lease.id, 100.0)
    world.advance(99.0)
    assert [live.id for live in world.leases] == [lease.id]
    world.advance(2.0)
    assert not world.leases


def test_a_renewal_may_shorten_the_lease(lent: tuple[World, Lease]) -> None:
    world, lease = lent
    assert prolong(world, lease, 5.0) == answers.Done()
    world.advance(6.0)
    assert not world.leases


def test_a_renewed_length_survives_a_restart(lent: tuple[World, Lease]) -> None:
    world, lease = lent
    world.advance(30.0)
    prolong(world, lease, 100.0)
    world.start()
    entry = world.machine.state.leases[lease.id]
    assert entry.deadline_s == pytest.approx(world.now_s + 100.0)


def test_the_whole_length_is_bounded(lent: tuple[World, Lease]) -> None:
    world, lease = lent
    world.ask(ops.SetParameter, name="lease_s_max", value=100.0)
    world.advance(30.0)
    assert prolong(world, lease, 71.0).code is ErrorCode.INVALID
    assert prolong(world, lease, 70.0) == answers.Done()


def test_a_lease_on_a_device_reserved_for_the_head_is_not_extended(
    lent: tuple[World, Lease],
) -> None:
    world, lease = lent
    world.ask(ops.SetParameter, name="bypass_max", value=0)
    assert world.reserve("head", WHOLE, session="s2").outcome is answers.Outcome.WAITING
    assert prolong(world, lease, 100.0).code is ErrorCode.CONFLICT
    assert prolong(world, lease, 5.0) == answers.Done(), "but it may end sooner"
    world.advance(6.0)
    assert [live.attempt for live in world.leases] == ["head"]


def test_a_session_lease_has_no_length_to_change(one: World) -> None:
    lease = one.reserve("a").granted.lease
    assert prolong(one, lease, 100.0).code is ErrorCode.INVALID

"""Compute in tenths of a percent: sums of shares are exact, and whole numbers stay integers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.decode import decode_json, encode_json
from corekit.units import WHOLE_PERMILLE, percent_of
from gpu_scheduler.core.inventory.devices import share_of
from gpu_scheduler.model import Request
from gpu_scheduler.parameters import Parameters, Quota, changed
from gpu_scheduler.protocol import answers, ops
from tests.scheduler_world import World, device, world_with


def part(percent: float | int, **fields: Any) -> Request:
    return Request(memory_mib=1, compute_guarantee_pct=percent, **fields)


@pytest.mark.parametrize(("percent", "count"), [(12.5, 8), (6.6, 15), (33.3, 3), (14.2, 7)])
def test_as_many_shares_as_fit_are_granted_and_one_more_waits(percent: float, count: int) -> None:
    world = world_with(device("d", 4096))
    leases = [world.granted(str(number), part(percent)) for number in range(count)]
    rest_pct = percent_of(WHOLE_PERMILLE - count * round(10 * percent))
    assert free_pct(world) == rest_pct
    assert world.reserve("next", part(percent)).outcome is answers.Outcome.WAITING
    for lease in leases[:-1]:
        world.release(lease)
    world.release(leases[-1])
    assert free_pct(world) == percent_of(WHOLE_PERMILLE - round(10 * percent))


def free_pct(world: World) -> Any:
    return world.ask(ops.Inventory).hosts[0].devices[0].compute_free_pct


@given(st.permutations(range(10)), st.lists(st.integers(1, 100), min_size=10, max_size=10))
def test_grants_and_releases_in_any_order_leave_the_whole_device(
    order: list[int], permilles: list[int]
) -> None:
    """With floats of tenths the sum would differ from 0 after most of these."""
    allocated = 0
    for permille in permilles:
        allocated += part(percent_of(permille)).compute_guarantee_permille
    for at in order:
        allocated -= part(percent_of(permilles[at])).compute_guarantee_permille
    assert allocated == 0


def test_a_share_has_an_integer_for_a_whole_percentage() -> None:
    """Hosts of earlier versions decode integers only."""
    share = share_of(part(50.0, compute_limit_pct=100.0), device("d"), "h")
    assert b'"compute_guarantee_pct":50,"compute_limit_pct":100,' in encode_json(share)
    half = share_of(part(12.5), device("d"), "h")
    assert b'"compute_guarantee_pct":12.5,' in encode_json(half)
    assert decode_json(type(half), encode_json(half)) == half


def test_a_whole_percentage_may_be_written_with_a_decimal() -> None:
    world = world_with(device("d"))
    lease = world.granted("a", part(50))
    assert world.reserve("a", part(50.0)).granted.lease == lease


def test_a_limit_is_changed_by_tenths() -> None:
    world = world_with(device("d"))
    lease = world.granted("a", part(12.5))
    world.ask(ops.Resize, lease=lease.id, compute_limit_pct=37.5)
    assert world.answer().lease.shares[0].compute_limit_pct == 37.5
    world.ask(ops.Resize, lease=lease.id, compute_limit_pct=12.4)
    assert "12.4 % is not a valid limit: a shared lease has 12.5…100" in world.answer().message


def test_a_quota_counts_tenths_exactly() -> None:
    world = world_with(device("d"), quotas={"t": Quota(compute_pct=0.3)})
    for number in range(3):  # 0.1 + 0.1 + 0.1 > 0.3 in floats
        world.granted(str(number), part(0.1, tenant="t"))
    assert world.reserve("next", part(0.1, tenant="t")).outcome is answers.Outcome.WAITING
    world.ask(ops.Explain, request=part(0.1, tenant="t"))
    assert "holds 3 devices, 3 MiB, 0.3 %" in world.answer().explanation.sentence


def test_a_quota_of_compute_has_at_most_one_decimal() -> None:
    assert changed(Parameters(), "quota.t.compute_pct", "12.5").quota("t").compute_pct == 12.5
    assert changed(Parameters(), "quota.t.compute_pct", 150.0).quota("t") == Quota(compute_pct=150)
    with pytest.raises(Exception, match="has more than one decimal"):
        changed(Parameters(), "quota.t.compute_pct", "12.25")
    with pytest.raises(Exception, match="must have at most one decimal"):
        Quota(compute_pct=0.25)

"""Quotas, fair share, backfill, deadlines, limits: the order of service, event by event."""

from typing import Any

import pytest

from corekit.ids import DeviceId, JobId
from gpu_scheduler.model import DeviceKind, Lease, LeaseLifetime, Request, Sharing, Step
from gpu_scheduler.parameters import Quota
from gpu_scheduler.policy_registry import installed_policies
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.verdicts import NoFit
from tests.scheduler_world import World, device, world_with


def part(tenant: str = "t", memory_mib: int = 100, **fields: Any) -> Request:
    return Request(tenant=tenant, memory_mib=memory_mib, **fields)


def whole(**fields: Any) -> Request:
    return Request(sharing=Sharing.EXCLUSIVE, **fields)


# ---------------------------------------------------------------------- quotas


@pytest.mark.parametrize(
    "quota", [Quota(devices=2), Quota(memory_mib=200), Quota(compute_pct=20)], ids=str
)
def test_a_tenant_at_its_quota_does_not_block_others(quota: Quota) -> None:
    world = world_with(device("d"), quotas={"a": quota})
    need = {"memory_mib": 100, "compute_guarantee_pct": 10}
    first = world.granted("a1", part("a", **need))
    world.granted("a2", part("a", **need))
    answer = world.reserve("a3", part("a", **need))
    assert answer.outcome is answers.Outcome.WAITING
    assert "tenant a has used up its quota of" in answer.explanation.sentence
    world.granted("b1", part("b", **need))
    assert (
        world.machine.state.head_reservation.overtaken == 0
    )  # whom a rule holds back, nobody passes
    world.release(first)
    assert world.grants() == ["a3"]


def test_a_request_above_the_whole_quota_is_impossible_at_once() -> None:
    world = world_with(device("d"), quotas={"*": Quota(memory_mib=500)})
    answer = world.reserve("a", part(memory_mib=600))
    assert answer.outcome is answers.Outcome.IMPOSSIBLE
    assert "exceeds the whole quota of tenant t: 500 MiB" in answer.explanation.sentence


def test_a_smaller_quota_refuses_requests_above_it(one: World) -> None:
    one.granted("filler", part(memory_mib=900))
    one.reserve("a", part(memory_mib=600))
    one.reserve("b", part(memory_mib=300))
    one.ask(ops.SetParameter, name="quota.t.memory_mib", value=500)
    assert [push.attempt for push in one.pushes(answers.ImpossiblePush)] == ["a"]
    one.ask(ops.SetParameter, name="quota.t.memory_mib", value="default")
    assert list(one.machine.state.queue.entries) == ["b"]


def test_a_larger_quota_serves_at_once() -> None:
    world = world_with(device("d"), quotas={"t": Quota(devices=1)})
    world.granted("a", part())
    world.reserve("b", part())
    world.ask(ops.SetParameter, name="quota.t.devices", value=2)
    assert world.grants() == ["b"]


def test_an_exclusive_device_counts_as_all_of_it() -> None:
    world = world_with(device("d0"), device("d1", index=1), quotas={"t": Quota(memory_mib=1500)})
    lease = world.granted("a", whole(tenant="t", memory_mib=10))
    assert world.reserve("b", whole(tenant="t", memory_mib=10)).outcome is answers.Outcome.WAITING
    world.release(lease)
    assert world.grants() == ["b"]


def test_an_exclusive_device_is_within_the_quota() -> None:
    """The preferred device is too large for the quota: the next one that fits is used."""
    world = World(quotas={"t": Quota(memory_mib=1200)})
    world.host("h", device("large", memory_mib=2000, kind=DeviceKind.CPU), device("d", index=1))
    asked = whole(tenant="t", kinds=(DeviceKind.CPU, DeviceKind.CUDA))
    lease = world.granted("a", asked)
    assert [share.device for share in lease.shares] == ["d"]


def test_a_smaller_device_serves_when_the_free_one_is_too_large() -> None:
    world = world_with(device("large", memory_mib=2000), quotas={"t": Quota(memory_mib=1200)})
    world.host("i", device("d"))
    lease = world.granted("other", whole(tenant="o", memory_mib=1000))
    answer = world.reserve("a", whole(tenant="t"))
    assert answer.outcome is answers.Outcome.WAITING
    assert "1 larger than allowed" in answer.explanation.sentence
    world.release(lease)
    assert world.grants() == ["a"]


def test_no_device_too_large_for_the_quota_is_reserved() -> None:
    """A head that was overtaken too often reserves no device that exceeds its quota."""
    world = World(quotas={"t": Quota(memory_mib=1200)}, bypass_max=0)
    world.host("h", device("large", memory_mib=2000), device("d", index=1))
    world.granted("other", whole(tenant="o", memory_mib=1000))
    share = world.granted("part", part("o", memory_mib=1500))
    world.reserve("a", whole(tenant="t"))
    world.release(share)
    world.granted("b", part("o", memory_mib=1500))


def test_a_small_enough_device_is_reserved_while_a_too_large_one_is_free() -> None:
    """A request for a small device has the bound on overtaking while a large one is free."""
    world = World(quotas={"t": Quota(memory_mib=1200)}, bypass_max=1)
    world.host("h", device("large", memory_mib=2000, model="L"), device("d", index=1, model="S"))
    small = part("o", models=("S",))
    leases = [world.granted("first", small)]
    large = world.granted("large", part("o", models=("L",)))
    world.reserve("a", whole(tenant="t"))
    world.release(large)  # looked at for "a", and too large
    leases.append(world.granted("second", small))
    assert world.reserve("third", small).outcome is answers.Outcome.WAITING
    for lease in leases:
        world.release(lease)
    assert world.grants() == ["a"]


def test_the_next_is_the_head_while_every_device_is_too_large_for_the_first() -> None:
    world = World(quotas={"t": Quota(memory_mib=1200)}, bypass_max=0)
    world.host("h", device("large", memory_mib=1100, model="L"), device("d", index=1, model="S"))
    held = world.granted("held", part("t", memory_mib=600, models=("L",)))
    share = world.granted("share", part("o", models=("S",)))
    answer = world.reserve("a", whole(tenant="t"))
    assert "used up its quota" in answer.explanation.sentence
    world.reserve("b", whole(tenant="o", models=("S",)))
    assert world.reserve("c", part("o", models=("S",))).outcome is answers.Outcome.WAITING
    world.release(share)
    assert world.grants() == ["b"]
    world.release(held)
    assert world.grants()[-1] == "a"


def test_a_new_smaller_device_serves_when_all_others_are_too_large() -> None:
    world = world_with(device("large", memory_mib=1100), quotas={"t": Quota(memory_mib=1200)})
    world.granted("held", part("t", memory_mib=600))
    world.reserve("a", whole(tenant="t"))
    world.host("i", device("small", memory_mib=500))
    assert world.grants() == ["a"]


def test_verdicts_of_an_infeasible_request_agree_with_its_counts() -> None:
    world = World(quotas={"t": Quota(memory_mib=1200)})
    world.host("h", device("d0"), device("d1", memory_mib=2000, index=1))
    told = world.ask(ops.Explain, request=whole(tenant="t", count=3)).explanation
    assert told.devices_fitting == sum(one.reason is None for one in told.devices) == 2


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (1, "exceeds the whole quota of tenant t: 1200 MiB"),
        (2, "suitable devices have at most 600 MiB, an equal part of the quota of tenant t"),
    ],
)
def test_devices_above_the_whole_quota_make_a_request_impossible(count: int, said: str) -> None:
    world = World(quotas={"t": Quota(memory_mib=1200)})
    world.host("h", device("large", memory_mib=2000), device("larger", memory_mib=3000, index=1))
    answer = world.reserve("a", whole(tenant="t", count=count))
    assert answer.outcome is answers.Outcome.IMPOSSIBLE
    assert said in answer.explanation.sentence
    assert answer.explanation.counts == {NoFit.TOO_LARGE: 2}


@pytest.mark.parametrize(
    ("large_mib", "fields", "outcome", "said"),
    [
        (900, {}, "granted", "1 × device, exclusive fits now; tenant t has 800 MiB left"),
        (900, {"memory_mib": 600}, "waiting", "quota of 1200 MiB except for 800 MiB: too few"),
        (600, {"count": 2}, "waiting", "except for 800 MiB, 400 MiB for each of 2 devices: too"),
        (900, {"count": 3}, "impossible", "only 2 such devices exist"),
    ],
)
def test_the_rest_of_a_quota_is_reported(
    large_mib: int, fields: dict[str, int], outcome: str, said: str
) -> None:
    """The explanation names the rest of the quota beside the request."""
    world = World(quotas={"t": Quota(memory_mib=1200)})
    world.host("h", device("l", large_mib, model="L"), device("d", 500, index=1))
    world.granted("held", part("t", memory_mib=400, models=("L",)))
    told = world.ask(ops.Explain, request=whole(tenant="t", **fields))
    assert told.outcome == outcome
    assert said in told.explanation.sentence
    assert "of at most" not in told.explanation.sentence


def test_room_in_a_quota_serves_on_any_free_device() -> None:
    world = World(quotas={"t": Quota(devices=1)})
    world.host("h", device("d0", model="A"), device("d1", model="B", index=1))
    lease = world.granted("a", part(models=("A",)))
    world.reserve("b", part(models=("B",)))
    world.release(lease)
    assert world.grants() == ["b"]


def test_freed_shares_do_not_count() -> None:
    world = world_with(device("d"), quotas={"t": Quota(devices=1)})
    lease = world.granted("a", part())
    world.reserve("b", part())
    world.told("h", lease, "opened")
    world.told("h", lease, "freed")
    assert world.grants() == ["b"]


def test_a_dry_run_knows_the_quota() -> None:
    world = world_with(device("d"), quotas={"t": Quota(devices=1)})
    world.granted("a", part())
    assert world.ask(ops.Explain, request=part()).outcome is answers.Outcome.WAITING
    assert "quota" in world.answer().explanation.sentence
    assert world.machine.state.queue.entries == {}


# ---------------------------------------------------------------------- limits


def test_live_leases_are_limited() -> None:
    world = world_with(device("d0"), device("d1", index=1), leases_max=1)
    lease = world.granted("a", part())
    answer = world.reserve("b", part())
    assert answer.outcome is answers.Outcome.WAITING
    assert "the limit of 1 live leases" in answer.explanation.sentence
    world.reserve("c", part())
    world.release(lease)
    assert world.grants() == ["b"]
    world.renew(world.leases[0])
    world.release(world.leases[0])
    assert world.grants() == ["c"]  # on whichever device: nothing but the limit kept it


# ---------------------------------------------------------------------- deadlines


def test_a_passed_deadline_makes_a_request_impossible(one: World) -> None:
    one.granted("filler", whole())
    one.reserve("a", whole(deadline_s=20.0))
    one.alive["s1"] = None
    one.advance(19.0)
    assert list(one.machine.state.queue.entries) == ["a"]
    one.advance(1.5)
    refused = one.pushes(answers.ImpossiblePush, "s1")
    assert [push.attempt for push in refused] == ["a"]
    assert "its deadline passed 0." in refused[0].explanation.sentence  # never "-0.0"
    assert refused[0].explanation.late
    assert one.machine.state.queue.entries == {}


def test_a_job_keeps_its_deadline_through_hand_backs(one: World) -> None:
    one.granted("filler", whole(), session="s2")
    record = one.attempt("job", request=whole(deadline_s=20.0)).record
    one.ask(ops.HandBack, holder=JobId("job"), revision=record.revision)
    one.alive["s2"] = None
    one.advance(21.0)
    answer = one.attempt(
        "job", revision=one.record().revision, request=whole(deadline_s=20.0), session="s2"
    )
    assert answer.outcome is answers.Outcome.IMPOSSIBLE
    assert "its deadline passed" in answer.explanation.sentence


def test_an_ownerless_request_is_refused_at_its_deadline(one: World) -> None:
    one.granted("filler", whole(), session="s2")
    one.attempt("job", request=whole(deadline_s=30.0))
    one.alive["s2"] = None
    one.advance(15.0)  # its session is gone
    assert one.record().owner is None
    one.start()
    one.advance(20.0)
    assert one.machine.state.queue.entries == {}
    assert one.record().step is Step.RECEIVED


def test_the_earlier_of_max_wait_and_deadline_counts(one: World) -> None:
    one.granted("filler", whole())
    one.reserve("a", whole(deadline_s=20.0, max_wait_s=5.0))
    one.alive["s1"] = None
    one.advance(6.0)
    assert [push.attempt for push in one.pushes(answers.BusyPush)] == ["a"]


# ---------------------------------------------------------------------- fair share


def fair(**parameters: Any) -> World:
    return world_with(*(device(f"d{i}", index=i) for i in range(4)), policy="fair", **parameters)


def fill(world: World, tenant: str, count: int) -> list[Lease]:
    return [world.granted(f"{tenant}{i}", whole(tenant=tenant)) for i in range(count)]


def test_freed_capacity_goes_to_the_tenant_with_the_least_share() -> None:
    world = fair()
    a, b = fill(world, "a", 3), fill(world, "b", 1)
    world.reserve("a-next", whole(tenant="a"))
    world.reserve("b-next", whole(tenant="b"))
    world.release(a[0])
    assert world.grants() == ["b-next"]
    world.release(b[0])
    assert world.grants() == ["a-next"]  # it is the only one that waits


@pytest.mark.parametrize(("weight", "next_"), [(1.0, "b-next"), (9.0, "a-next")])
def test_a_weight_divides_the_share(weight: float, next_: str) -> None:
    world = fair(weights={"a": weight})
    a = fill(world, "a", 3)
    fill(world, "b", 1)
    world.reserve("b-next", whole(tenant="b"))
    world.reserve("a-next", whole(tenant="a"))
    world.release(a[0])
    assert world.grants() == [next_]


def test_the_dominant_resource_counts() -> None:
    world = world_with(device("d"), policy="fair")
    world.granted("a", part("a", memory_mib=500))
    world.granted("b", part("b", memory_mib=1, compute_guarantee_pct=60))
    filler = world.granted("c", part("c", memory_mib=499))
    world.reserve("b-next", part("b", memory_mib=400))
    world.reserve("a-next", part("a", memory_mib=400))
    world.release(filler)
    assert world.grants() == ["a-next"]  # half of the memory is less than 60 % of the compute


def test_past_use_decays_by_half_lives() -> None:
    world = fair(usage_half_life_s=100.0)
    world.alive["s1"] = None
    (lease,) = fill(world, "a", 1)
    world.told("h", lease, "opened")
    world.advance(300.0)
    world.release(lease)
    shares = []
    for _ in range(3):
        tenants, parameters = world.machine.state.tenants, world.machine.state.parameters
        shares.append(tenants.share("a", 1_000_000.0 + world.now_s, parameters))
        world.advance(100.0)
    assert shares[0] > 0.25  # it had a fourth of all for two mean lives
    assert shares[1:] == pytest.approx([shares[0] / 2, shares[0] / 4])
    assert tenants.share("b", 1_000_000.0 + world.now_s, parameters) == 0


def test_past_use_survives_a_restart() -> None:
    world = fair()
    (lease,) = fill(world, "a", 1)
    world.now_s += 60
    world.release(lease)
    used = dict(world.machine.state.tenants.used)
    assert used["a"].amount.devices == 60
    world.start()
    assert world.machine.state.tenants.used == used


def test_fair_share_does_not_starve_the_head() -> None:
    world = fair(bypass_max=3, weights={"b": 100.0})
    leases = fill(world, "a", 4)
    world.reserve("head", whole(tenant="a"))
    world.now_s += 1
    for i in range(8):
        world.reserve(f"b-{i}", whole(tenant="b", priority=0))
    order = []
    for lease in leases:
        world.release(lease)
        order += world.grants()
    assert order == ["b-0", "b-1", "b-2", "head"]


# ---------------------------------------------------------------------- backfill


def backfill(*, bypass_max: int = 0) -> World:
    """Two devices: d0 is allocated for 100 s, d1 is free; the head requests both."""
    world = World(bypass_max, policy="backfill")
    world.host("h", device("d0"), device("d1", index=1))
    world.granted("long", whole(lease_s=100.0), hold=LeaseLifetime.DEADLINE)
    world.reserve("head", whole(count=2))
    return world


def lent(world: World, attempt: str, length_s: float, **fields: Any) -> Any:
    request = whole(lease_s=length_s)
    return world.reserve(attempt, request, hold=LeaseLifetime.DEADLINE, **fields).outcome


def test_a_request_that_ends_before_the_head_starts_is_backfilled() -> None:
    world = backfill()
    assert lent(world, "too long", 96.0) is answers.Outcome.WAITING  # and 5 s to take the grant
    assert lent(world, "short", 94.0) is answers.Outcome.GRANTED
    world.alive["s1"] = None
    world.advance(101.0)
    assert "head" in [lease.attempt for lease in world.leases]


def test_a_request_without_a_length_is_not_backfilled() -> None:
    world = backfill()
    assert world.reserve("unknown", whole()).outcome is answers.Outcome.WAITING


def test_fifo_has_no_backfill() -> None:
    world = backfill()
    world.ask(ops.SetParameter, name="policy", value="fifo")
    assert lent(world, "short", 10.0) is answers.Outcome.WAITING
    world.ask(ops.SetParameter, name="policy", value="backfill")
    assert world.grants() == ["short"]


def test_no_backfill_while_the_start_of_the_head_is_unknown() -> None:
    world = world_with(device("d0"), device("d1", index=1), bypass_max=0, policy="backfill")
    world.granted("endless", whole())
    world.reserve("head", whole(count=2))
    assert lent(world, "short", 1.0) is answers.Outcome.WAITING


def test_a_waiting_short_request_is_backfilled_on_newly_reserved_devices() -> None:
    world = world_with(device("d0"), device("d1", index=1), bypass_max=0, policy="backfill")
    world.granted("long", whole(lease_s=100.0), hold=LeaseLifetime.DEADLINE)
    other = world.granted("other", whole())
    world.reserve("head", whole(count=2))
    assert lent(world, "short", 30.0) is answers.Outcome.WAITING
    world.release(other)
    assert world.grants() == ["short"]


def test_backfill_of_a_session_lease_counts_its_longest_time() -> None:
    world = backfill()
    budget = world.budget
    before_s = budget.accept_s + budget.reserved_ttl_s + budget.connect_by_s
    assert before_s > 100.0
    assert world.reserve("session", whole(lease_s=1.0)).outcome is answers.Outcome.WAITING


def test_the_forecast_needs_only_enough_ends() -> None:
    """The head needs two of three parts of the reserved device; the third has no stated end."""
    world = world_with(device("d"), bypass_max=0, policy="backfill")
    world.granted("endless", part(memory_mib=200))
    for attempt, length_s in (("p1", 50.0), ("p2", 80.0)):
        world.granted(attempt, part(memory_mib=400, lease_s=length_s), hold=LeaseLifetime.DEADLINE)
    world.reserve("head", part(memory_mib=800))
    world.alive["s1"] = None
    world.advance(51.0)
    short = part(memory_mib=100, lease_s=20.0)
    assert world.reserve("a", short, hold=LeaseLifetime.DEADLINE).outcome is answers.Outcome.GRANTED
    late = part(memory_mib=100, lease_s=25.0)
    assert world.reserve("b", late, hold=LeaseLifetime.DEADLINE).outcome is answers.Outcome.WAITING


# ---------------------------------------------------------------------- no ghosts


@pytest.mark.parametrize("policy", installed_policies())
def test_a_disconnected_session_leaves_nothing(policy: str) -> None:
    world = world_with(device("d"), bypass_max=0, policy=policy, quotas={"t": Quota(devices=1)})
    lease = world.granted("a", whole(tenant="t"))
    world.reserve("ghost", whole(tenant="t"), session="doomed")
    world.reserve("ghost2", whole(), session="doomed")
    world.alive["s1"] = None
    world.advance(world.budget.client_gone_s + 1)
    queue = world.machine.state.queue
    assert not any(
        (queue.entries, queue.first_by_class, queue.by_tenant, queue.suspended_tenants())
    )
    world.release(lease)
    assert world.leases == []
    assert world.grants() == []
    assert world.machine.state.inventory.devices[DeviceId("d")].reserved_for is None

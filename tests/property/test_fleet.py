"""Laws of the fleet's decisions over drawn sequences of events."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corekit.values import replace
from gpu_scheduler.model import DeviceKind, HostState, Request
from orchgpu.fleet.core.decide import decide
from orchgpu.fleet.core.model import (
    Demand,
    Drain,
    Host,
    Memory,
    Offer,
    Offers,
    PolicyName,
    Rules,
    Start,
    Stop,
    View,
    Withdraw,
)
from tests.fleet_world import BEGIN_S, FleetWorld, demand, offer

POOLS = ("a10g", "h100")
OFFERS = (
    offer(max=3, usd_per_h=1.0, buffer=1),
    offer("h100", model="H100", memory_mib=80_000, max=2, usd_per_h=4.0, min=1),
)

#: What an operator makes of the file: offers that are removed, renamed, or both; other groups and
#: limits.
EDITS = (
    OFFERS,
    OFFERS[:1],
    OFFERS[1:],
    (),
    (replace(OFFERS[0], name="a10g-b"), OFFERS[1]),
    (OFFERS[0], replace(OFFERS[1], name="h100-b", group="h100")),
    (replace(OFFERS[0], group="a10g-moved"), OFFERS[1]),
    (replace(OFFERS[0], group="h100"), replace(OFFERS[1], group="a10g")),
    (replace(OFFERS[0], max=1), replace(OFFERS[1], min=0, max=0)),
    (replace(OFFERS[0], min=2, max=5), OFFERS[1]),
)

#: What happens between two steps.
EVENTS = st.one_of(
    st.tuples(st.just("submit"), st.integers(1, 12), st.sampled_from([1.0, 30.0, 600.0])),
    st.tuples(
        st.sampled_from(["refuse", "deliver", "deaf", "hear", "vanish"]), st.sampled_from(POOLS)
    ),
    st.tuples(st.just("forget")),
    st.tuples(st.just("lose"), st.integers(0, 4)),
    st.tuples(
        st.just("away"),
        st.integers(0, 4),
        st.sampled_from([HostState.STALE, HostState.LOST, None]),
        st.integers(1, 60),
    ),
    st.tuples(st.just("edit"), st.sampled_from(EDITS)),
    st.tuples(st.just("wait"), st.integers(1, 120)),
)
RULES = st.builds(
    Rules,
    usd_per_hour_max=st.sampled_from([None, 4.0, 6.0, 9.0]),
    usd_per_month_max=st.sampled_from([None, 0.5, 5.0]),
    target_wait_s=st.sampled_from([0.0, 60.0]),
    policy=st.sampled_from(PolicyName),
)


def happen(world: FleetWorld, event: tuple[object, ...]) -> None:
    match event:
        case ("submit", int(count), float(run_s)):
            world.submit(count, run_s)
        case (str(kind), str(pool)):
            of_pool(world, kind, pool)
        case ("forget",):
            world.forget()
        case ("edit", tuple(offers)):
            world.offers = offers
        case ("lose", int(index)):
            leave(world, index, HostState.LOST, None)
        case ("away", int(index), HostState() | None as state, int(steps)):
            leave(world, index, state, world.now_s + steps * world.step_s)
        case ("wait", int(steps)):
            for _ in range(steps):
                checked_step(world)


def leave(world: FleetWorld, index: int, state: HostState | None, until_s: float | None) -> None:
    for one in list(world.machines.values())[index : index + 1]:
        if one.state is HostState.UP:
            world.leave(one, state, until_s)


def of_pool(world: FleetWorld, kind: str, pool: str) -> None:
    match kind:
        case "refuse":
            world.refusing.add(pool)
        case "deliver":
            world.refusing.discard(pool)
        case "deaf":
            world.deaf.add(pool)
        case "hear":
            world.deaf.discard(pool)
        case "vanish":  # as by a spot interruption
            for name in [n for n, one in world.machines.items() if one.group == pool][:1]:
                del world.machines[name]


def checked_step(world: FleetWorld) -> None:
    """One step, after which hosts and cost are within their limits, or not more than before where
    an edit has lowered these; the world checks the stops."""
    before = {one.at_port: world.ordered(one.at_port) for one in world.offers}
    before_usd = world.usd_per_h()
    world.step()
    for one in world.offers:
        assert world.ordered(one.at_port) <= max(one.max, before[one.at_port])
    most = world.rules.usd_per_hour_max
    if most is not None:
        assert world.usd_per_h() <= max(most, before_usd) + 1e-6
    assert world.memory.spent_usd == pytest.approx(world.paid_usd)


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENTS, max_size=25), RULES)
def test_limits_hold_in_every_state_and_without_demand_pools_return_to_their_minimum(
    events: list[tuple[object, ...]], rules: Rules
) -> None:
    world = FleetWorld(OFFERS, rules)
    for event in events:
        happen(world, event)
        checked_step(world)
    world.queue.clear()
    world.refusing.clear()
    world.deaf.clear()
    world.offers = OFFERS
    world.rules = replace(rules, policy=PolicyName.TRACKING)
    for _ in range(round(3_000 / world.step_s)):
        checked_step(world)
    spent_up = any(notice.code == "month_full" for notice in world.decisions[-1].notices)
    for _ in range(100 if spent_up else 0):  # its last host may have become too dear just now
        checked_step(world)
    too_dear = rules.usd_per_hour_max is not None and rules.usd_per_hour_max < 4.0
    assert world.count() == world.count("h100") == (0 if spent_up or too_dear else 1)


@settings(max_examples=50, deadline=None)
@given(st.lists(EVENTS, max_size=10), st.sampled_from(EDITS), st.integers(1, 20))
def test_an_edit_holds_when_the_leases_of_its_moment_have_ended_whatever_waits(
    events: list[tuple[object, ...]], edited: tuple[Offer, ...], waiting: int
) -> None:
    world = FleetWorld(OFFERS)
    for event in events:
        happen(world, event)
        checked_step(world)
    world.refusing.clear()
    world.deaf.clear()
    world.offers = edited
    for _ in range(round(1_500 / world.step_s)):  # the longest job, and hosts that never joined
        world.submit(max(0, waiting - len(world.queue)), 30.0)
        checked_step(world)
    most = {one.at_port: one.max for one in edited}
    groups = {*world.sizes, *most}
    assert all(world.ordered(group) <= most.get(group, 0) for group in groups)
    for one in edited:
        assert world.count(one.at_port) >= one.min


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.sampled_from([0, 30_000]), st.booleans()), max_size=4
    ),
    st.lists(st.integers(0, 20), min_size=4, max_size=4),
    st.integers(0, 3),
    RULES,
)
def test_more_demand_never_asks_for_fewer_hosts(
    groups: list[tuple[int, int, bool]], more: list[int], up: int, rules: Rules
) -> None:
    def view(extra: list[int]) -> View:
        waiting = []
        for (count, memory_mib, any_kind), added in zip(groups, extra, strict=False):
            kinds = () if any_kind else (DeviceKind.CUDA,)
            request = Request(memory_mib=memory_mib, kinds=kinds)
            waiting.append(Demand(request=request, count=count + added, oldest_s=10.0, run_s=60.0))
        hosts = tuple(
            Host(id=f"h{i}", pool="a10g", state=HostState.UP, leases=1) for i in range(up)
        )
        return View(demand=tuple(waiting), hosts=hosts, sizes={"a10g": up})

    def asked(extra: list[int]) -> int:
        offers = Offers(offers=OFFERS, rules=replace(rules, usd_per_month_max=None))
        found = decide(view(extra), offers, Memory(), BEGIN_S).actions
        sizes = {"a10g": up, **{one.offer: one.size for one in found if isinstance(one, Start)}}
        return sum(sizes.values())

    assert asked([0] * 4) <= asked(more)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.floats(1.0, 100.0))
def test_a_pulse_in_half_of_the_idle_time_does_not_flap(count: int, run_s: float) -> None:
    world = FleetWorld((offer(idle_s=300.0),), Rules(target_wait_s=0.0))
    for _ in range(6):
        world.submit(count, run_s)
        world.run(150.0)
    warmed = len(world.log)
    for _ in range(30):
        world.submit(count, run_s)
        world.run(150.0)
    changes = world.log[warmed:]
    # at most hosts that no pulse uses leave, once
    assert not [one for one in changes if isinstance(one, Start)]
    assert len([one for one in changes if isinstance(one, Stop)]) <= 3


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENTS, max_size=15), RULES)
def test_two_replicas_that_see_the_same_are_one(
    events: list[tuple[object, ...]], rules: Rules
) -> None:
    one, two = FleetWorld(OFFERS, rules), FleetWorld(OFFERS, rules)
    for event in events:
        happen(one, event)
        happen(two, event)
        one.step()
        for action in two.step().actions:  # the second replica repeats them
            if not isinstance(action, Stop | Drain) or action.host in two.machines:
                two.do(action)
        assert one.sizes == two.sizes
        assert list(one.machines) == list(two.machines)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([HostState.STALE, HostState.LOST, None]), min_size=1, max_size=3),
    st.integers(0, 3),
    st.integers(1, 11),
    st.integers(0, 100),
)
def test_hosts_that_are_away_for_less_than_a_minute_are_neither_replaced_nor_ended(
    states: list[HostState | None], jobs: int, away: int, idle: int
) -> None:
    """So after a restart of the scheduler or a gap in its network, whatever the hosts did."""
    hosts = len(states)
    world = FleetWorld((offer(min=hosts, max=2 * hosts),))
    world.run(100.0)
    world.submit(min(jobs, hosts), 600.0)
    world.run(world.step_s * (1 + idle))
    calm = len(world.log)
    for machine, state in zip(world.machines.values(), states, strict=True):
        world.leave(machine, state, world.now_s + world.step_s * away)
    world.run(100.0)
    assert world.log[calm:] == []


def test_an_order_of_a_removed_offer_is_withdrawn_where_it_was_made() -> None:
    world = FleetWorld((offer(group="asg-1"),), refusing={"asg-1"})
    world.submit(1, 600.0)
    world.run(10.0)
    assert world.sizes == {"asg-1": 1}
    world.offers = ()
    assert [type(one) for one in world.step().actions] == [Withdraw]
    assert world.sizes == {"asg-1": 0}
    world.refusing.clear()
    world.run(100.0)
    assert (world.count(), world.memory.pools) == (0, {})


def test_hosts_of_removed_offers_count_for_both_guards() -> None:
    rules = Rules(usd_per_hour_max=5.0)
    world = FleetWorld((offer(),), rules)
    world.submit(4, 7_200.0)
    world.run(100.0)
    assert world.count("a10g") == 4
    world.offers = (offer("new"),)
    world.submit(4, 7_200.0)
    before_usd = world.memory.spent_usd
    world.run(3_600.0)
    assert world.usd_per_h() == 5.0
    assert world.memory.spent_usd - before_usd > 4.0


def test_hosts_above_a_lowered_guard_leave_when_their_leases_have_ended_the_dearest_first() -> None:
    world = FleetWorld((offer(max=2), offer("dear", usd_per_h=2.0, max=1)))
    world.submit(60, 300.0)
    world.run(200.0)
    assert world.usd_per_h() == 4.0
    world.rules = Rules(usd_per_hour_max=3.0)
    world.run(600.0)
    assert (world.count("a10g"), world.count("dear")) == (2, 0)


def test_an_offer_that_does_not_deliver_is_left_for_a_while_and_the_next_one_is_taken() -> None:
    world = FleetWorld((offer(max=2), offer("dear", usd_per_h=2.0, max=2)), refusing={"a10g"})
    world.submit(4, 600.0)
    actions = world.run(300.0)
    assert [one.offer for one in actions if isinstance(one, Start)][:1] == ["a10g"]
    assert world.count("dear") > 0
    assert world.sizes["a10g"] == 0, "the order was taken back"
    assert any(one.code == "skipped" for one in world.decisions[-1].notices)
    world.refusing.clear()
    world.submit(8, 600.0)
    world.run(900.0)
    assert world.count("a10g") == 2, "it is taken again later"


def test_a_refusal_of_the_port_is_acted_on_at_once() -> None:
    offers = Offers(offers=(offer(), offer("dear", usd_per_h=2.0)))
    view = View(demand=(demand(1),), sizes={"a10g": 1}, refusals={"a10g": "no capacity"})
    decision = decide(view, offers, Memory(), BEGIN_S)
    kinds = [(type(one).__name__, getattr(one, "offer", "")) for one in decision.actions]
    assert kinds == [("Withdraw", "a10g"), ("Start", "dear")]


def test_a_host_that_never_joins_is_ended_and_replaced() -> None:
    world = FleetWorld((offer(max=1),), deaf={"a10g"})
    world.submit(1)
    world.run(190.0)
    assert [one.reason for one in world.log if isinstance(one, Stop)] == ["never_joined"]
    world.deaf.clear()
    world.run(200.0)
    assert world.done == 1


@pytest.mark.parametrize(
    ("step_s", "pause_s", "never_joined_s", "lost_s"),
    [
        (2.0, 0.0, 180.0, 60.0),
        (40.0, 0.0, 240.0, 80.0),  # 30 s of each 40 s count
        (40.0, 600.0, 840.0, 680.0),  # as one look more
        (5.0, 600.0, 785.0, 665.0),  # this look does not count
    ],
)
def test_hosts_that_are_not_there_are_ended_however_far_apart_the_looks_are(
    step_s: float, pause_s: float, never_joined_s: float, lost_s: float
) -> None:
    def ended_s(world: FleetWorld, reason: str) -> float:
        """The time from the launch, or from the first look at which it was lost."""
        since_s = world.now_s + (step_s if reason == "lost" else 2 * step_s)
        world.run(2 * step_s)
        world.now_s += pause_s
        while not any(isinstance(one, Stop) for one in world.step().actions):
            assert world.now_s < BEGIN_S + 10_000.0
        assert [one.reason for one in world.log if isinstance(one, Stop)] == [reason]
        return world.now_s - since_s

    deaf = FleetWorld((offer(min=1, max=1),), deaf={"a10g"}, step_s=step_s)
    assert ended_s(deaf, "never_joined") == never_joined_s
    lost = FleetWorld((offer(min=1, max=1),), step_s=step_s)
    lost.run(400.0)
    (machine,) = lost.machines.values()
    lost.leave(machine, HostState.LOST, None)
    assert ended_s(lost, "lost") == lost_s


def test_hosts_that_could_not_join_while_the_scheduler_was_away_get_their_time_again() -> None:
    world = FleetWorld((offer(max=3),), deaf={"a10g"})
    world.submit(9, 600.0)
    world.run(10.0)
    begun = len(world.log)
    world.now_s += 400.0  # no decision in this time
    world.run(20.0)
    for machine in world.machines.values():
        machine.joins = True
    world.run(100.0)
    assert len(world.machines) == 3
    assert world.log[begun:] == []
    assert not any(one.code == "skipped" for one in world.decisions[-1].notices)


def test_a_host_that_was_away_before_the_scheduler_was_gets_its_minute_again() -> None:
    world = FleetWorld((offer(max=1),))
    world.submit(2, 600.0)
    world.run(120.0)
    (machine,) = world.machines.values()
    world.leave(machine, HostState.LOST, None)
    world.run(30.0)
    world.now_s += 400.0  # no decision in this time
    machine.away_until_s = world.now_s + 20.0
    begun = len(world.log)
    world.run(60.0)
    assert machine.state is HostState.UP
    assert world.log[begun:] == []


def test_a_lost_host_is_ended_and_replaced() -> None:
    world = FleetWorld((offer(max=1),))
    world.submit(1, 600.0)
    world.run(120.0)
    (machine,) = world.machines.values()
    world.leave(machine, HostState.LOST, None)
    world.submit(1, 30.0)
    world.run(200.0)
    assert [one.reason for one in world.log if isinstance(one, Stop)] == ["lost"]
    assert world.done == 1


@pytest.mark.parametrize("state", [HostState.LOST, None])
def test_hosts_that_come_back_soon_are_kept(state: HostState | None) -> None:
    world = FleetWorld((offer(),))
    world.submit(1, 600.0)
    world.run(120.0)
    (machine,) = world.machines.values()
    world.leave(machine, state, world.now_s + 50.0)
    world.run(100.0)
    assert not [one for one in world.log if isinstance(one, Stop)]


def test_a_host_that_an_operator_drained_keeps_its_lease_and_is_not_counted() -> None:
    host = Host(id="h", pool="a10g", state=HostState.DRAINED, leases=1)
    offers = Offers(offers=(offer(),))
    seen = View(demand=(demand(1),), hosts=(host,), sizes={"a10g": 1})
    decision = decide(seen, offers, Memory(), BEGIN_S)
    assert [type(one) for one in decision.actions] == [Start]


def test_start_times_are_learned() -> None:
    world = FleetWorld((offer(start_s=200.0),), start_s=40.0)
    world.submit(1)
    world.run(120.0)
    assert world.memory.pools["a10g"].starts_s == (40.0,)


def test_a_long_queue_behind_long_leases_gets_hosts_of_its_own() -> None:
    world = FleetWorld((offer(),), Rules(target_wait_s=30.0))
    world.submit(1, 3_600.0)
    world.run(90.0)
    assert world.count() == 1
    world.submit(1, 10.0)
    world.run(300.0)
    assert world.done == 1


def test_spending_is_counted_by_month_and_survives_in_memory() -> None:
    hosts = (Host(id="h", pool="a10g", state=HostState.UP, leases=1),)
    offers = Offers(offers=(offer(usd_per_h=2.0),), rules=Rules(usd_per_month_max=1.0))
    view = View(hosts=hosts, sizes={"a10g": 1}, demand=(demand(9),))
    first = decide(view, offers, Memory(), BEGIN_S)
    later = decide(view, offers, first.memory, BEGIN_S + 1_440.0)
    assert round(later.memory.spent_usd, 6) == 0.8
    assert "month_near" in [one.code for one in later.notices]
    last = decide(view, offers, later.memory, BEGIN_S + 1_800.0)
    assert "month_full" in [one.code for one in last.notices]
    assert last.actions == ()
    new_month = decide(view, offers, last.memory, BEGIN_S + 20 * 86_400.0)
    assert new_month.memory.month != last.memory.month


def test_requests_that_no_offer_serves_are_said() -> None:
    offers = Offers(offers=(offer(),))
    seen = View(demand=(demand(2, request=Request(memory_mib=90_000)),))
    decision = decide(seen, offers, Memory(), BEGIN_S)
    assert [(one.code, one.values) for one in decision.notices] == [("no_offer", {"waiting": 2})]
    assert decision.actions == ()


def test_a_forecast_starts_the_hosts_of_the_hour_before_it_begins() -> None:
    rules = Rules(policy=PolicyName.FORECAST)
    world = FleetWorld((offer(start_s=120.0),), rules, step_s=60.0)
    for _ in range(2):  # two days with three jobs at the same time
        world.run(1_800.0)
        world.submit(3, 1_200.0)
        world.run(86_400.0 - 1_800.0)
    world.run(1_800.0)
    assert world.count() >= 2

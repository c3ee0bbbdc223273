"""The calendar of a device and plans: gaps, warm workers, batches, pick rules."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corekit.ids import DeviceId
from gpu_scheduler.core.admission.slo.calendar import Calendar, Keeping, Need, Use
from gpu_scheduler.core.admission.slo.frontier import Placement
from gpu_scheduler.core.admission.slo.options import ClassKey, Option
from gpu_scheduler.core.admission.slo.plan import Batch, Devices, Plan, Planner, PlanStep

CLASS = ClassKey("cuda", "M")
WHOLE, HALF = Need(100, 1000), Need(100, 500)


def calendar(*uses: Use, memory_mib: int = 1000, workers: int = 4, name: str = "d") -> Calendar:
    keeping = Keeping(workers, 60.0, memory_mib)
    return Calendar(DeviceId(name), memory_mib, 1000, keeping, sorted(uses))


def test_a_step_begins_in_the_first_gap_that_is_long_enough() -> None:
    busy = calendar(Use(0, 2, WHOLE), Use(3, 5, WHOLE), Use(9, 10, WHOLE))
    assert busy.earliest_s(WHOLE, 0.0, 1.0) == 2
    assert busy.earliest_s(WHOLE, 0.0, 4.0) == 5
    assert busy.earliest_s(WHOLE, 0.0, 5.0) == 10
    assert busy.gap_s(9.0, 0.0) == 4


def test_shares_of_a_device_overlap_within_its_size() -> None:
    busy = calendar(Use(0, 4, HALF), Use(2, 6, HALF))
    assert busy.earliest_s(HALF, 0.0, 2.0) == 0
    assert busy.earliest_s(HALF, 0.0, 3.0) == 4
    assert busy.earliest_s(Need(950, 0), 0.0, 1.0) == 6
    assert busy.earliest_s(Need(0, 0, exclusive=True), 0.0, 1.0) == 6
    assert busy.earliest_s(Need(2000, 0), 0.0, 1.0) == inf


def test_a_use_without_a_known_end_is_never_over() -> None:
    assert calendar(Use(0, inf, WHOLE)).earliest_s(WHOLE, 0.0, 1.0) == inf


def test_a_worker_is_warm_after_a_use_of_its_workload_while_all_fit_together() -> None:
    busy = calendar(Use(0, 2, WHOLE, "a"), Use(4, 6, WHOLE, "b"))
    assert busy.warm_at("a", 100, 2.0, 0.0)
    assert busy.warm_at("a", 100, 7.0, 0.0)
    assert not busy.warm_at("a", 100, 1.0, 0.0)  # in use
    assert not busy.warm_at("a", 100, 63.0, 0.0)  # idle for too long
    assert not busy.warm_at("c", 100, 7.0, 0.0)
    assert not calendar(*busy.uses, workers=1).warm_at("a", 100, 7.0, 0.0)
    assert not calendar(*busy.uses, memory_mib=150).warm_at("a", 100, 7.0, 0.0)


def test_nothing_evicts_a_worker_that_a_booking_counts_on() -> None:
    busy = calendar(Use(0, 2, WHOLE, "a"), Use(4, 6, WHOLE, "a", warm=True), workers=2)
    assert busy.keeps("b", 100)
    assert not busy.keeps("b", 950)
    busy.residents["c"] = 100
    assert not busy.keeps("b", 100)


def planner(
    calendars: list[Calendar], batches: list[Batch], step: PlanStep, due_s: float
) -> Planner:
    by_device = {one.device: one for one in calendars}
    devices = Devices(
        {CLASS: list(by_device)},
        {CLASS: len(calendars)},
        by_device.__getitem__,
        lambda one, workload: [batch for batch in batches if batch.device == one.device],
    )
    return Planner([step], ((),), devices, 0.0, due_s)


def batchable(execution_s: float = 2.0, item_s: float = 0.5) -> PlanStep:
    option = Option(CLASS, 0.0, execution_s, 0.0, 1.0, item_s)
    return PlanStep((option,), {CLASS: Need(10, 100)}, "w", batch_max=4)


PLACED = Placement(2.0, 1.0, (0,))


@pytest.mark.parametrize(
    ("latest_s", "members", "ready", "joins"),
    [(4.0, 1, True, True), (3.4, 1, True, False), (4.0, 4, True, False)],
)
def test_a_step_joins_a_waiting_batch_that_breaks_no_member(
    latest_s: float, members: int, ready: bool, joins: bool
) -> None:
    need = Need(10, 100)
    uses = [Use(1, 3, need, "w") for _ in range(members)]
    batch = Batch("b", DeviceId("d"), 1.0, 3.0, 3.0, members, 4, latest_s)
    plan, _ = planner([calendar(*uses)], [batch], batchable(), 10.0).best(
        [PLACED], "lightest", lambda: 0.0
    )
    assert plan is not None
    assert (plan.steps[0].batch == "b") is joins
    if joins:
        assert (plan.steps[0].start_s, plan.steps[0].end_s) == (1.0, 3.5)


@pytest.mark.parametrize(("latest_s", "joins"), [(6.0, True), (5.4, False)])
def test_a_longer_member_prolongs_its_batch_to_its_own_length(latest_s: float, joins: bool) -> None:
    batch = Batch("b", DeviceId("d"), 1.0, 3.0, 3.0, 1, 4, latest_s)
    one = calendar(Use(1, 3, Need(10, 100), "w"))
    plan, _ = planner([one], [batch], batchable(4.0), 10.0).best([PLACED], "lightest", lambda: 0.0)
    assert plan is not None
    assert (plan.steps[0].batch == "b") is joins
    if joins:
        assert plan.steps[0].end_s == 5.5


@given(
    st.lists(st.tuples(st.floats(0.1, 3.0), st.floats(0.0, 4.0)), min_size=1, max_size=6),
    st.floats(0.0, 1.5),
    st.floats(2.5, 20.0),
)
@settings(deadline=None)
def test_joining_breaks_no_member_whatever_the_slack(
    members: list[tuple[float, float]], item_s: float, due_s: float
) -> None:
    """Members that end by their latest, before and after another one has joined."""
    need, start_s = Need(10, 100), 1.0
    end_s = start_s + max(length for length, _ in members)
    latests_s = [end_s + slack for _, slack in members]
    uses = [Use(start_s, end_s, need, "w") for _ in members]
    batch = Batch("b", DeviceId("d"), start_s, end_s, end_s, len(members), 8, min(latests_s))
    step = batchable(item_s=item_s)._replace(batch_max=8)
    plan, _ = planner([calendar(*uses)], [batch], step, due_s).best(
        [PLACED], "lightest", lambda: 0.0
    )
    if plan is not None and plan.steps[0].batch is not None:
        assert all(plan.steps[0].end_s <= latest_s + 1e-4 for latest_s in latests_s)
        assert plan.end_s <= due_s + 1e-4


@pytest.mark.parametrize(
    ("pick", "latency_s"),
    [("lightest", 1.0), ("earliest", 1.0), ("cheapest", 4.0), ("random", 4.0)],
)
def test_the_pick_rule_chooses_among_plans_in_time(pick: str, latency_s: float) -> None:
    fast, slow = Option(CLASS, 0, 1.0, 0, 9.0), Option(CLASS, 0, 4.0, 0, 1.0)
    step = PlanStep((fast, slow), {CLASS: WHOLE}, None)
    placements = [Placement(1.0, 9.0, (0,)), Placement(4.0, 1.0, (1,))]
    plan, _ = planner([calendar()], [], step, 10.0).best(placements, pick, lambda: 0.9)
    assert isinstance(plan, Plan)
    assert plan.end_s == latency_s


def test_a_plan_in_no_time_names_the_earliest_end() -> None:
    step = PlanStep((Option(CLASS, 0, 2.0, 0, 1.0),), {CLASS: WHOLE}, None)
    busy = [calendar(Use(0, 5, WHOLE)), calendar(Use(0, 3, WHOLE), name="e")]
    plan, earliest_s = planner(busy, [], step, 4.0).best([PLACED], "lightest", lambda: 0.0)
    assert (plan, earliest_s) == (None, 5.0)

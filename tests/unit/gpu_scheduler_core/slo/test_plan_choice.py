"""The planner leaves out only what cannot be better: its plans equal those of a full search."""

from __future__ import annotations

from itertools import product
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from corekit.ids import DeviceId
from gpu_scheduler.core.admission.slo.calendar import SAME_S, Calendar, Keeping, Need, Use
from gpu_scheduler.core.admission.slo.frontier import Feeders, Placement
from gpu_scheduler.core.admission.slo.options import ClassKey, Option
from gpu_scheduler.core.admission.slo.plan import Batch, Devices, Plan, Planner, PlanStep

CLASSES = (ClassKey("cuda", "A"), ClassKey("cuda", "B"))
NEEDS = (Need(100, 1000), Need(100, 500), Need(600, 0, exclusive=True))
SHAPES: tuple[Feeders, ...] = (((),), ((), (0,)), ((), (0,), (0,), (1, 2)), ((), (), (0, 1)))
SECONDS = st.integers(0, 40).map(lambda tenths: tenths / 10)
WORKLOADS = st.sampled_from([None, "v", "w"])

uses = st.builds(
    lambda start_s, length_s, need, workload, warm: Use(
        start_s, start_s + 0.1 + length_s, need, workload, warm and workload is not None
    ),
    SECONDS,
    SECONDS,
    st.sampled_from(NEEDS),
    WORKLOADS,
    st.booleans(),
)


@st.composite
def calendars(draw: st.DrawFn) -> dict[ClassKey, list[Calendar]]:
    """Up to four devices of each class."""
    keeping = Keeping(draw(st.integers(1, 3)), 2.0, 1000)
    found: dict[ClassKey, list[Calendar]] = {}
    for where in CLASSES:
        of_class = draw(st.lists(st.lists(uses, max_size=4), min_size=1, max_size=4))
        found[where] = [
            Calendar(
                DeviceId(f"{where.model}{i}"),
                1000,
                1000,
                keeping,
                sorted(own, key=lambda use: use.start_s),
                draw(st.sampled_from([{}, {"w": 100}])),
            )
            for i, own in enumerate(of_class)
        ]
    return found


@st.composite
def plan_steps(draw: st.DrawFn) -> PlanStep:
    """A step with an option on each class."""
    options = [
        Option(
            where,
            draw(st.sampled_from([0.0, 0.5])),
            0.1 + draw(SECONDS),
            draw(st.sampled_from([0.0, 0.2])),
            draw(st.integers(0, 5)),
            draw(st.sampled_from([None, 0.1, 0.5])),
            draw(st.sampled_from([0.0, 1.0])),
        )
        for where in CLASSES
    ]
    needs = dict.fromkeys(CLASSES, draw(st.sampled_from(NEEDS)))
    way_s = draw(st.sampled_from([0.0, 0.3]))
    return PlanStep(
        tuple(options), needs, draw(WORKLOADS), draw(st.sampled_from([0, 4])), way_s=way_s
    )


def devices(found: dict[ClassKey, list[Calendar]]) -> Devices:
    """With a batch where the first use of a device is of the workload `w`."""
    by_device = {one.device: one for own in found.values() for one in own}

    def batches(calendar: Calendar, workload: str) -> list[Batch]:
        first = [use for use in calendar.uses[:1] if use.workload == workload == "w"]
        return [
            Batch("b", calendar.device, use.start_s, use.end_s, use.end_s, 1, 4, use.end_s + 1.0)
            for use in first
        ]

    ids = {where: [one.device for one in own] for where, own in found.items()}
    counts = {where: 10 * len(own) for where, own in found.items()}
    return Devices(ids, counts, by_device.__getitem__, batches)


def planner(
    found: dict[ClassKey, list[Calendar]],
    steps: list[PlanStep],
    feeders: Feeders,
    due_s: float,
    cost_usd_max: float = inf,
) -> Planner:
    return Planner(steps, feeders, devices(found), 1.0, due_s, cost_usd_max)


def searched(
    one: Planner, placements: list[Placement], pick: str, drawn: float
) -> tuple[Plan | None, float]:
    """The plan of the pick rule when each placement is planned, and the earliest end of all."""
    in_time: list[Plan] = []
    ends_s: list[float] = []
    for placement in placements:
        for thrifty in (True, False):
            plan = one.plan(placement, thrifty=thrifty)
            if plan is None:
                continue
            ends_s.append(plan.end_s)
            if plan.end_s <= one.due_s + SAME_S and plan.cost_usd <= one.cost_usd_max + 1e-9:
                in_time.append(plan)
                break
    if not in_time:
        return None, min(ends_s, default=inf)
    if pick == "random":
        return in_time[int(drawn * len(in_time))], 0.0
    scores = {
        "lightest": lambda plan: (plan.weight, plan.cost_usd),
        "earliest": lambda plan: (plan.end_s, plan.cost_usd),
        "cheapest": lambda plan: (plan.cost_usd, plan.end_s),
    }
    return min(in_time, key=scores[pick]), 0.0


def bare(plan: Plan) -> Plan:
    """Without what follows from the places of the other steps."""
    return plan._replace(steps=tuple(one._replace(latest_s=inf, final=True) for one in plan.steps))


@given(
    calendars(),
    st.sampled_from(SHAPES),
    st.lists(plan_steps(), min_size=4, max_size=4),
    st.sampled_from(["lightest", "earliest", "cheapest", "random"]),
    st.sampled_from([3.0, 6.0, 15.0, inf]),
    st.sampled_from([4.0, inf]),
    st.floats(0.0, 0.99),
)
@settings(deadline=None, max_examples=300)
def test_the_plan_is_the_one_of_a_search_over_all_placements(
    found: dict[ClassKey, list[Calendar]],
    feeders: Feeders,
    steps: list[PlanStep],
    pick: str,
    due_s: float,
    cost_usd_max: float,
    drawn: float,
) -> None:
    own = steps[: len(feeders)]
    placements = [
        Placement(0.0, 0.0, options) for options in product(range(2), repeat=len(feeders))
    ]
    one = planner(found, own, feeders, due_s, cost_usd_max)
    plan, earliest_s = one.best(placements, pick, lambda: drawn)
    expected, expected_s = searched(one, placements, pick, drawn)
    if plan is None or expected is None:
        assert (plan, earliest_s) == (expected, expected_s)
    else:
        assert bare(plan) == bare(expected)


@given(calendars(), plan_steps(), st.booleans(), st.sampled_from([3.0, 6.0, inf]))
@settings(deadline=None, max_examples=300)
def test_the_device_of_a_step_is_the_one_of_a_search_over_all_devices(
    found: dict[ClassKey, list[Calendar]], step: PlanStep, thrifty: bool, due_s: float
) -> None:
    placement = Placement(0.0, 0.0, (0,))
    plan = planner(found, [step], ((),), due_s).plan(placement, thrifty=thrifty)
    late_s = due_s + SAME_S if thrifty else -inf
    best: tuple[tuple[bool, float, float], Plan] | None = None
    for calendar in found[CLASSES[0]]:
        alone = {CLASSES[0]: [calendar], CLASSES[1]: found[CLASSES[1]]}
        tried = planner(alone, [step], ((),), due_s).plan(placement, thrifty=thrifty)
        if tried is None:
            continue
        place = tried.steps[0]
        late = place.end_s > late_s
        key = late, place.end_s if late else place.spent_s, place.end_s
        if best is None or key < best[0]:
            best = key, tried
    assert (plan is None) is (best is None)
    if plan is not None and best is not None:
        assert plan.steps == best[1].steps

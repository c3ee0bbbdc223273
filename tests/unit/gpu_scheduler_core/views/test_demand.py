"""Op `demand`: waiting requests by what they ask for."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corekit.values import replace
from gpu_scheduler.core.state.learned_times import WorkloadOn
from gpu_scheduler.core.views.demand import RUN_S_UNKNOWN
from gpu_scheduler.model import Request, Sharing
from gpu_scheduler.parameters import Quota
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.verdicts import HeldBack
from tests.scheduler_world import World, device

WHOLE = Request(sharing=Sharing.EXCLUSIVE)


def busy_world() -> World:
    world = World()
    world.host("h1", device("d1"))
    world.granted("first", WHOLE)
    return world


def wait(world: World, *attempts: str, **fields: object) -> None:
    for attempt in attempts:
        request = Request(**{"sharing": Sharing.EXCLUSIVE, **fields})  # type: ignore[arg-type]
        world.reserve(attempt, request, wait=True)


def demand(world: World, **fields: Any) -> answers.DemandAnswer:
    answer = world.ask(ops.Demand, **fields)
    assert isinstance(answer, answers.DemandAnswer)
    return answer


def test_nothing_waits() -> None:
    assert demand(busy_world()) == answers.DemandAnswer(groups=())


def test_requests_of_all_tenants_and_workloads_with_equal_requirements_are_one_group() -> None:
    world = busy_world()
    wait(world, "a", "b", tenant="lab")
    world.advance(5.0)
    wait(world, "c", tenant="other", workload="ocr", priority=3)
    wait(world, "d", memory_mib=500, sharing=Sharing.SHARED)
    first, second = demand(world).groups
    assert (first.request, first.count) == (WHOLE, 3)
    assert (second.request.memory_mib, second.count) == (500, 1)
    assert first.oldest_s >= 5.0 > second.oldest_s
    assert first.run_s == RUN_S_UNKNOWN


def test_the_expected_time_is_the_learned_one_and_never_longer_than_the_lease() -> None:
    world = busy_world()
    for model, held_s in (("M", 10.0), ("N", 30.0)):
        world.machine.state.learned_times.learn(WorkloadOn("default", "ocr", model), held_s, None)
    wait(world, "a", "b", workload="ocr")
    (group,) = demand(world).groups
    assert (group.run_s, group.runs_s) == (20.0, {"M": 10.0, "N": 30.0})
    wait(world, "c")
    (group,) = demand(world).groups
    assert (round(group.run_s, 3), group.runs_s) == (round((20 + 20 + 60) / 3, 3), {})
    wait(world, "d", lease_s=7.0)
    assert min(one.run_s for one in demand(world).groups) == 7.0


def test_requests_that_devices_alone_would_not_help_are_counted_apart() -> None:
    world = busy_world()
    world.ask(ops.SetParameter, name="quota.lab.devices", value=1)
    world.host("h2", device("d2"))
    world.granted("second", Request(sharing=Sharing.EXCLUSIVE, tenant="lab"))
    wait(world, "a", "b", tenant="lab")
    wait(world, "c")
    found = demand(world)
    assert (found.held_back, [one.count for one in found.groups]) == (2, [1])


def test_a_quota_without_memory_needs_no_look_at_each_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(quotas={"lab": Quota(devices=9)})
    world.host("h1", device("d1"))
    world.granted("first", WHOLE)
    wait(world, "a", "b", tenant="lab")
    monkeypatch.setattr("gpu_scheduler.core.views.demand.held_back", None)  # not called
    assert [one.count for one in demand(world).groups] == [2]


def test_the_largest_groups_come_first_and_the_rest_is_counted() -> None:
    world = busy_world()
    for size, attempts in ((1, "a"), (2, "bcd"), (3, "ef")):
        wait(world, *attempts, memory_mib=size)
    found = demand(world, limit=1)
    assert [one.count for one in found.groups] == [3]
    assert found.left_out == 3


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]),
            st.builds(
                Request,
                sharing=st.sampled_from(Sharing),
                memory_mib=st.sampled_from([0, 400, 900]),
                count=st.sampled_from([1, 2]),
                compute_guarantee_pct=st.sampled_from([0, 50]),
            ),
        ),
        max_size=20,
    ),
    st.sampled_from([None, 1, 2]),
    st.sampled_from([None, 900, 1000, 1500, 3000]),
    st.sampled_from([None, 50, 150]),
)
def test_what_is_counted_apart_is_what_an_explanation_names_as_held_back(
    asked: list[tuple[str, Request]],
    devices: int | None,
    memory_mib: int | None,
    compute_pct: int | None,
) -> None:
    quota = Quota(devices=devices, memory_mib=memory_mib, compute_pct=compute_pct)
    world = World(quotas={"a": quota, "b": Quota(devices=1)})
    world.host("h", device("d1"), device("d2", memory_mib=2000, index=1))
    for number, (tenant, request) in enumerate(asked):
        world.reserve(f"r{number}", replace(request, tenant=tenant), wait=True)
    held = Counter[bool]()
    for attempt in list(world.machine.state.queue.entries):
        explanation = world.ask(ops.Explain, attempt=attempt, holder=None).explanation
        held[explanation.held_back is HeldBack.QUOTA] += 1
    found = demand(world)
    assert found.held_back == held[True]
    assert sum(group.count for group in found.groups) == held[False]

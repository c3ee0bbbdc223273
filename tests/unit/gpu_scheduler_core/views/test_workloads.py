"""Learned times in lists and explanations, and warm or cold starts in dry runs."""

from typing import Any

import pytest

from corekit.ids import DeviceId
from gpu_scheduler.core.state.learned_times import WorkloadOn
from gpu_scheduler.model import DeviceResidents, Request, Resident
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.verdicts import ExpectedRun
from gpu_scheduler.warm import workload_key
from tests.scheduler_world import World, device

REQUEST = Request(memory_mib=100, workload="ocr")


def learn(
    world: World,
    workload: str = "ocr",
    model: str = "M",
    *,
    held_s: float = 5.0,
    loading_s: float | None = None,
    tenant: str = "default",
) -> None:
    key = WorkloadOn(tenant, workload, model)
    world.machine.state.learned_times.learn(key, held_s, loading_s)


def publish(world: World, host: str, device: str, *ids: str) -> None:
    key = workload_key("default", "ocr")
    added = tuple(Resident(id=i, workload=key, memory_mib=50, loading_s=1.0) for i in ids)
    change = DeviceResidents(device=DeviceId(device), added=added)
    world.handle(host_ops.Report, host=host, reply_to="h", residents=(change,))


def explained(world: World, **asked: Any) -> Any:
    return world.ask(ops.Explain, **asked)


def test_workloads_are_listed_page_by_page() -> None:
    world = World()
    world.host("h1", device("d1"))
    for number in range(5):
        learn(world, f"w{number}", held_s=4.0, loading_s=1.0)
    learn(world, "ocr", loading_s=1.0)
    learn(world, "ocr", loading_s=0.0)
    publish(world, "h1", "d1", "a", "b")
    first = world.ask(ops.Workloads, limit=4)
    rest = world.ask(ops.Workloads, after=first.workloads[-1].id, limit=4)
    assert (len(first.workloads), first.more, rest.more) == (4, True, False)
    seen = (*first.workloads, *rest.workloads)
    assert sorted(one.workload for one in seen) == ["ocr", "w0", "w1", "w2", "w3", "w4"]
    by_name = {one.workload: one for one in seen}
    other, ocr = by_name["w0"], by_name["ocr"]
    assert (other.cold_starts, other.warm_starts, other.residents) == (1, 0, 0)
    assert (ocr.cold_starts, ocr.warm_starts, ocr.residents) == (1, 1, 2)
    assert other.expected == ExpectedRun(
        model="M",
        runs=1,
        execution_p50_s=3.0,
        execution_p95_s=3.0,
        loading_p50_s=1.0,
        loading_p95_s=1.0,
    )


def test_a_dry_run_predicts_a_warm_start_and_its_time() -> None:
    world = World()
    world.host("h1", device("d1"), device("d2", index=1))
    cold = explained(world, request=REQUEST)
    assert cold.explanation.warm_start is False
    assert cold.explanation.sentence.endswith("; cold start, its run time is not learned yet")
    learn(world, held_s=6.0, loading_s=2.0)
    cold = explained(world, request=REQUEST)
    times = "expected to run for 4 s on M (95 %: 4 s)"
    assert cold.explanation.sentence.endswith(f"; cold start, {times} after 2 s of loading")
    publish(world, "h1", "d2", "w")
    warm = explained(world, request=REQUEST)
    assert warm.outcome is answers.Outcome.GRANTED
    assert warm.explanation.warm_start is True
    assert warm.explanation.sentence.endswith(f"; warm start, {times}")
    verdicts = {one.device: one.resident for one in warm.explanation.devices}
    assert verdicts == {"d1": False, "d2": True}
    assert [run.model for run in warm.explanation.runs] == ["M"]
    assert "ocr" not in warm.explanation.sentence, "not every reader may see the name"


def test_a_request_without_a_workload_expects_nothing(one: World) -> None:
    why = explained(one, request=Request()).explanation
    assert (why.warm_start, why.runs) == (None, ())
    assert why.sentence.endswith("fits now")


@pytest.mark.parametrize("warm", [True, False])
def test_a_granted_request_shows_how_it_started(one: World, warm: bool) -> None:
    if warm:
        publish(one, "h1", "d1", "w")
    one.granted("a", REQUEST)
    assert explained(one, attempt="a").explanation.warm_start is warm


def test_a_waiting_request_shows_its_learned_times(whole: Request) -> None:
    world = World()
    world.host("h1", device("d1"))
    learn(world)
    world.granted("holder", whole)
    world.reserve("a", REQUEST)
    why = explained(world, attempt="a").explanation
    assert why.warm_start is None
    assert why.sentence.endswith("; expected to run for 5 s on M (95 %: 5 s)")


def test_the_inventory_shows_residents(one: World) -> None:
    publish(one, "h1", "d1", "w1", "w2")
    (view,) = one.ask(ops.Inventory).hosts[0].devices
    assert ([r.id for r in view.residents], view.resident_mib) == (["w1", "w2"], 100)
    assert view.memory_free_mib == 1000, "residents are evictable"

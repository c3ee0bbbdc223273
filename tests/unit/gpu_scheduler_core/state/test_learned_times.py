"""Learned times: what is learned from which ends of leases, quantiles, decay, bounds, replay."""

import pytest
from _pytest.monkeypatch import MonkeyPatch

from corekit.ids import IdSource
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.core.state import learned_times
from gpu_scheduler.core.state.learned_times import (
    LearnedTimes,
    Times,
    WorkloadOn,
    weighted_quantile,
)
from gpu_scheduler.model import EndReason, Request
from gpu_scheduler.protocol import ops
from tests.scheduler_world import World, device

REQUEST = Request(memory_mib=100, workload="w", tenant="t")


def run(
    world: World,
    attempt: str = "a",
    *,
    held_s: float = 5.0,
    loading_s: float | None = None,
    request: Request = REQUEST,
) -> None:
    """A lease with a session that gives its shares back after `held_s`."""
    lease = world.granted(attempt, request)
    world.told("h1", lease, "opened")
    world.advance(held_s)
    world.told("h1", lease, "freed", loading_s=loading_s)
    world.advance(1.0)  # the session uploads its outputs: not an execution
    world.told("h1", lease, "closed", reason=EndReason.DONE)


def learned(world: World) -> Times:
    times = world.machine.state.learned_times.of("t", "w", "M")
    assert times is not None
    return times


def test_an_execution_is_the_time_with_shares_without_loading(one: World) -> None:
    run(one, held_s=5.0, loading_s=2.0)
    times = learned(one)
    assert times.execution_s(0.5) == pytest.approx(3.0)
    assert times.loading_s(0.5) == 2.0
    assert (times.runs, times.cold_starts, times.warm_starts) == (1, 1, 0)


def test_the_loaded_bytes_of_a_lease_count_once(one: World) -> None:
    residents = one.machine.state.inventory.residents
    for attempt, states in (("a", ("freed", "closed")), ("b", ("closed",)), ("c", ("freed",))):
        lease = one.granted(attempt, REQUEST)
        one.told("h1", lease, "opened")
        for state in states:
            one.told("h1", lease, state, loaded_mib=None if attempt == "c" else 5)
    assert residents.loaded_mib == 10


def test_a_warm_start_and_an_unknown_one(one: World) -> None:
    run(one, "a", loading_s=1.0)
    run(one, "b", loading_s=0.0)
    run(one, "c", loading_s=None)
    times = learned(one)
    assert times.loading_s(0.5) == 1.0
    assert (times.runs, times.cold_starts, times.warm_starts) == (3, 1, 1)


def test_a_workload_that_never_loads_has_neither_cold_nor_warm_starts(one: World) -> None:
    run(one, "a", loading_s=0.0)
    run(one, "b", loading_s=0.0)
    times = learned(one)
    assert times.loading_s(0.5) is None
    assert (times.runs, times.cold_starts, times.warm_starts) == (2, 0, 0)


@pytest.mark.parametrize(
    ("reason", "complete"),
    [
        (EndReason.DONE, True),
        (EndReason.RELEASED, True),
        (EndReason.SESSION_LOST, False),
        (EndReason.CAP, False),
        (EndReason.DEVICE_BAD, False),
    ],
)
def test_only_a_complete_execution_counts(one: World, reason: EndReason, complete: bool) -> None:
    lease = one.granted("a", REQUEST)
    one.told("h1", lease, "opened")
    one.advance(4.0)
    one.told("h1", lease, "closed", reason=reason, loading_s=1.0)
    times = one.machine.state.learned_times.of("t", "w", "M")
    assert (times is not None) is complete


@pytest.mark.parametrize("states", [("freed", "closed"), ("closed",)])
@pytest.mark.parametrize(
    ("succeeded", "loading_s", "after"),
    [  # after a cold start that succeeded: runs, cold starts, warm starts, loading times
        (None, 2.0, (2, 2, 0, (1.0, 2.0))),
        (True, 0.0, (2, 1, 1, (1.0,))),
        (False, 2.0, (1, 2, 0, (1.0, 2.0))),
        (False, 0.0, (1, 1, 0, (1.0,))),
        (False, None, (1, 1, 0, (1.0,))),
    ],
)
def test_code_that_failed_teaches_no_execution_time(
    one: World,
    states: tuple[str, ...],
    succeeded: bool | None,
    loading_s: float | None,
    after: tuple[int, int, int, tuple[float, ...]],
) -> None:
    run(one, "before", held_s=9.0, loading_s=1.0)
    lease = one.granted("a", REQUEST)
    one.told("h1", lease, "opened")
    one.advance(4.0)
    for state in states:
        one.told("h1", lease, state, loading_s=loading_s, succeeded=succeeded)
    times = learned(one)
    assert (times.runs, times.cold_starts, times.warm_starts, times.loadings_s) == after
    assert len(times.executions_s) == times.runs


@pytest.mark.parametrize(("outcome", "runs"), [("SUCCEEDED", 1), ("FAILED", 0), ("CANCELLED", 0)])
def test_the_end_of_a_job_that_ends_its_lease_counts_if_it_succeeded(
    one: World, outcome: str, runs: int
) -> None:
    one.attempt(request=REQUEST)
    (lease,) = one.leases
    one.told("h1", lease, "opened")
    one.advance(4.0)
    one.ask(ops.Finish, holder="job", outcome=outcome, reason=outcome)
    assert len(one.machine.state.learned_times) == runs


def test_a_failed_attempt_teaches_nothing(one: World) -> None:
    record = one.attempt(request=REQUEST).record
    (lease,) = one.leases
    one.told("h1", lease, "opened")
    one.ask(ops.FailAttempt, holder="job", revision=record.revision, reason="EXIT_NONZERO")
    assert not one.leases
    assert len(one.machine.state.learned_times) == 0


def test_a_cold_start_of_a_workload_that_has_only_failed(one: World) -> None:
    lease = one.granted("a", REQUEST)
    one.told("h1", lease, "opened")
    one.told("h1", lease, "freed", loading_s=3.0, succeeded=False)
    times = learned(one)
    assert (times.execution_s(0.5), times.loading_s(0.5)) == (None, 3.0)


def test_leases_without_a_session_or_workload_teach_nothing(one: World) -> None:
    one.release(one.granted("a", REQUEST))
    run(one, "b", request=Request(memory_mib=100, tenant="t"))
    assert len(one.machine.state.learned_times) == 0


def test_devices_of_other_models_have_times_of_their_own(world: World) -> None:
    world.host("h1", device("d1", model="A"), device("d2", index=1, model="B"))
    for model in ("A", "B"):
        run(world, model, request=Request(models=(model,), workload="w", tenant="t"))
    found = world.machine.state.learned_times
    assert [model for model, _ in found.on_models("t", "w", ("B", "C", "A"))] == ["B", "A"]
    assert found.of("other", "w", "A") is None
    assert found.of("t", None, "A") is None


def test_a_snapshot_and_a_replay_have_the_same_times(one: World) -> None:
    run(one, held_s=5.0, loading_s=2.0)
    one.start()  # the fixture compares journal, replay and snapshot in addition
    assert learned(one).execution_s(0.95) == pytest.approx(3.0)
    one.ask(ops.Beat)


def test_quantiles_weigh_newer_observations_more() -> None:
    assert weighted_quantile((1.0,), 0.5) == 1.0
    assert weighted_quantile((3.0, 1.0, 2.0), 1.0) == 3.0
    assert weighted_quantile((3.0, 1.0, 2.0), 0.0) == 1.0
    older, newer = (10.0,) * 16, (1.0,) * 8
    assert weighted_quantile((*older, *newer), 0.5) == 1.0
    assert weighted_quantile((*newer, *older), 0.5) == 10.0


@pytest.mark.parametrize(
    ("starts", "part", "found"),
    [  # runs of (number, start in seconds, in a new sandbox); part of new ones; (quantile, start)
        ([(9, 1.0, None), (1, 9.0, None)], 0.0, {0.5: 1.0, 1.0: 9.0}),
        ([(8, 1.0, False)], 0.0, {0.5: 1.0, 1.0: 1.0}),
        ([(8, 9.0, True)], 1.0, {0.0: 9.0, 1.0: 9.0}),
        ([(3, 1.0, False), (1, 9.0, True)], 0.25, {0.7: 1.0, 0.8: 9.0}),
        # older than any of the newest observations, which is all that is known without the sandbox
        ([(1, 9.0, True), (39, 1.0, False)], 1 / 40, {0.95: 1.0, 0.99: 9.0}),
        ([(1, 9.0, None), (39, 1.0, None)], 0.0, {0.95: 1.0, 0.99: 1.0}),
        # their sizes within a kind, not their order, decide
        ([(2, 9.0, True), (2, 7.0, True), (4, 1.0, False)], 0.5, {0.4: 1.0, 0.6: 7.0, 0.9: 9.0}),
        # a warm pool forgets its first sandboxes
        ([(1, 9.0, True), (400, 1.0, False)], 0.0, {0.98: 1.0, 0.998: 1.0}),
    ],
)
def test_starts_of_new_and_of_used_sandboxes(
    starts: list[tuple[int, float, bool | None]], part: float, found: dict[float, float]
) -> None:
    times, key = LearnedTimes(), WorkloadOn("t", "w", "M")
    for number, start_s, new_sandbox in starts:
        for _ in range(number):
            times.learn(key, 5.0, None, start_s, new_sandbox=new_sandbox)
    learned = times.of(*key)
    assert learned is not None
    assert learned.new_part == pytest.approx(part, abs=0.001)
    assert {quantile: learned.start_s(quantile) for quantile in found} == found


def test_the_sandbox_of_a_function_is_learned_and_restored(one: World) -> None:
    for attempt, new_sandbox in (("a", True), ("b", False), ("c", None)):
        lease = one.granted(attempt, REQUEST)
        one.advance(2.0)
        one.told("h1", lease, "opened", new_sandbox=new_sandbox)
        one.told("h1", lease, "freed")
        one.told("h1", lease, "closed", reason=EndReason.DONE)
    lease = one.granted("d", REQUEST)
    one.told("h1", lease, "opened", new_sandbox=True)
    times = learned(one)
    assert (times.new_starts_s, times.starts_s) == ((2.0,), (2.0, 2.0))
    assert (times.new_part, times.sandboxes) == (0.5, 2)
    again = SchedulerMachine(one.budget, IdSource(1))
    for entry in one.machine.snapshot():
        again.apply(entry)
    assert again.state.leases[lease.id].new_sandbox is True
    assert again.snapshot() == one.machine.snapshot()


def test_the_observations_are_bounded_and_old_ones_leave() -> None:
    times = LearnedTimes()
    key = WorkloadOn("t", "w", "M")
    for _ in range(learned_times.OBSERVATIONS_MAX):
        times.learn(key, 9.0, 3.0)
    for _ in range(learned_times.OBSERVATIONS_MAX):
        times.learn(key, 2.0, 1.0)
    found = times.of(*key)
    assert found is not None
    assert (found.execution_s(1.0), found.loading_s(1.0)) == (1.0, 1.0)
    assert found.runs == 2 * learned_times.OBSERVATIONS_MAX
    assert times.starts() == {("t", "w"): (2 * learned_times.OBSERVATIONS_MAX, 0)}


def test_the_workload_without_observations_for_longest_is_forgotten(
    monkeypatch: MonkeyPatch,
) -> None:
    monkeypatch.setattr(learned_times, "WORKLOADS_MAX", 2)
    times = LearnedTimes()
    for name in ("a", "b", "a", "c"):
        times.learn(WorkloadOn("t", name, "M"), 1.0, None)
    assert [key.workload for key, _ in times.items()] == ["a", "c"]

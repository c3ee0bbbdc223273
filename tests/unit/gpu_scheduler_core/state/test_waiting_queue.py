"""The indexes of the queue equal plain lists after additions, removals, suspension, reordering."""

from collections.abc import Iterable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from corekit.ids import AttemptId, SessionId
from gpu_scheduler.core.state.request_class import (
    FirstByMemory,
    QueueKey,
    class_key,
    rounded_length_s,
)
from gpu_scheduler.core.state.waiting_queue import WaitingQueue
from gpu_scheduler.model import MEMORY_MIB_MAX, LeaseLifetime, Request
from gpu_scheduler.protocol.changes import Waiting

MEMORIES = (0, 1, 5, 16, 1000, 1024, 2**20, MEMORY_MIB_MAX, *range(2000, 2012))


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(MEMORIES), st.integers(0, 20), st.booleans())),
    st.sampled_from([(), range(4000, 4017)]),
)
def test_the_first_key_within_a_memory_is_found(
    steps: list[tuple[int, int, bool]], many: Iterable[int]
) -> None:
    heads = FirstByMemory()
    plain: dict[int, QueueKey] = {}
    for memory_mib, rank, put in [*((mib, 50, True) for mib in many), *steps]:
        new = (float(rank), 0.0, 0, f"{memory_mib}") if put else None
        heads.replace_first(memory_mib, plain.pop(memory_mib, None), new)
        if new is not None:
            plain[memory_mib] = new
        for most_mib in (-1, 0, 4, 15, 17, 1023, 1024, 2**30, MEMORY_MIB_MAX):
            below = [place for memory, place in plain.items() if memory <= most_mib]
            assert heads.first(most_mib) == min(below, default=None)
        assert bool(heads) is bool(plain)


def test_several_tenants_may_ask_for_the_same_memory() -> None:
    heads = FirstByMemory()
    heads.replace_first(7, None, (2.0, 0.0, 0, "b"))
    heads.replace_first(7, None, (1.0, 0.0, 0, "a"))
    assert heads.first(7) == (1.0, 0.0, 0, "a")
    heads.replace_first(7, (1.0, 0.0, 0, "a"), None)
    assert heads.minimum == (2.0, 0.0, 0, "b")


def waiting(
    attempt: str,
    memory_mib: int = 0,
    *,
    priority: int = 0,
    tenant: str = "t",
    since_s: float = 0.0,
    session: str | None = "s",
    **fields: Any,
) -> Waiting:
    request = Request(memory_mib=memory_mib, priority=priority, tenant=tenant)
    return Waiting(
        attempt=AttemptId(attempt),
        holder=None,
        request=request,
        waiting_since_s=since_s,
        session=None if session is None else SessionId(session),
        **fields,
    )


steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "drop", "park", "aside", "back", "bench", "unbench"]),
        st.integers(0, 7),
        st.sampled_from([0, 100, 100, 200]),
        st.sampled_from([0, 0, 3]),
        st.sampled_from("ab"),
        st.integers(0, 300),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(steps, st.sampled_from([None, 60.0]))
def test_the_queue_agrees_with_a_sorted_list(steps: list[Any], aging_s: float | None) -> None:
    queue = WaitingQueue(aging_s)
    for what, number, memory_mib, priority, tenant, since_s in steps:
        attempt = f"a{number}"
        known = queue.entries.get(attempt)
        match what:
            case "put" | "park":
                session = None if what == "park" else f"s{number % 2}"
                queue.put(
                    waiting(
                        attempt,
                        memory_mib,
                        priority=priority,
                        tenant=tenant,
                        session=session,
                        since_s=float(since_s),
                    )
                )
            case "drop":
                queue.drop(attempt)
            case "aside" if known is not None and not queue.is_ineligible(attempt):
                queue.mark_unresponsive(attempt)
            case "back":
                queue.mark_responsive(SessionId(f"s{number % 2}"))
            case "bench" if known is not None:
                queue.suspend(attempt)
            case "unbench":
                for line in queue.suspended(tenant):
                    queue.resume(line)
        _agrees(queue)
    queue.reorder(None if aging_s else 5.0)
    _agrees(queue)


def _agrees_by_workload(queue: WaitingQueue, served: Iterable[Waiting]) -> None:
    """Compare the index of workloads with groups that are made anew."""
    groups: dict[tuple[str, int], list[QueueKey]] = {}
    for one in served:
        name = one.request.tenant, one.request.memory_mib
        groups.setdefault(name, []).append(queue.queue_key(one))
    index = queue.by_workload()
    assert index.order == sorted(keys[0] for keys in groups.values())
    assert [index.by_first[key[3]].keys for key in index.order] == sorted(groups.values())
    assert len(index.by_first) == len(groups)
    by_size = {
        memory_mib: sorted(keys[0] for (_, size), keys in groups.items() if size == memory_mib)
        for memory_mib in sorted({memory_mib for _, memory_mib in groups})
    }
    classes = list(index.by_class.values())
    assert [of_class.firsts for of_class in classes] == ([by_size] if by_size else [])
    assert [of_class.sizes for of_class in classes] == ([list(by_size)] if by_size else [])


def _agrees(queue: WaitingQueue) -> None:
    served = [w for w in queue.entries.values() if not queue.is_ineligible(w.attempt)]
    served.sort(key=queue.queue_key)
    _agrees_by_workload(queue, served)
    assert queue.in_order()[: len(served)] == served
    for number, entry in enumerate(served, 1):
        assert queue.position(entry) == number
    suspended = {
        (line.tenant, line.request.memory_mib)
        for tenant in queue.suspended_tenants()
        for line in queue.suspended(tenant)
    }
    active = [w for w in served if (w.request.tenant, w.request.memory_mib) not in suspended]
    for most_mib in (0, 100, 150, 200):
        near = [w for w in active if w.request.memory_mib <= most_mib]
        assert queue.head(most_mib, lambda _: most_mib) == (near[0] if near else None)  # noqa: B023
        fitting = [queue.queue_key(w) for w in near]
        firsts = [heads.first(most_mib) for heads in queue.first_by_class.values()]
        assert min((f for f in firsts if f is not None), default=None) == min(fitting, default=None)
    for tenant in "ab":
        theirs = [queue.queue_key(w) for w in active if w.request.tenant == tenant]
        heads = queue.by_tenant.get(tenant, {}).values()
        assert min((h.minimum for h in heads), default=None) == min(theirs, default=None)


def test_an_empty_queue_has_empty_indexes() -> None:
    queue = WaitingQueue(60.0)
    for number in range(4):
        queue.put(waiting(f"a{number}", number * 100, tenant=f"t{number}"))
        queue.mark_dirty(f"a{number}")
    queue.suspend("a1", 1)
    queue.overtaken["a3"] = 1
    queue.mark_unresponsive("a2")
    for number in range(4):
        queue.drop(f"a{number}")
    left = [
        queue.entries,
        queue.by_session,
        queue.unresponsive,
        queue.first_by_class,
        queue.by_tenant,
        queue.dirty,
        queue.suspended_tenants(),
        queue.in_order(),
        queue.overtaken,
        queue.suspended_before(2),
    ]
    assert not any(left)


def test_waiting_outweighs_priority_by_aging_s() -> None:
    queue = WaitingQueue(60.0)
    queue.put(waiting("old", since_s=0.0))
    queue.put(waiting("urgent", since_s=119.0, priority=2))
    assert [w.attempt for w in queue.in_order()] == ["urgent", "old"]
    queue.put(waiting("urgent", since_s=121.0, priority=2))
    assert [w.attempt for w in queue.in_order()] == ["old", "urgent"]
    queue.reorder(None)
    assert [w.attempt for w in queue.in_order()] == ["urgent", "old"]


def test_lengths_are_rounded_up_a_little() -> None:
    for length_s in (0.5, 1.0, 59.0, 60.0, 3600.0, 86401.0):
        rounded_s = rounded_length_s(waiting("a", lease_s=length_s))
        assert rounded_s is not None
        assert length_s <= rounded_s <= 1.2 * length_s
    assert rounded_length_s(waiting("a")) is None
    keys = {
        class_key(waiting("a", lease_s=s, hold=LeaseLifetime.SESSION))
        for s in (3600.0, 3500.0, 4000.0)
    }
    assert len(keys) == 1


def test_requests_of_one_moment_are_served_in_the_order_of_their_arrival() -> None:
    names = ["a9", "a10", "a11", "b", "a"]
    queue = WaitingQueue()
    for name in names:
        queue.put(waiting(name))
    queue.put(waiting("a9"))  # replaced: it keeps its place
    assert [one.attempt for one in queue.servable()] == names
    again = WaitingQueue()
    for one in queue.in_order_of_arrival():
        again.put(one)
    assert [one.attempt for one in again.servable()] == names
    again.drop("a10")
    again.put(waiting("a10"))
    assert [one.attempt for one in again.servable()] == ["a9", "a11", "b", "a", "a10"]
    again.put(waiting("older", since_s=-1.0))
    assert next(again.servable()).attempt == "older"

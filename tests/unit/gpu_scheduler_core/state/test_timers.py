"""Timers by key: the earliest first, the newest of a key counts, outdated ones are bounded."""

from typing import Any

from gpu_scheduler.core.state.timers import TimerKind, Timers


def drain(timers: Timers, now_s: float) -> list[Any | str]:
    due = []
    while (key := timers.pop_due(now_s)) is not None:
        due.append(key[1])
    return due


def test_due_in_order_of_time() -> None:
    timers = Timers()
    for name, at_s in (("b", 2.0), ("a", 1.0), ("c", 3.0)):
        timers.arm(TimerKind.LEASE, name, at_s)
    assert timers.next_s() == 1.0
    assert drain(timers, 2.0) == ["a", "b"]
    assert timers.next_s() == 3.0


def test_the_newest_deadline_of_a_key_counts() -> None:
    timers = Timers()
    timers.arm(TimerKind.LEASE, "a", 1.0)
    timers.arm(TimerKind.LEASE, "a", 5.0)
    assert drain(timers, 4.0) == []
    timers.arm(TimerKind.LEASE, "a", 2.0)
    assert drain(timers, 4.0) == ["a"]
    assert timers.next_s() is None


def test_cancelling_affects_one_kind_only() -> None:
    timers = Timers()
    timers.arm(TimerKind.LEASE, "a", 1.0)
    timers.arm(TimerKind.WAIT, "a", 2.0)
    timers.cancel(TimerKind.LEASE, "a")
    timers.cancel(TimerKind.HOST, "never armed")
    assert drain(timers, 9.0) == ["a"]


def test_outdated_entries_are_bounded() -> None:
    timers = Timers()
    for at_s in range(10_000):
        timers.arm(TimerKind.LEASE, "a", float(at_s))
        timers.arm(TimerKind.LEASE, "b", 0.5)
    assert len(timers._heap) < 100
    assert drain(timers, 1.0) == ["b"]
    assert drain(timers, 9_999.0) == ["a"]

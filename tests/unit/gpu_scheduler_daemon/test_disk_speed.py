"""Where a put runs: in the event loop while the disk itself is fast, whatever else is slow."""

from __future__ import annotations

from itertools import pairwise

from gpu_scheduler.daemon.journal.disk_speed import (
    PROBE_RATIO,
    PROBE_S_MIN,
    DiskSpeed,
    ProcessorWait,
)


class Machine:
    """A clock, and how much of its time the thread waited for a processor."""

    def __init__(self) -> None:
        self.now_s = self.waited_s = 0.0
        self.speed = DiskSpeed(lambda: self.waited_s, lambda: self.now_s)

    def put(self, took_s: float, waited_s: float = 0.0) -> bool:
        """A put as the journal makes it; whether it ran in the event loop."""
        if not self.speed.is_prompt:
            self.now_s += took_s + waited_s
            return False
        with self.speed.measured():
            self.now_s += took_s + waited_s
            self.waited_s += waited_s
        return True


def test_a_fast_disk_stays_in_the_event_loop_on_a_machine_without_a_free_processor() -> None:
    machine = Machine()
    assert all(machine.put(2e-4, waited_s=0.01) for _ in range(100))


def test_a_slow_disk_leaves_the_event_loop() -> None:
    machine = Machine()
    where = [machine.put(0.005) for _ in range(20)]
    assert where[0]
    assert not any(where[4:])


def test_a_single_stall_changes_nothing() -> None:
    machine = Machine()
    assert all(machine.put(5.0 if number % 20 == 0 else 2e-4) for number in range(100))


def test_a_disk_that_was_slow_for_a_while_is_found_fast_again() -> None:
    machine = Machine()
    while machine.put(0.005):
        pass
    machine.now_s += PROBE_RATIO * 0.005 + PROBE_S_MIN
    assert all(machine.put(2e-4) for _ in range(10))


def test_a_slow_disk_is_tried_the_less_often_the_slower_it_is() -> None:
    machine = Machine()
    tried_s = [machine.now_s for _ in range(20_000) if machine.put(0.5)]
    assert tried_s[-1] > 5_000, "it is tried again and again"
    tries = list(pairwise(tried_s))[4:]  # the first ones find it slow
    assert all(later - sooner >= PROBE_RATIO * 0.5 for sooner, later in tries)


def test_the_time_that_a_thread_waited_for_a_processor_never_falls() -> None:
    wait = ProcessorWait()
    try:
        found_s = [wait() for _ in range(50)]
        assert found_s == sorted(found_s)
        assert found_s[0] >= 0.0
    finally:
        wait.close()

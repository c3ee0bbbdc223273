"""One overrun by x delays only the bookings behind it on its device, by x at the most."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.queue.bookings import Bookings
from gpu_scheduler.core.queue.view import View
from gpu_scheduler.model import Request
from gpu_scheduler.promises import PromisedStep, Slo, StepTimes
from gpu_scheduler.protocol import answers, ops
from tests.scheduler_world import EPOCH_S, World, device

WHOLE = Request(compute_guarantee_pct=100, memory_mib=100)


def booked(world: World, lengths: list[int]) -> dict[str, tuple[str, float, float]]:
    """Step → its device, its start, its length, of runs of one step each."""
    for number, length in enumerate(lengths):
        name = f"s{number}"
        times = {"*": StepTimes(execution_s=float(length))}
        step = PromisedStep(name=name, job=name, request=WHOLE, times=times)
        answer = world.ask(ops.Admit, run=name, steps=(step,), slo=Slo(latency_s=1000.0))
        assert answer.outcome is answers.Outcome.GRANTED
    state = world.machine.state
    bookings = Bookings(View(state, world.budget, world.now_s, EPOCH_S + world.now_s, {}))
    found = {}
    for job in bookings.jobs():
        booking = bookings.of(job)
        assert booking is not None
        start_s = booking.start_s - EPOCH_S - world.now_s
        found[job] = str(bookings.device_of(job)), start_s, booking.length_s
    return found


def starts(
    world: World, plan: dict[str, tuple[str, float, float]], over: str, x_s: float
) -> dict[str, float]:
    """The start of every step, if `over` runs for x_s longer than stated."""
    began_s = world.now_s
    ends: dict[str, float] = {}
    found: dict[str, float] = {}
    for step in plan:
        world.reserve(step, WHOLE)
    while len(found) < len(plan) or ends:
        for entry in list(world.machine.state.leases.values()):
            name = str(entry.lease.attempt)
            if name not in found:
                if not entry.accepted:
                    world.renew(entry.lease)
                world.told("h", entry.lease, "opened")
                found[name] = world.now_s - began_s
                ends[name] = world.now_s + plan[name][2] + (x_s if name == over else 0.0)
        next_s = min([*ends.values(), *([world.wake_s] if world.wake_s else [])])
        world.advance(max(0.0, next_s - world.now_s))
        for name in [name for name, end_s in ends.items() if end_s <= world.now_s + 1e-6]:
            del ends[name]
            for lease in world.leases:
                if lease.attempt == name:
                    world.told("h", lease, "closed")
    return found


@given(st.lists(st.integers(1, 5), min_size=2, max_size=7), st.integers(0, 6), st.floats(0.25, 8.0))
@settings(deadline=None, max_examples=40)
def test_an_overrun_delays_only_what_is_behind_it(
    lengths: list[int], chosen: int, x_s: float
) -> None:
    world = World(policy="slo")
    world.alive["s1"] = None
    world.host("h", device("d"), device("e", index=1))
    plan = booked(world, lengths)
    over = f"s{chosen % len(lengths)}"
    device_of_it, start_of_it, _ = plan[over]
    for name, at_s in starts(world, plan, over, x_s).items():
        where, start_s, _ = plan[name]
        behind = where == device_of_it and start_s > start_of_it
        assert at_s <= start_s + (x_s if behind else 0.0) + 1e-3, name

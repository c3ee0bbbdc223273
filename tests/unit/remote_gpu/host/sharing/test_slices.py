"""Turns on a device: shares, lent idle time, limits, waits; both tables played on our own clock.

What gpud decides (`host.slices`) meets what workers hold (`worker.turns`), with the time that a
message between them takes.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from corekit.ids import LeaseId
from remote_gpu.host.sharing.slices import (
    ASKED_MAX,
    GRACE_S,
    SLICE_S,
    Begin,
    Pause,
    Resume,
    TimeSlices,
    Until,
)
from remote_gpu.worker.turns import LINGER_S, Tokens, Waiter

HOP_S = 0.0001  #: until a message is read: a process wakes up
ONE, TWO = LeaseId("one"), LeaseId("two")


@dataclass
class Caller:
    """Calls one after the other: an operation of `op_s`, then a pause."""

    guarantee_pct: int
    limit_pct: int = 100
    op_s: float = 0.010
    pause_s: float = 0.0003  #: a round trip over the network
    late_every: int = 0  #: after as many calls the pause is a long one
    late_s: float = 0.0
    starts_s: float = 0.0
    work_s: float = float("inf")  #: device seconds until it is done
    used_s: float = 0.0
    finished_s: float | None = None
    longest_wait_s: float = 0.0
    messages: int = 0  #: that its worker sent
    spans: list[tuple[float, float]] = field(default_factory=list)


class Process:
    """A caller with its worker: one lane, one control thread; all of it stops at a pause."""

    def __init__(self, number: int, caller: Caller, play: Play) -> None:
        self.lease, self.caller, self.play = LeaseId(str(number)), caller, play
        self.tokens = Tokens(self.send)
        self.waiter: Waiter | None = None
        self.asked_s = self.since_s = 0.0
        self.left_s: float | None = None  #: of its operation
        self.ticket = self.round = self.calls = 0
        self.stopped = False
        self.held: list[Callable[[float], None]] = []  #: happens when it goes on
        play.at(caller.starts_s, self.call)

    def send(self, word: str, ticket: int) -> None:
        self.caller.messages += 1
        step: Any = getattr(self.play.table, word)
        self.play.at(
            self.play.now_s + HOP_S, lambda s: self.play.change(step, self.lease, ticket, s)
        )

    def awake(self, step: Callable[[float], None], now_s: float) -> None:
        self.held.append(step) if self.stopped else step(now_s)

    def call(self, now_s: float) -> None:
        self.awake(self.begin, now_s)

    def begin(self, now_s: float) -> None:
        self.asked_s, self.left_s = now_s, self.caller.op_s
        if ticket := self.tokens.pop() or self.tokens.take(now_s):
            self.run(ticket, now_s)
        else:
            self.waiter = Waiter()
            self.tokens.wait(self.waiter)

    def run(self, ticket: int, now_s: float) -> None:
        self.caller.longest_wait_s = max(self.caller.longest_wait_s, now_s - self.asked_s)
        self.ticket, self.waiter = ticket, None
        self.go_on(now_s)

    def go_on(self, now_s: float) -> None:
        assert self.left_s is not None
        self.since_s, self.round = now_s, self.round + 1
        this = self.round
        self.play.at(now_s + self.left_s, lambda s: self.finish(s) if self.round == this else None)

    def finish(self, now_s: float) -> None:
        caller = self.caller
        caller.spans.append((self.since_s, now_s))
        self.left_s = None
        caller.used_s += caller.op_s
        if caller.used_s < caller.work_s:
            self.calls += 1
            late = caller.late_every and self.calls % caller.late_every == 0
            self.play.at(now_s + (caller.late_s if late else caller.pause_s), self.call)
        else:
            caller.finished_s = now_s
        if self.tokens.push(self.ticket):
            self.tokens.settle(now_s)
        self.look(now_s)

    def ends_at(self, change: Begin | Until, now_s: float) -> None:
        until_s = math.inf if change.until_s is None else change.until_s
        if isinstance(change, Begin):
            self.tokens.granted(change.ticket, until_s, self.play.table.width, now_s)
        else:
            self.tokens.due(until_s, now_s)
        if self.waiter is not None and self.waiter.ticket:
            self.run(self.waiter.ticket, now_s)
        self.look(now_s)

    def look(self, now_s: float) -> None:
        self.tokens.look(now_s)
        if (look_s := self.tokens.next_look_s(now_s)) is not None:
            self.play.at(max(look_s, now_s + 1e-6), lambda s: self.awake(self.look, s), once=self)

    def stop(self, now_s: float) -> None:
        self.stopped = True
        if self.left_s is not None and self.waiter is None:
            self.left_s = max(0.0, self.left_s - (now_s - self.since_s))
            self.caller.spans.append((self.since_s, now_s))
            self.round += 1

    def resume(self, now_s: float) -> None:
        self.stopped = False
        if self.left_s is not None and self.waiter is None:
            self.go_on(now_s)
        held, self.held = self.held, []
        for step in held:
            step(now_s)


class Play:
    """Processes against one table, on a heap of moments."""

    def __init__(self, callers: list[Caller], width: int = 1) -> None:
        self.table, self.now_s = TimeSlices(width), 0.0
        self.events: list[tuple[float, int, Callable[[float], None], object]] = []
        self.order = itertools.count()
        self.looks: dict[object, int] = {}  #: the newest of each process; older ones are void
        self.processes = [Process(number, caller, self) for number, caller in enumerate(callers)]
        for process in self.processes:
            caller = process.caller
            self.table.join(process.lease, caller.guarantee_pct, caller.limit_pct)

    def at(self, moment_s: float, step: Callable[[float], None], once: object = None) -> None:
        number = next(self.order)
        if once is not None:
            self.looks[once] = number
        heapq.heappush(self.events, (moment_s, number, step, once))

    def until(self, until_s: float) -> None:
        while self.events and self.events[0][0] <= until_s:
            self.now_s, number, step, once = heapq.heappop(self.events)
            if once is None or self.looks[once] == number:
                step(self.now_s)

    def change(self, step: Any, *arguments: Any) -> None:
        for change in step(*arguments):
            process = self.processes[int(change.lease)]
            match change:
                case Pause():
                    process.stop(self.now_s)
                case Resume():
                    process.resume(self.now_s)
                case _:
                    self.deliver(process, change)
        if (wake_s := self.table.next_wake_s()) is not None:
            assert wake_s > self.now_s, "it was just looked at"
            self.at(wake_s, lambda s: self.change(self.table.wake, s), once=self)
        else:
            self.looks[self] = -1

    def deliver(self, process: Process, change: Begin | Until) -> None:
        self.at(
            self.now_s + HOP_S,
            lambda s: process.awake(lambda now_s: process.ends_at(change, now_s), s),
        )


def play(callers: list[Caller], until_s: float, width: int = 1) -> None:
    Play(callers, width).until(until_s)
    for caller in callers:  # what runs at the end has been used as well
        caller.used_s = max(caller.used_s, sum(b - a for a, b in caller.spans))


@pytest.mark.parametrize(("op_s", "seconds"), [(0.010, 20.0), (0.0004, 4.0)])
@pytest.mark.parametrize("tenants", [2, 4, 8])
def test_equal_shares_are_equal(tenants: int, op_s: float, seconds: float) -> None:
    """KNIX 7.3: means within 0.6 points of the share; at 8 tenants their spread below 0.13."""
    callers = [Caller(100 // tenants, op_s=op_s) for _ in range(tenants)]
    play(callers, seconds)
    shares = [100 * caller.used_s / sum(c.used_s for c in callers) for caller in callers]
    slice_points = 150 * (SLICE_S + op_s) / seconds  # of the last round some had none yet
    assert max(abs(share - 100 / tenants) for share in shares) <= max(0.6, slice_points)
    assert max(shares) - min(shares) < max(0.13, slice_points)


@pytest.mark.parametrize("ops", [(0.010, 0.010), (0.003, 0.020), (0.030, 0.004), (0.0004, 0.0004)])
def test_guarantees_hold_whatever_the_length_of_operations(ops: tuple[float, float]) -> None:
    large, small = Caller(90, op_s=ops[0]), Caller(10, op_s=ops[1])
    play([large, small], 2.0 if ops[0] < 0.001 else 20.0)
    device_s = [sum(b - a for a, b in c.spans) * (1 + c.pause_s / c.op_s) for c in (large, small)]
    # a caller's pause within its slice is its own
    assert device_s[0] / sum(device_s) >= 0.88


def test_idle_time_is_shared_until_its_owner_returns() -> None:
    """KNIX 7.4, times / 100: 0.1 from the start, 0.9 from 0.7 s on; each has 6.5 s of work."""
    small, large = Caller(10, work_s=6.50), Caller(90, starts_s=0.7, work_s=6.42)
    play([small, large], 60.0)
    assert small.finished_s is not None
    assert large.finished_s is not None
    gain = 1 - small.finished_s / (6.50 / 0.1)
    alone_s = 6.42 * (large.op_s + large.pause_s) / large.op_s
    penalty = (large.finished_s - 0.7) / (alone_s / 0.9) - 1
    assert gain >= 0.79
    assert penalty <= 0.03
    assert (small.used_s + large.used_s) / small.finished_s >= 0.95


def test_short_calls_lose_little_by_sharing() -> None:
    """Against a device of one's own: the pauses of a caller are its own there as well."""
    alone = Caller(100, op_s=0.0004, pause_s=0.0002)
    play([alone], 2.0)
    large, small = (Caller(pct, op_s=0.0004, pause_s=0.0002) for pct in (90, 10))
    play([large, small], 2.0)
    assert large.used_s / alone.used_s >= 0.9 * 0.98
    assert (large.used_s + small.used_s) / alone.used_s >= 0.97


def test_a_short_absence_costs_only_its_own_time() -> None:
    """A caller of nine tenths that its own host delays now and then keeps nine tenths of the rest.

    What it was owed when it went is owed when it is back: else each absence would cost it the 90 ms
    that it has before the other's slice, and this caller half of its device.
    """

    def late(pct: int) -> Caller:
        return Caller(pct, op_s=0.0005, pause_s=0.0002, late_every=100, late_s=0.010)

    alone = late(100)
    play([alone], 10.0)
    large, small = late(90), Caller(10, op_s=0.0005, pause_s=0.0002)
    play([large, small], 10.0)
    assert large.used_s / alone.used_s >= 0.88


def test_calls_within_a_slice_need_no_message() -> None:
    alone, idle = Caller(1), Caller(99, starts_s=100.0)
    play([alone, idle], 10.0)
    assert alone.messages == 1
    pair = [Caller(50, op_s=0.0002), Caller(50, op_s=0.0002)]
    play(pair, 1.0)
    assert all(caller.messages <= 2 * 1.0 / (2 * SLICE_S) + 2 for caller in pair)


def test_endless_operations_share_as_well() -> None:
    large, small = Caller(90, op_s=1000.0), Caller(10, op_s=0.004)
    play([large, small], 20.0)
    assert sum(b - a for a, b in large.spans) / 20.0 >= 0.87
    assert small.used_s / 20.0 >= 0.08
    assert small.longest_wait_s < 0.2


def test_a_limit_stops_an_endless_operation() -> None:
    limited = Caller(10, limit_pct=25, op_s=1000.0)
    play([limited], 10.0)
    assert 0.24 <= sum(b - a for a, b in limited.spans) / 10.0 <= 0.26


def test_alone_a_lease_has_the_whole_device() -> None:
    alone = Caller(1)
    play([alone, Caller(99, starts_s=100.0)], 10.0)
    assert alone.used_s >= 10.0 * 0.010 / 0.0103 - 0.02


@pytest.mark.parametrize("op_s", [0.010, 0.0010])
def test_a_limit_holds_even_when_the_device_is_idle(op_s: float) -> None:
    limited = Caller(10, limit_pct=25, op_s=op_s, pause_s=op_s / 50)
    play([limited], 10.0)
    assert 0.235 <= limited.used_s / 10.0 <= 0.2525


def test_idle_time_earns_no_credit() -> None:
    late, steady = Caller(50, starts_s=30.0), Caller(50)
    play([late, steady], 40.0)
    assert late.used_s == pytest.approx(5.0, abs=0.15)  # and both lose their pauses


def test_a_slow_caller_does_not_delay_others() -> None:
    slow, quick = Caller(50, pause_s=0.050), Caller(50)
    play([slow, quick], 10.0)
    assert (slow.used_s + quick.used_s) / 10.0 >= 0.95
    assert slow.longest_wait_s <= 0.010 + GRACE_S + 4 * HOP_S  # the holder's present launch


def test_as_many_turns_as_the_device_is_wide() -> None:
    callers = [Caller(25) for _ in range(4)]
    play(callers, 10.0, width=2)
    assert sum(c.used_s for c in callers) >= 0.95 * 20.0
    shares = [c.used_s / 20.0 for c in callers]
    assert max(shares) - min(shares) < 0.01


def table_of_two(width: int = 1) -> TimeSlices:
    table = TimeSlices(width)
    for name in (ONE, TWO):
        table.join(name, 50, 100)
    return table


def test_leaving_frees_the_device_and_asking_twice_is_two_turns() -> None:
    table = table_of_two()
    assert table.ask(ONE, 1, 0.0) == [Begin(ONE, 1, None)]
    assert table.ask(ONE, 2, 0.0) == []
    assert table.ask(TWO, 1, 0.0) == [Until(ONE, SLICE_S)]
    assert table.leave(ONE, 0.005) == [Begin(TWO, 1, None)]
    assert table.leave(ONE, 0.005) == []
    assert table.done(ONE, 1, 0.006) == []
    assert table.done(TWO, 1, 0.007) == []
    assert table.next_wake_s() is None


def test_invalid_requests_of_a_worker_change_nothing() -> None:
    """It would end the process of another lease, or lose count of the device's tokens."""
    table = table_of_two(width=2)
    assert table.ask(ONE, 1, 0.0) == [Begin(ONE, 1, None)]
    lies: tuple[Any, ...] = (1, [], None, True, 1.5, "1")  # as of JSON
    for lie in lies:
        with pytest.raises(ValueError, match="ticket"):
            table.ask(ONE, lie, 0.0)
    for ticket in range(2, ASKED_MAX + 1):
        table.ask(ONE, ticket, 0.0)
    with pytest.raises(ValueError, match="64 tokens"):
        table.ask(ONE, ASKED_MAX + 1, 0.0)
    table.leave(ONE, 0.001)
    assert table.ask(TWO, 1, 0.002) == [Begin(TWO, 1, None)]
    assert table.ask(TWO, 2, 0.002) == [Begin(TWO, 2, None)]


def test_an_overdue_holder_is_paused_until_it_gives_back() -> None:
    table = table_of_two()
    table.ask(ONE, 1, 0.0)
    assert table.ask(TWO, 1, 0.001) == [Until(ONE, SLICE_S)]
    late_s = table.next_wake_s()
    assert late_s == SLICE_S + GRACE_S
    end_s = 2 * late_s - 0.001  # it owes nothing for the time before it came
    pause, begin = table.wake(late_s)
    assert pause == Pause(ONE)
    assert isinstance(begin, Begin)
    assert begin == Begin(TWO, 1, begin.until_s)
    assert begin.until_s == pytest.approx(end_s)
    assert table.done(ONE, 1, late_s + 0.0001) == [Resume(ONE)]
    assert table.done(TWO, 1, late_s + 0.001) == []


def test_a_long_holder_gives_back_at_once() -> None:
    table = table_of_two()
    table.ask(ONE, 1, 0.0)
    assert table.ask(TWO, 1, 5.0) == [Until(ONE, 5.0)]
    assert table.done(ONE, 1, 5.001) == [Begin(TWO, 1, 5.001 + SLICE_S)]
    # ... and is expected back: the end of the slice that began is known beforehand
    assert table.ask(ONE, 2, 5.0015) == []
    assert table.done(TWO, 1, 5.012) == [Begin(ONE, 2, 5.012 + SLICE_S)]


def test_a_paused_operation_resumes_with_a_new_slice() -> None:
    table = table_of_two()
    table.ask(ONE, 1, 0.0)
    table.ask(TWO, 1, 0.0)
    table.wake(SLICE_S + GRACE_S)
    assert table.done(TWO, 1, 0.025) == [Until(ONE, 0.025 + SLICE_S), Resume(ONE)]


def test_a_withdrawn_request_gets_no_token() -> None:
    table = table_of_two()
    table.ask(ONE, 1, 0.0)
    table.ask(TWO, 7, 0.0)
    assert table.done(TWO, 7, 0.1) == []
    assert table.done(ONE, 1, 0.2) == []


def test_a_new_limit_holds_for_the_present_slice() -> None:
    table = table_of_two()
    table.ask(ONE, 1, 0.0)
    table.join(ONE, 50, 60)
    assert table.wake(0.004) == [Until(ONE, SLICE_S)]


@given(
    st.lists(
        st.tuples(
            st.integers(1, 50),
            st.sampled_from([0.0005, 0.002, 0.01, 0.05]),
            st.sampled_from([0.0003, 0.0015, 0.02]),
        ),
        min_size=2,
        max_size=6,
    ),
    st.integers(1, 3),
)
@settings(max_examples=20, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_tokens_are_bounded_and_no_lease_starves(
    tenants: list[tuple[int, float, float]], width: int
) -> None:
    callers = [Caller(share, op_s=op_s, pause_s=pause_s) for share, op_s, pause_s in tenants]
    play(callers, 1.0, width)
    edges = [
        edge
        for caller in callers
        for begin_s, end_s in caller.spans
        for edge in ((begin_s, 1), (end_s, -1))
    ]
    running, most = 0, 0
    for _, change in sorted(edges):
        running += change
        most = max(most, running)
    assert most <= width
    total = sum(c.guarantee_pct for c in callers)
    for caller in callers:
        # what its own slice costs everybody else, and one slice of each before it
        bound_s = (SLICE_S + GRACE_S + LINGER_S + caller.op_s) * total / caller.guarantee_pct
        bound_s += (len(callers) + 2) * (SLICE_S + GRACE_S + LINGER_S)
        assert caller.longest_wait_s <= bound_s


STEP = st.tuples(
    st.sampled_from(["ask", "done", "wake", "leave", "resize"]),
    st.integers(0, 3),  # lease
    st.sampled_from([0.0, 0.0003, 0.004, 0.013, 0.2]),  # since the step before
)


@given(st.lists(STEP, max_size=60), st.integers(1, 2))
@settings(max_examples=40, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_any_order_of_events_keeps_the_table_consistent(
    steps: list[tuple[str, int, float]], width: int
) -> None:
    """Tokens are given once, never too many, and no lease waits beside an idle device."""
    table, now_s, tickets = TimeSlices(width), 0.0, itertools.count(1)
    names = [LeaseId(str(number)) for number in range(4)]
    waiting: dict[LeaseId, list[int]] = {name: [] for name in names}
    running: dict[LeaseId, list[int]] = {name: [] for name in names}
    paused: set[LeaseId] = set()
    for name in names:
        table.join(name, 20, 100)
    for what, number, later_s in steps:
        name, now_s = names[number], now_s + later_s
        match what:
            case "ask":
                waiting[name].append(next(tickets))
                changes = table.ask(name, waiting[name][-1], now_s)
            case "done" if running[name]:
                changes = table.done(name, running[name].pop(), now_s)
            case "leave":
                changes = table.leave(name, now_s)
                waiting[name], running[name] = [], []
                paused.discard(name)
                table.join(name, 20, 100)
            case "resize":
                table.join(name, 40, 100)
                changes = table.wake(now_s)
            case _:
                changes = table.wake(now_s)
        for change in changes:
            match change:
                case Begin():
                    assert change.lease not in paused
                    waiting[change.lease].remove(change.ticket)
                    running[change.lease].append(change.ticket)
                case Pause():
                    assert running[change.lease]
                    assert change.lease not in paused
                    paused.add(change.lease)
                case Resume():
                    paused.remove(change.lease)
        used = sum(len(running[name]) for name in names if name not in paused)
        assert used <= 2 * width - 1  # who was stopped goes on with all of its tokens
        assert used >= width or not any(waiting.values())
        assert used >= width or not paused
        wake_s = table.next_wake_s()
        assert wake_s is None or wake_s > now_s

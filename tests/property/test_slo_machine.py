"""Promises under arbitrary arrivals: none is missed while times are as stated; a restart keeps all.

Steps run exactly as long as stated. The scheduler is replayed from its journal at any moment, hosts
and sessions report again, and ordinary requests come and go between the promised ones.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from corekit.ids import DeviceId
from corekit.values import replace
from gpu_scheduler.core.queue.bookings import Bookings
from gpu_scheduler.core.queue.view import View
from gpu_scheduler.model import Batch, Request
from gpu_scheduler.promises import PromisedStep, Slo, StepTimes
from gpu_scheduler.protocol import answers, ops
from tests.scheduler_world import World, device

DEVICES = ("d0", "d1", "d2")
BATCH = Batch(joins=True, size_max=4)
SHAPES: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((),),
    ((), (0,)),
    ((), (0,), (0,), (1, 2)),
    ((), (), (0, 1)),
)


class Promises(RuleBasedStateMachine):
    """A core, the runs that it promised, and leases that last as long as their steps."""

    @initialize(pick=st.sampled_from(["lightest", "random", "earliest", "cheapest"]))
    def begin(self, pick: str) -> None:
        self.world = World(policy="slo")
        self.world.alive["s1"] = None
        self._join()
        self.world.ask(ops.SetParameter, name="policy.slo.pick", value=pick)
        self.number = 0
        #: Run → when it is due; step → run, time, steps before it.
        self.due: dict[str, float] = {}
        self.steps: dict[str, tuple[str, float, tuple[str, ...]]] = {}
        self.asked: dict[str, None] = {}
        self.over: dict[str, float] = {}
        self.ends: dict[str, float] = {}  #: attempt → end of its work
        self.ways: dict[str, float] = {}  #: step → its way
        self.requests: dict[str, Request] = {}  #: of steps
        self.due_ways: dict[str, float] = {}  #: step → when its way is over
        self.local: dict[str, None] = {}  #: steps without a device

    def _join(self) -> None:
        self.world.host("h", *(device(one, index=i) for i, one in enumerate(DEVICES)))

    # ------------------------------------------------------------------ what happens

    @rule(
        shape=st.sampled_from(SHAPES),
        tenths=st.lists(st.integers(1, 30), min_size=4, max_size=4),
        compute=st.sampled_from([100, 50]),
        memory=st.sampled_from([100, 600]),
        slack=st.sampled_from([1.0, 1.5, 4.0]),
        way=st.sampled_from([0.0, 0.0, 0.3]),
        local=st.sampled_from([None, None, 0, 1]),
        batched=st.booleans(),
    )
    def admit(
        self,
        shape: tuple[tuple[int, ...], ...],
        tenths: list[int],
        compute: int,
        memory: int,
        slack: float,
        way: float,
        local: int | None,
        *,
        batched: bool,
    ) -> None:
        """A run; one of its steps may need no device, and others may join a batch."""
        self.number += 1
        run = f"r{self.number}"
        request = Request(compute_guarantee_pct=compute, memory_mib=memory)
        if batched:
            request = Request(compute_guarantee_pct=20, memory_mib=100, workload="w", batch=BATCH)
        names = [f"{run}.{i}" for i in range(len(shape))]
        ends: list[float] = []
        for i, after in enumerate(shape):
            own_s = (0.0 if i == local else tenths[i] / 10) + way
            ends.append(own_s + max((ends[k] for k in after), default=0.0))
        stated = StepTimes(execution_s=1.0, batch_item_s=0.5 if batched else None)
        times = [replace(stated, execution_s=one / 10) for one in tenths]
        steps = tuple(
            PromisedStep(
                name=names[i],
                job=names[i],
                request=Request(count=0) if i == local else request,
                after=tuple(names[k] for k in after),
                times={} if i == local else {"*": times[i]},
                way_s=way,
            )
            for i, after in enumerate(shape)
        )
        slo = Slo(latency_s=slack * max(0.1, *ends))
        before = self.world.machine.snapshot()
        answer = self.world.ask(ops.Admit, run=run, steps=steps, slo=slo)
        if answer.outcome is not answers.Outcome.GRANTED:
            assert self.world.machine.snapshot() == before
            return
        self.due[run] = self.world.now_s + slack * max(0.1, *ends)
        for i, step in enumerate(steps):
            own_s = 0.0 if i == local else tenths[i] / 10
            self.steps[step.job] = run, own_s, step.after
            self.ways[step.job], self.requests[step.job] = way, step.request
            if i == local:
                self.local[step.job] = None
        self._request_ready()

    @rule(seconds=st.integers(1, 40), stated=st.booleans())
    def ordinary(self, seconds: int, stated: bool) -> None:
        self.number += 1
        name = f"o{self.number}"
        lease_s = seconds / 10 if stated else None
        self.steps[name] = "", seconds / 10, ()
        self._reserve(name, Request(compute_guarantee_pct=100, memory_mib=100), lease_s)

    @rule()
    def restart(self) -> None:
        before = dict(self.world.machine.state.memory.values)
        leases = [lease.id for lease in self.world.leases]
        self.world.start()
        assert dict(self.world.machine.state.memory.values) == before
        self.world.hosts.clear()
        self._rejoin()
        assert [lease.id for lease in self.world.leases] == leases
        self._grant()

    @rule(tenths=st.integers(1, 20))
    def wait(self, tenths: int) -> None:
        until_s = self.world.now_s + tenths / 10
        while True:
            moments = (*self.ends.values(), *self.due_ways.values())
            next_s = min((end for end in moments if end <= until_s), default=None)
            step_s = (until_s if next_s is None else next_s) - self.world.now_s
            if self.world.wake_s is not None:
                step_s = min(step_s, max(0.0, self.world.wake_s - self.world.now_s) + 1e-9)
            self.world.advance(max(0.0, step_s))
            self._grant()
            self._end_due()
            self._request_ready()
            if next_s is None and self.world.now_s >= until_s - 1e-6:
                return

    # ------------------------------------------------------------------ the system around it

    def _rejoin(self) -> None:
        devices = tuple(device(one, index=i) for i, one in enumerate(DEVICES))
        live = tuple(lease.id for lease in self.world.leases)
        self.world.host("h", *devices, installed=live, epoch_seen=self.world.runs - 1)
        self.world.beat()

    def _reserve(self, name: str, request: Request, lease_s: float | None = None) -> None:
        self.asked[name] = None
        self.world.reserve(name, request, lease_s=lease_s)
        self._grant()

    def _grant(self) -> None:
        """A lease that is granted begins its work at once."""
        for entry in list(self.world.machine.state.leases.values()):
            attempt = entry.lease.attempt
            if attempt not in self.ends:
                if not entry.accepted:
                    self.world.renew(entry.lease)
                self.world.told("h", entry.lease, "opened")
                booking = self._bookings().of(attempt)
                length_s = self.steps[attempt][1]
                if booking is not None:  # a batch lasts longer with each member
                    length_s = max(length_s, booking.end_s - booking.start_s)
                self.ends[attempt] = self.world.now_s + length_s

    def _end_due(self) -> None:
        for attempt, end_s in sorted(self.ends.items(), key=lambda one: one[1]):
            if end_s > self.world.now_s + 1e-6:
                return
            del self.ends[attempt]
            for lease in self.world.leases:
                if lease.attempt == attempt:
                    self.world.told("h", lease, "closed")
            self.over[attempt] = self.world.now_s
            self._grant()
            self._request_ready()

    def _request_ready(self) -> None:
        """A step whose way is over requests its device, or has ended if it needs none."""
        for name, (_, _, after) in list(self.steps.items()):
            if name in self.asked or name in self.over:
                continue
            if not all(one in self.over for one in after):
                continue
            due_s = self.due_ways.setdefault(name, self.world.now_s + self.ways.get(name, 0.0))
            if due_s > self.world.now_s + 1e-6:
                continue
            del self.due_ways[name]
            if name in self.local:
                self.over[name] = self.world.now_s
                self._request_ready()
                return
            assert self._bookings().of(name) is not None, f"{name} lost its booking"
            self._reserve(name, self.requests[name])

    def _bookings(self) -> Bookings:
        machine, now_s = self.world.machine, self.world.now_s
        view = View(machine.state, self.world.budget, now_s, 1_000_000.0 + now_s, {})
        return Bookings(view)

    # ------------------------------------------------------------------ what holds

    @invariant()
    def no_promise_is_missed(self) -> None:
        if not hasattr(self, "world"):
            return
        for name, end_s in self.over.items():
            run = self.steps[name][0]
            assert not run or end_s <= self.due[run] + 1e-3, f"{name} ended late"
        missed = [one for one in self.world.machine.state.memory.values if "missed" in one]
        assert missed == []

    @invariant()
    def no_device_is_booked_beyond_its_size(self) -> None:
        if not hasattr(self, "world"):
            return
        bookings = self._bookings()
        for name in DEVICES:
            calendar = bookings.calendar(DeviceId(name))
            for moment in [use.start_s for use in calendar.uses]:
                at_once = [
                    use
                    for use in calendar.uses
                    if use.start_s <= moment + 1e-5 and use.end_s > moment + 1e-4
                ]
                assert sum(use.need.permille for use in at_once) <= 1000, (name, at_once)
                assert sum(use.need.memory_mib for use in at_once) <= 1000, (name, at_once)


Promises.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestPromises = Promises.TestCase

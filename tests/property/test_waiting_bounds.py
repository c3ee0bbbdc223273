"""Every policy's stated bound on waiting, against whatever stream of requests passes by.

The bound (policies/fifo.py): with k requests before it by place and no lease longer than L, a
request that the devices can hold waits at most (k + 1) × (bypass_max + 2) × L.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corekit.budget import Budget
from corekit.ids import DeviceId, HostId, IdSource, SessionId
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.core.invariants import check
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.model import Device, DeviceKind, Hold, Placement, Request, Sharing
from gpu_scheduler.parameters import Parameters, PolicyName

LONGEST_S = 16.0
MEMORY_MIB = 1000
#: Nobody is silent here: what is judged is the queue.
PATIENT = dataclasses.replace(
    Budget(), client_gone_s=1e9, host_stale_s=1e9, host_lost_s=2e9, accept_s=1.0
)


class Pool:
    """One host, and sessions that take every grant at once and keep it for its whole length."""

    def __init__(self, devices: int, parameters: Parameters) -> None:
        self.machine = SchedulerMachine(PATIENT, IdSource(1), parameters)
        self.now_s = 0.0
        self.wake_s: float | None = None
        self.asked = 0
        self.granted: dict[str, float] = {}
        self.happen(on.EpochBegan)
        those = tuple(
            Device(
                id=DeviceId(f"d{i}"), index=i, kind=DeviceKind.CUDA, model="M",
                memory_mib=MEMORY_MIB,
            )
            for i in range(devices)
        )  # fmt: skip
        self.happen(
            on.HostHello, host=HostId("h"), reply_to="h", incarnation="1", gateway="h:1",
            devices=those, epoch_seen=0, installed=(),
        )  # fmt: skip

    def happen(self, event: type[Any], **fields: Any) -> None:
        decision = self.machine.handle(event(at_s=self.now_s, wall_s=1e6 + self.now_s, **fields))
        taken = []
        for action in decision.actions:
            match action:
                case do.WakeAt():
                    self.wake_s = action.at_s
                case do.PushToSession(push=do.GrantedPush(attempt=attempt, granted=granted)):
                    self.granted[attempt] = self.now_s
                    taken.append(granted.lease.id)
                case do.Reply(answer=do.AttemptAnswer(granted=do.Granted(lease=lease))):
                    self.granted[lease.attempt] = self.now_s
        for lease in taken:
            self.happen(on.RenewAsked, session=SessionId("s"), reply_to="r", lease=lease)

    def ask(self, request: Request, attempt: str | None = None) -> None:
        self.asked += 1
        self.happen(
            on.ReserveAsked, session=SessionId("s"), reply_to="r", request=request, wait=True,
            attempt=attempt or f"a{self.asked}", hold=Hold.DEADLINE, lease_s=None,
        )  # fmt: skip

    def advance(self, until_s: float) -> None:
        while self.wake_s is not None and self.wake_s <= until_s:
            self.now_s, self.wake_s = max(self.now_s, self.wake_s), None
            self.happen(on.Ticked)
        self.now_s = until_s


requests = st.builds(
    Request,
    memory_mib=st.sampled_from([100, 300, 500, 1000]),
    compute_guarantee_pct=st.sampled_from([0, 50]),
    tenant=st.sampled_from("ab"),
    lease_s=st.sampled_from([1.0, 8.0, LONGEST_S]),
)
targets = st.sampled_from(
    [
        Request(sharing=Sharing.EXCLUSIVE, tenant="a", lease_s=1.0),
        Request(sharing=Sharing.EXCLUSIVE, count=2, tenant="a", lease_s=1.0),
        Request(memory_mib=900, count=2, placement=Placement.SAME_HOST, tenant="a", lease_s=1.0),
        Request(memory_mib=1000, tenant="b", lease_s=1.0),
    ]
)


@pytest.mark.parametrize("policy", PolicyName)
@settings(max_examples=12, deadline=None)
@given(
    target=targets,
    before=st.lists(requests, max_size=5),
    stream=st.lists(
        st.tuples(requests, st.sampled_from([0.5, 2.0, 6.0])), min_size=1, max_size=6
    ),
    bypass_max=st.integers(0, 2),
)  # fmt: skip
def test_nobody_waits_longer_than_is_stated(policy, target, before, stream, bypass_max):
    pool = Pool(2, Parameters(policy=policy, bypass_max=bypass_max))
    for request in before:
        pool.ask(request)
    asked_s = pool.now_s = pool.now_s + 0.1
    pool.ask(target, "target")
    waiting = pool.machine.state.queue.entries.get("target")
    ahead = 0 if waiting is None else (pool.machine.state.queue.position(waiting) or 1) - 1
    # a grant is taken at once, and begins then: no lease lasts longer than its length
    bound_s = (ahead + 1) * (bypass_max + 2) * LONGEST_S
    while "target" not in pool.granted:
        for request, pause_s in stream:
            pool.advance(pool.now_s + pause_s)
            pool.ask(request)
        assert check(pool.machine.state) == []
        assert pool.now_s - asked_s <= bound_s + sum(pause_s for _, pause_s in stream)
    assert pool.granted["target"] - asked_s <= bound_s


def served_within(aging_s: float | None, rounds: int) -> bool:
    """One patient request against a stream of urgent ones that never lets the device free."""
    pool = Pool(1, Parameters(aging_s=aging_s, bypass_max=1))
    urgent = Request(sharing=Sharing.EXCLUSIVE, priority=1, lease_s=2.0)
    pool.ask(urgent)
    pool.now_s += 0.1
    pool.ask(Request(sharing=Sharing.EXCLUSIVE, lease_s=2.0), "patient")
    for _ in range(rounds):
        pool.ask(urgent)
        pool.advance(pool.now_s + 1.9)
    return "patient" in pool.granted


def test_without_aging_a_lower_priority_starves():
    assert not served_within(None, rounds=100)


def test_with_aging_it_is_served_in_its_time():
    assert served_within(30.0, rounds=20)
    assert not served_within(60.0, rounds=20)


@settings(max_examples=12, deadline=None)
@given(
    stream=st.lists(
        st.tuples(requests, st.sampled_from([0.5, 2.0, 6.0])), min_size=1, max_size=6
    ),
)  # fmt: skip
def test_the_head_starts_no_later_than_backfill_foresaw(stream):
    pool = Pool(2, Parameters(policy=PolicyName.BACKFILL, bypass_max=0))
    pool.ask(Request(sharing=Sharing.EXCLUSIVE, lease_s=LONGEST_S))
    pool.ask(Request(memory_mib=500, lease_s=8.0))
    pool.ask(Request(sharing=Sharing.EXCLUSIVE, count=2, lease_s=1.0), "head")
    while "head" not in pool.granted:
        for request, pause_s in stream:
            pool.advance(pool.now_s + pause_s)
            pool.ask(request)
        assert pool.now_s <= 10 * LONGEST_S
    assert pool.granted["head"] <= LONGEST_S + PATIENT.accept_s

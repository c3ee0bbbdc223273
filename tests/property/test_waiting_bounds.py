"""The common bound on waiting of the policies that order, against any stream of requests.

The bound (policies/fifo.py): with k requests before it by place and no lease longer than L, a
request that the devices can hold waits at most (k + 1) × (bypass_max + 2) × L.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corekit.ids import HostId
from corekit.values import replace
from gpu_scheduler.model import DeviceKind, Placement, Request, Sharing
from gpu_scheduler.parameters import Parameters, Quota
from gpu_scheduler.policy_registry import installed_policies
from gpu_scheduler.protocol import ops
from simulator.invariants import check
from simulator.workloads.devices import hosts_of
from simulator.workloads.engine import PATIENT
from simulator.workloads.model import HostSpec
from tests.pool import DEVICE_MIB, Pool

LONGEST_S = 16.0
FOR_EVER_S = 1e9

requests = st.builds(
    Request,
    memory_mib=st.sampled_from([100, 300, 500, 1000]),
    compute_guarantee_pct=st.sampled_from([0, 50]),
    tenant=st.sampled_from("ab"),
    lease_s=st.sampled_from([None, 1.0, 8.0, LONGEST_S]),
)
#: Nobody serves these before the target: their device is drained, or their own quota forbids it.
SHIELDS = (
    Request(sharing=Sharing.EXCLUSIVE, kinds=(DeviceKind.CPU,)),
    Request(sharing=Sharing.EXCLUSIVE, kinds=(DeviceKind.CUDA,), tenant="q"),
)
targets = st.sampled_from(
    [
        Request(sharing=Sharing.EXCLUSIVE, tenant="a", lease_s=1.0),
        Request(sharing=Sharing.EXCLUSIVE, count=2, tenant="a", lease_s=1.0),
        Request(memory_mib=900, count=2, placement=Placement.SAME_HOST, tenant="a", lease_s=1.0),
        Request(memory_mib=1000, tenant="b", lease_s=1.0),
    ]
)


def shielded(pool: Pool) -> Pool:
    """A pool with a third device out of service, and a lease of tenant q without an end."""
    away = HostSpec(name="away", kind=DeviceKind.CPU.value, memory_mib=DEVICE_MIB)
    for host in hosts_of([away]):
        pool.add_host(host)
    pool.hold(Request(memory_mib=500, kinds=(DeviceKind.CPU,), tenant="q"), FOR_EVER_S)
    pool.ask_op(ops.Drain(host=HostId("away")))
    return pool


#: Policies that only order; the dispatcher keeps their common bound.
ORDERING = [name for name, one in installed_policies().items() if one.orders]


@pytest.mark.parametrize("policy", ORDERING)
@settings(max_examples=12)
@given(
    target=targets,
    before=st.lists(requests, max_size=5),
    shields=st.lists(st.sampled_from(SHIELDS), max_size=2),
    stream=st.lists(st.tuples(requests, st.sampled_from([0.5, 2.0, 6.0])), min_size=1, max_size=6),
    bypass_max=st.integers(0, 2),
)
def test_no_request_waits_beyond_the_stated_bound(
    policy: str,
    target: Request,
    before: list[Request],
    shields: list[Request],
    stream: list[tuple[Request, float]],
    bypass_max: int,
) -> None:
    quotas = {"q": Quota(memory_mib=DEVICE_MIB + 100)}
    pool = shielded(Pool(2, Parameters(policy=policy, bypass_max=bypass_max, quotas=quotas)))
    for request in (*before, *shields):
        pool.hold(request, LONGEST_S)
    pool.advance(0.1)
    use = pool.hold(target, LONGEST_S)
    bound_s = pool.bound_s(use, LONGEST_S)
    while use.granted_s is None:
        for request, pause_s in stream:
            pool.advance(pool.now_s + pause_s)
            pool.hold(request, LONGEST_S)
        assert check(pool.machine.state) == []
        assert pool.now_s - use.asked_s <= bound_s + sum(pause_s for _, pause_s in stream)
    assert use.waited_s <= bound_s


OVERDUE_S = 20.0


@pytest.mark.parametrize("policy", ["sticky", "fair_sticky"])
@settings(max_examples=25)
@given(
    target=targets,
    before=st.lists(requests, max_size=4),
    stream=st.lists(
        st.tuples(requests, st.sampled_from(["", "v", "w"]), st.sampled_from([0.5, 2.0, 6.0])),
        min_size=1,
        max_size=6,
    ),
)
def test_no_request_waits_longer_than_overdue(
    policy: str,
    target: Request,
    before: list[Request],
    stream: list[tuple[Request, str, float]],
) -> None:
    """The bound of `sticky`: overdue_s + (k + 1) × L, with k requests before it."""
    parameters = {f"{policy}.overdue_s": OVERDUE_S}
    pool = Pool(2, Parameters(policy=policy, policy_parameters=parameters))
    for request in before:
        pool.hold(request, LONGEST_S)
    pool.advance(0.1)
    job = pool.hold(target, LONGEST_S)
    bound_s = OVERDUE_S + (pool.ahead.get(job.attempt, 0) + 1) * LONGEST_S
    while job.granted_s is None:
        for request, workload, pause_s in stream:
            pool.advance(pool.now_s + pause_s)
            pool.hold(replace(request, workload=workload or None), LONGEST_S)
        assert check(pool.machine.state) == []
        assert pool.now_s - job.asked_s <= bound_s + sum(pause_s for _, _, pause_s in stream)
    assert job.waited_s <= bound_s


def served_within(aging_s: float | None, rounds: int) -> bool:
    """One request of low priority against a stream of high ones that never frees the device."""
    pool = Pool(1, Parameters(aging_s=aging_s, bypass_max=1))
    urgent = Request(sharing=Sharing.EXCLUSIVE, priority=1)
    pool.hold(urgent, 2.0)
    pool.advance(0.1)
    patient = pool.hold(Request(sharing=Sharing.EXCLUSIVE), 2.0)
    for _ in range(rounds):
        pool.hold(urgent, 2.0)
        pool.advance(pool.now_s + 1.9)
    return patient.granted_s is not None


def test_without_aging_a_lower_priority_starves() -> None:
    assert not served_within(None, rounds=100)


def test_with_aging_a_lower_priority_is_served() -> None:
    assert served_within(30.0, rounds=20)
    assert not served_within(60.0, rounds=20)


def test_a_tenant_at_its_quota_may_delay_its_own_large_request() -> None:
    """The bound holds while the quota has room: small requests leave none for the large one."""
    pool = Pool(2, Parameters(bypass_max=1, quotas={"a": Quota(devices=2)}))
    small = Request(memory_mib=100, tenant="a")
    pool.hold(small, 2.0)
    large = pool.hold(Request(count=2, memory_mib=100, tenant="a"), 2.0)
    for _ in range(20):
        pool.advance(pool.now_s + 1.0)
        pool.hold(small, 2.0)
    assert large.granted_s is None
    pool.drain()
    assert large.granted_s is not None


@settings(max_examples=12)
@given(
    stream=st.lists(st.tuples(requests, st.sampled_from([0.5, 2.0, 6.0])), min_size=1, max_size=6),
)
def test_the_head_starts_no_later_than_forecast(stream: list[tuple[Request, float]]) -> None:
    pool = Pool(2, Parameters(policy="backfill", bypass_max=0))
    pool.hold(Request(sharing=Sharing.EXCLUSIVE, lease_s=LONGEST_S), LONGEST_S)
    pool.hold(Request(memory_mib=500, lease_s=8.0), LONGEST_S)
    head = pool.hold(Request(sharing=Sharing.EXCLUSIVE, count=2), 1.0)
    while head.granted_s is None:
        for request, pause_s in stream:
            pool.advance(pool.now_s + pause_s)
            pool.hold(request, LONGEST_S)
        assert pool.now_s <= 10 * LONGEST_S
    assert head.granted_s <= LONGEST_S + PATIENT.accept_s

"""The view of deciding policies: the groups that fit now, and the first overdue request."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.queue.policy import Choice, Declaration, Pause, Policy
from gpu_scheduler.core.queue.view import Values, View
from gpu_scheduler.model import DeviceResidents, Placement, Request, Resident, Sharing
from gpu_scheduler.parameters import Quota
from gpu_scheduler.warm import workload_key
from tests.scheduler_world import EPOCH_S, World, device


class LeasesOnly(Policy):
    """A policy that grants the requests of tenant `now`; so all others wait, also what fits."""

    summary = "requests of tenant now"

    def declare(self, values: Values) -> Declaration:
        return Declaration(False, "", starves="all others")

    def decide(self, view: View) -> Choice | Pause:
        for waiting in view.waiting():
            placed = view.place(waiting)
            if placed is not None and waiting.request.tenant == "now":
                return Choice(waiting.attempt, placed)
        return Pause()


POLICY = LeasesOnly()
SIZES = (0, 400, 1000)


def world_of(**parameters: Any) -> World:
    """Four devices of two models, one of them with warm workers of two tenants."""
    world = World(policy="leases_only", policies={"leases_only": POLICY}, **parameters)
    world.alive["s1"] = None
    devices = [device(f"d{n}", index=n, model="ab"[n % 2], memory_mib=1000) for n in range(4)]
    warm = tuple(
        Resident(id=tenant, workload=workload_key(tenant, "w"), memory_mib=300, loading_s=2.0)
        for tenant in ("t", "small")
    )
    world.host("h", *devices, residents=(DeviceResidents(device=devices[1].id, added=warm),))
    return world


def view_of(world: World) -> View:
    state = world.machine.state
    return View(state, world.budget, world.now_s, EPOCH_S + world.now_s, {})


requests = st.builds(
    Request,
    tenant=st.sampled_from(["t", "u", "small"]),
    workload=st.sampled_from([None, "w", "v"]),
    memory_mib=st.sampled_from(SIZES),
    models=st.sampled_from([(), ("a",), ("b",)]),
    priority=st.integers(0, 2),
    warm_key=st.sampled_from([None, None, "key"]),
    count=st.sampled_from([1, 1, 2]),
    placement=st.sampled_from(list(Placement)),
    preempts=st.booleans(),
)
leases = st.builds(
    Request,
    tenant=st.just("now"),
    memory_mib=st.sampled_from(SIZES),
    models=st.sampled_from([("a",), ("b",)]),
    sharing=st.sampled_from(list(Sharing)),
    preemptible=st.booleans(),
)


@settings(max_examples=150)
@given(st.lists(leases, max_size=6), st.lists(requests, max_size=12))
def test_the_groups_that_fit_are_those_whose_first_request_has_a_place(
    taken: list[Request], asked: list[Request]
) -> None:
    world = world_of(quotas={"small": Quota(memory_mib=700)})
    for number, request in enumerate(taken):
        world.reserve(f"lease-{number}", request, wait=False)
    for number, request in enumerate(asked):
        world.advance(1.0)
        world.reserve(f"{number}", request)
    view = view_of(world)
    fitting = [group for group in view.groups() if view_of(world).place(view.first(group))]
    assert list(view.fitting_groups()) == fitting
    keys = [group.first for group in view.groups()]
    assert keys == sorted(keys)
    for group in fitting:  # a place that is known for an equal need is a place of this request
        waiting = view.first(group)
        assert view.place(waiting) == view_of(world).place(waiting)
        if waiting.request.count == 1:
            assert set(view.place(waiting) or ()) <= set(view.sample(waiting))


def test_the_first_request_in_queue_order_that_waited_for_long_is_overdue() -> None:
    world = world_of(aging_s=None)
    for number, priority in enumerate((0, 2, 1)):
        world.reserve(f"{number}", Request(tenant="t", priority=priority, memory_mib=number))
        world.advance(10.0)
    overdue = {limit_s: view_of(world).overdue(limit_s) for limit_s in (0.0, 15.0, 25.0, 35.0)}
    attempts = {limit_s: one and one.attempt for limit_s, one in overdue.items()}
    assert attempts == {0.0: "1", 15.0: "1", 25.0: "0", 35.0: None}

"""Policies `sticky` and `fair_sticky`: warm starts first, patience before a cold one."""

from collections.abc import Callable
from typing import Any

import pytest

from corekit.ids import DeviceId
from gpu_scheduler.core.queue.warm_start import GROUPS_MAX
from gpu_scheduler.model import DeviceResidents, Request, Resident, Sharing
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol import ops
from gpu_scheduler.verdicts import HeldBack
from gpu_scheduler.warm import workload_key
from simulator.invariants import check
from tests.scheduler_world import World, device

STICKY = ("sticky", "fair_sticky")
both = pytest.mark.parametrize("policy", STICKY)


def job(workload: str | None, **fields: Any) -> Request:
    return Request(memory_mib=100, compute_guarantee_pct=100, workload=workload, **fields)


def residents(**of_device: list[str]) -> Any:
    """The residents of devices, as a host publishes them: device → workloads."""
    return tuple(
        DeviceResidents(
            device=DeviceId(device),
            added=tuple(
                Resident(
                    id=f"{device}-{workload}",
                    workload=workload_key("default", workload),
                    memory_mib=100,
                    loading_s=3.0,
                )
                for workload in workloads
            ),
        )
        for device, workloads in of_device.items()
    )


class Two:
    """A world with two devices whose sessions stay alive."""

    def __init__(
        self,
        policy: str,
        published: tuple[()]
        | tuple[DeviceResidents]
        | tuple[DeviceResidents, DeviceResidents] = (),
        **parameters: Any,
    ) -> None:
        own = {f"{policy}.{name}": value for name, value in parameters.items()}
        self.world = World(policy=policy, policy_parameters=own)
        self.world.alive["s1"] = None
        devices = (device("d0", index=0), device("d1", index=1))
        self.world.host("h", *devices, residents=published)

    def granted(self, attempt: str, request: Request) -> Any:
        return self.world.granted(attempt, request)

    def waits(self, attempt: str, request: Request) -> None:
        self.world.reserve(attempt, request)
        assert self.world.answer().outcome.value == "waiting"

    def grants_within(self, seconds: int) -> list[str | Any]:
        """The attempts that are granted while time passes."""
        found = []
        for _ in range(int(seconds)):
            self.world.advance(1.0)
            found += self.world.grants()
        assert check(self.world.machine.state) == []
        return found


@pytest.fixture
def two() -> Callable[..., Any]:
    return lambda policy, published=(), **own: Two(policy, published, **own)


@both
def test_a_warm_device_is_taken(two: Callable[..., Any], policy: str) -> None:
    world = two(policy, residents(d1=["m"]))
    assert world.granted("a", job("m")).shares[0].device == "d1"


@both
def test_among_warm_devices_the_one_with_the_fewest_residents_is_taken(
    two: Callable[..., Any], policy: str
) -> None:
    world = two(policy, residents(d0=["m", "other"], d1=["m"]))
    assert world.granted("a", job("m")).shares[0].device == "d1"


@both
def test_the_first_request_of_a_workload_starts_cold_at_once(
    two: Callable[..., Any], policy: str
) -> None:
    world = two(policy, residents(d0=["other"]))
    assert world.granted("a", job("m")).shares[0].device == "d1"


@both
def test_a_second_cold_start_needs_patience(two: Callable[..., Any], policy: str) -> None:
    world = two(policy, patience_s=5.0)
    world.granted("a", job("m"))
    world.waits("b", job("m"))
    assert world.grants_within(4) == []
    assert world.grants_within(2) == ["b"]


@both
def test_patience_grows_with_the_devices_that_have_the_workload(policy: str) -> None:
    world = World(policy=policy)
    world.alive["s1"] = None
    world.host("h", *(device(f"d{n}", index=n) for n in range(3)))
    world.granted("a", job("m"))
    world.reserve("b", job("m"))
    world.advance(5.5)
    assert world.grants() == ["b"]
    world.renew(world.leases[-1])
    world.reserve("c", job("m"))
    world.advance(9.0)
    assert world.grants() == []
    world.advance(2.0)
    assert world.grants() == ["c"]


@both
def test_a_request_without_a_workload_never_waits_for_warmth(
    two: Callable[..., Any], policy: str
) -> None:
    world = two(policy)
    world.granted("a", job(None))
    world.granted("b", job(None))


@both
def test_an_ended_lease_serves_the_waiting_one_on_its_device(
    two: Callable[..., Any], policy: str
) -> None:
    world = two(policy)
    lease = world.granted("a", job("m"))
    world.waits("b", job("m"))
    world.world.handle(
        host_ops.Report, host="h", residents=residents(**{lease.shares[0].device: ["m"]})
    )
    world.world.release(lease)
    assert world.world.grants() == ["b"]
    assert world.world.leases[-1].shares[0].device == lease.shares[0].device


@both
def test_explain_has_the_reason_and_the_time(two: Callable[..., Any], policy: str) -> None:
    world = two(policy, patience_s=5.0)
    world.granted("a", job("m"))
    world.waits("b", job("m"))
    explanation = world.world.ask(ops.Explain, attempt="b").explanation
    assert explanation.held_back is HeldBack.POLICY
    assert "1 device has loaded its workload: it waits 5.0 s more" in explanation.sentence
    assert explanation.expected_s == pytest.approx(5.0)


@both
def test_an_overdue_gang_is_served_although_others_keep_coming(
    two: Callable[..., Any], policy: str
) -> None:
    world = two(policy, overdue_s=20.0)
    world.granted("first", job(None))
    gang = Request(count=2, sharing=Sharing.EXCLUSIVE)
    world.waits("gang", gang)
    served = []
    for number in range(8):
        world.world.reserve(f"small{number}", job(None))
        world.world.advance(4.0)
        served += world.world.grants()
        if world.world.leases:
            world.world.release(world.world.leases[0])
            served += world.world.grants()
        for lease in world.world.leases:
            world.world.renew(lease)
    assert "gang" in served
    assert len(served) > 3


def test_of_warm_starts_the_shortest_is_first(two: Callable[..., Any]) -> None:
    world = two("sticky", residents(d0=["short", "long"], d1=["short", "long"]))
    leases = [world.granted(name, job(None)) for name in ("x", "y")]
    world.waits("long", job("long", lease_s=60.0))
    world.waits("short", job("short", lease_s=2.0))
    world.world.release(leases[0])
    assert world.world.grants() == ["short"]


def shares_of_two_flows(
    world: Two, rounds: int, weights: tuple[int, int] = (1, 1)
) -> dict[str, int]:
    """The number of grants of each of two flows that always wait, on one device at a time."""
    counts = {"a": 0, "b": 0}
    number = 0
    lease = world.granted("begin", job(None))
    for name in counts:
        for _ in range(3):
            world.waits(f"{name}-{number}", job(None, tenant=name, lease_s=5.0))
            number += 1
    for _ in range(rounds):
        before = len(world.world.grants())
        world.world.release(lease)
        (attempt,) = world.world.grants()[before:]
        lease = next(one for one in world.world.leases if one.attempt == attempt)
        world.world.renew(lease)
        name = attempt[0]
        counts[name] += 1
        world.waits(f"{name}-{number}", job(None, tenant=name, lease_s=5.0))
        number += 1
    return counts


def one_device(**parameters: Any) -> Two:
    found = Two.__new__(Two)
    found.world = World(policy="fair_sticky", **parameters)
    found.world.alive["s1"] = None
    found.world.host("h", device("d0"))
    return found


def test_flows_that_always_wait_get_equal_device_time() -> None:
    counts = shares_of_two_flows(one_device(), 20)
    assert abs(counts["a"] - counts["b"]) <= 3


@pytest.mark.parametrize("weights", [{"a": 3.0}, {"*": 3.0, "b": 1.0}])
def test_a_weight_is_a_part_of_the_device_time(weights: dict[str, float]) -> None:
    counts = shares_of_two_flows(one_device(weights=weights), 40)
    assert counts["a"] / counts["b"] == pytest.approx(3.0, rel=0.35)


def test_explain_says_that_a_flow_is_ahead_of_another(two: Callable[..., Any]) -> None:
    world = two("fair_sticky", patience_s=30.0)
    first = world.granted("a-0", job(None, tenant="a", lease_s=60.0))
    world.granted("b-0", job("m", tenant="b", lease_s=1.0))
    world.waits("b-1", job("m", tenant="b"))
    world.waits("a-1", job(None, tenant="a"))
    world.world.release(first)
    assert world.world.grants() == [], "b is within the window, and waits for its warm device"
    explanation = world.world.ask(ops.Explain, attempt="a-1").explanation
    assert explanation.held_back is HeldBack.POLICY
    assert "its workload has used 59.0 s more of the devices" in explanation.sentence


def test_virtual_times_survive_a_restart() -> None:
    world = one_device()
    shares_of_two_flows(world, 6)
    memory = world.world.machine.state.memory.values
    assert float(memory["a/"]) > 0
    assert world.world.replayed().state.memory.values == memory


@both
def test_a_request_that_fits_is_served_behind_many_workloads_that_do_not(
    two: Callable[..., Any], policy: str
) -> None:
    world = two(policy, patience_s=0.0)
    taken = world.granted("whole", job("whole")).shares[0].device
    for number in range(GROUPS_MAX + 1):
        world.waits(f"{number}", job(f"w{number}", count=2))
    assert world.granted("last", job("last")).shares[0].device != taken


@both
def test_a_free_device_is_kept_for_an_overdue_request(two: Callable[..., Any], policy: str) -> None:
    world = two(policy, patience_s=0.0, overdue_s=20.0)
    world.granted("a", job("w"))
    world.waits("gang", job("g", count=2))
    world.world.advance(21.0)
    world.waits("b", job("x"))

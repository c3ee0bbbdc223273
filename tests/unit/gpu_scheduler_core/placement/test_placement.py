"""Placement: best fit, preferences, gangs, warm keys."""

from typing import Any

import pytest

from corekit.ids import DeviceId, HostId
from gpu_scheduler.core import actions as do
from gpu_scheduler.core.placement.candidates import slots
from gpu_scheduler.core.placement.explain import explain
from gpu_scheduler.model import DeviceKind, Placement, Request, Sharing
from gpu_scheduler.protocol import answers
from gpu_scheduler.protocol.answers import AttemptAnswer
from gpu_scheduler.verdicts import NoFit
from gpu_scheduler.warm import kept_key, tenant_folder
from tests.scheduler_world import World, device


def devices_of(answer: AttemptAnswer) -> list[str]:
    assert answer.granted is not None, answer.outcome
    return [share.device for share in answer.granted.lease.shares]


def place(world: World, name: str, **fields: Any) -> list[str]:
    return devices_of(world.reserve(name, Request(**fields)))


def test_pack_fills_the_fullest_that_fits(world: World) -> None:
    world.host("h", device("a"), device("b", index=1), device("c", index=2))
    assert place(world, "1", memory_mib=300) == ["a"]
    assert place(world, "2", memory_mib=600) == ["a"]
    assert place(world, "3", memory_mib=300) == ["b"]
    assert place(world, "4", memory_mib=100) == ["a"]


@pytest.mark.parametrize("placement", ["pack", "spread"])
def test_a_best_effort_request_gets_the_least_loaded_device(world: World, placement: str) -> None:
    world.host("h", device("a"), device("b", index=1), device("c", index=2))
    promised = place(world, "big", memory_mib=500, compute_guarantee_pct=50)
    plain = {"placement": Placement(placement)}
    got = [place(world, f"{n}", **plain)[0] for n in range(5)]
    assert sorted([*promised, *got]) == ["a", "a", "b", "b", "c", "c"]
    assert got[:2] == ["b", "c"], "first those of which nothing is lent"


@pytest.mark.parametrize("placement", list(Placement))
def test_a_best_effort_gang_gets_the_least_loaded_devices(
    world: World, placement: Placement
) -> None:
    for host in ("h1", "h2"):
        world.host(host, *(device(f"{host}/{n}", index=n) for n in range(2)))
    got = [place(world, f"{n}", count=2, placement=placement) for n in range(4)]
    assert sorted(d for gang in got for d in gang) == sorted(
        d for d in ("h1/0", "h1/1", "h2/0", "h2/1") for _ in range(2)
    )


def test_best_fit_looks_at_compute_too(world: World) -> None:
    world.host("h", device("a"), device("b", index=1))
    place(world, "1", memory_mib=100, compute_guarantee_pct=90)  # a: 900 MiB, 10 %
    assert place(world, "2", memory_mib=100, compute_guarantee_pct=50) == ["b"]
    assert place(world, "3", memory_mib=100, compute_guarantee_pct=10) == ["a"]


def test_spread_takes_the_emptiest(world: World) -> None:
    world.host("h", device("a"), device("b", index=1))
    place(world, "1", memory_mib=300)
    assert place(world, "2", memory_mib=300, placement=Placement.SPREAD) == ["b"]


def test_an_exclusive_request_wastes_least(world: World) -> None:
    world.host("h", device("big", 8000), device("small", 1000, index=1))
    assert place(world, "1", memory_mib=500, sharing=Sharing.EXCLUSIVE) == ["small"]


def test_kinds_and_models_go_by_preference(world: World) -> None:
    world.host(
        "h",
        device("cuda", 500, model="T4"),
        device("cpu", 8000, DeviceKind.CPU, index=1, model="X"),
        device("cuda2", 500, index=2, model="A100"),
    )
    kinds = (DeviceKind.CPU, DeviceKind.CUDA)
    assert place(world, "1", memory_mib=400, kinds=kinds) == ["cpu"]
    assert place(world, "2", memory_mib=400, models=("A100", "T4")) == ["cuda2"]
    assert place(world, "3", memory_mib=400, models=("A100", "T4")) == ["cuda"]


def test_a_warm_device_comes_first(world: World) -> None:
    world.host("h", device("a"), device("b", index=1, resident=("model-1",)))
    assert place(world, "1", memory_mib=10, warm_key="model-1") == ["b"]
    assert place(world, "2", memory_mib=10, warm_key="model-2") == ["b"]  # cold: packs
    world.report("h", device("a", resident=("model-2",)), device("b", index=1))
    assert place(world, "3", memory_mib=10, warm_key="model-2") == ["a"]


def test_content_of_a_tenant_is_warm_for_that_tenant_alone(world: World) -> None:
    kept = kept_key(tenant_folder("t"), "sha256:1")
    world.host("h", device("a"), device("b", index=1, resident=(kept,)))
    assert place(world, "1", memory_mib=10, warm_key="sha256:1", tenant="u") == ["a"]
    assert place(world, "2", memory_mib=10, warm_key="sha256:1", tenant="t") == ["b"]
    assert "sha256:1" not in kept
    gang = {"count": 2, "memory_mib": 10, "warm_key": "sha256:1", "tenant": "t"}
    assert place(world, "3", **gang)[0] == "b"


def test_evicted_content_is_not_warm(world: World) -> None:
    world.host("h", device("a"), device("b", index=1, resident=("k",)))
    world.report("h", device("a"), device("b", index=1))
    assert place(world, "1", memory_mib=10, warm_key="k") == ["a"]


def test_a_warm_device_that_is_full_does_not_matter(world: World) -> None:
    world.host("h", device("a"), device("b", index=1, resident=("k",)))
    place(world, "1", memory_mib=1000, warm_key="k")
    assert place(world, "2", memory_mib=1000, warm_key="k") == ["a"]


@pytest.fixture
def cluster(world: World) -> World:
    """Two hosts with two devices, one with three."""
    for host, count in (("h1", 2), ("h2", 2), ("h3", 3)):
        world.host(host, *(device(f"{host}/{i}", index=i) for i in range(count)))
    return world


def test_a_gang_gets_all_or_nothing(cluster: World, whole: Request) -> None:
    assert len(set(place(cluster, "1", count=7, sharing=Sharing.EXCLUSIVE))) == 7
    answer = cluster.reserve("2", Request(count=2, memory_mib=1))
    assert answer.outcome is answers.Outcome.WAITING
    assert answer.explanation.devices_fitting == 0


def test_same_host_is_one_host(cluster: World) -> None:
    got = place(cluster, "1", count=3, placement=Placement.SAME_HOST, memory_mib=10)
    assert {d.split("/")[0] for d in got} == {"h3"}


def test_a_same_host_gang_waits_with_its_reason(cluster: World) -> None:
    place(cluster, "1", count=1, models=("M",), sharing=Sharing.EXCLUSIVE)
    gang = Request(count=3, placement=Placement.SAME_HOST, sharing=Sharing.EXCLUSIVE)
    first = cluster.reserve("2", gang)
    assert first.outcome is answers.Outcome.GRANTED
    second = cluster.reserve(
        "3", Request(count=2, placement=Placement.SAME_HOST, sharing=Sharing.EXCLUSIVE)
    )
    assert second.outcome is answers.Outcome.GRANTED
    third = cluster.reserve("4", gang)
    assert third.outcome is answers.Outcome.WAITING


def test_same_host_counts_devices_that_fit_but_not_together(world: World) -> None:
    world.host("h1", device("a"), device("b", index=1))
    world.host("h2", device("c"))
    place(world, "1", memory_mib=1000)
    gang = Request(count=2, placement=Placement.SAME_HOST, memory_mib=500)
    reason = world.reserve("2", gang).explanation
    assert reason.counts["SAME_HOST"] == 2
    assert "too few on one host" in reason.sentence


def test_spread_of_a_gang_goes_over_hosts(cluster: World) -> None:
    got = place(cluster, "1", count=3, placement=Placement.SPREAD, memory_mib=10)
    assert {d.split("/")[0] for d in got} == {"h1", "h2", "h3"}


def test_pack_of_a_gang_uses_few_hosts(cluster: World) -> None:
    got = place(cluster, "1", count=3, memory_mib=10)
    assert {d.split("/")[0] for d in got} == {"h3"}


def test_advisory_hosts_serve_only_requests_that_accept_them(world: World) -> None:
    world.host("h", device("a"), gateway=None)
    assert world.reserve("1", Request()).outcome is answers.Outcome.IMPOSSIBLE
    answer = world.reserve("2", Request(advisory=True))
    assert answer.granted is not None, answer.outcome
    assert answer.granted.gateways == {}


def test_a_middleware_is_placed_only_where_it_is_offered(world: World) -> None:
    cricket = Request(middleware="cricket")
    world.host("h1", device("a"), middlewares=("builtin", "rcuda"))
    said = world.reserve("1", cricket).explanation
    assert said.short.what is NoFit.MIDDLEWARE
    assert (said.short.wanted, said.short.most) == ("middleware cricket", "builtin/rcuda")
    assert "with middleware cricket: the hosts of such devices offer builtin/rcuda" in said.sentence
    assert said.largest.middleware is None
    world.host("h2", device("b"), middlewares=("cricket",))
    answer = world.reserve("2", cricket)
    assert [share.host for share in answer.granted.lease.shares] == ["h2"]
    world.start()  # what hosts offer is durable
    assert world.machine.state.inventory.hosts[HostId("h2")].middlewares == ("cricket",)


def test_a_waiting_request_is_refused_when_its_middleware_disappears(world: World) -> None:
    world.host("h", device("a"), middlewares=("cricket",))
    whole = Request(sharing=Sharing.EXCLUSIVE, middleware="cricket")
    world.reserve("1", whole)
    assert world.reserve("2", whole).outcome is answers.Outcome.WAITING
    world.host("h", device("a"), middlewares=())
    told = [a.push for a in world.actions if isinstance(a, do.PushToSession)]
    assert [push.attempt for push in told if isinstance(push, answers.ImpossiblePush)] == ["2"]


def test_a_same_host_gang_that_fits_is_explained(cluster: World) -> None:
    gang = Request(count=3, placement=Placement.SAME_HOST)
    inventory = cluster.machine.state.inventory
    assert explain(gang, inventory).counts == {}
    assert explain(gang, inventory).sentence == "3 × device on one host fits now"


@pytest.mark.parametrize(("parts", "count"), [(0, 0), (1, 1), (2, 3), (3, 4), (4, 7), (8, 15)])
def test_slots_are_counted_by_size(parts: int, count: int) -> None:
    assert slots(parts) == count


def test_small_requests_fill_gaps_and_leave_halves_free(world: World) -> None:
    """A plain best fit would take the tightest device and break up its free half."""
    world.host("h", device("a"), device("b", index=1))
    place(world, "1", memory_mib=500, compute_guarantee_pct=50)  # a: a half is free
    place(
        world,
        "2",
        memory_mib=370,
        compute_guarantee_pct=37,
        models=("M",),
        placement=Placement.SPREAD,
    )
    odd = world.machine.state.inventory.state_of(DeviceId("b"))
    assert (odd.free_mib, odd.free_permille) == (630, 630)  # b: five eighths
    assert place(world, "3", memory_mib=125, compute_guarantee_pct=12) == ["b"]
    assert place(world, "4", memory_mib=500, compute_guarantee_pct=50) == ["a"]
    assert place(world, "5", memory_mib=500, compute_guarantee_pct=50) == ["b"]


def test_a_small_device_is_broken_up_before_a_large_one(world: World) -> None:
    world.host("h", device("large", 8000), device("small", 1000, index=1))
    assert place(world, "1", memory_mib=500, compute_guarantee_pct=50) == ["small"]


def test_preferences_outweigh_warmth(world: World) -> None:
    world.host(
        "h",
        device("a", model="A100"),
        device("b", index=1, model="T4", resident=("k",)),
        device("c", index=2, model="A100", resident=("k",)),
    )
    wanted = {"models": ("A100", "T4"), "warm_key": "k", "memory_mib": 600}
    assert place(world, "1", **wanted) == ["c"]
    assert place(world, "2", **wanted) == ["a"]
    assert place(world, "3", **wanted) == ["b"]


def test_a_gang_keeps_to_its_first_preferences(world: World) -> None:
    world.host("h1", device("t1", model="T4"), device("a1", index=1, model="A100"))
    world.host("h2", device("t2", model="T4"), device("a2", index=1, model="A100"))
    pair = {"count": 2, "models": ("A100", "T4"), "memory_mib": 800}
    assert place(world, "1", **pair) == ["a1", "a2"]
    assert place(world, "2", **pair, placement=Placement.SPREAD) == ["t1", "t2"]


def test_a_gang_on_one_host_takes_the_host_with_the_fewest_to_spare(world: World) -> None:
    for host, count in (("h1", 4), ("h2", 2), ("h3", 3)):
        world.host(host, *(device(f"{host}/{i}", index=i) for i in range(count)))
    pair = {"count": 2, "placement": Placement.SAME_HOST, "sharing": Sharing.EXCLUSIVE}
    used = [place(world, str(number), **pair)[0].split("/")[0] for number in range(4)]
    assert used == ["h2", "h3", "h1", "h1"]


@pytest.mark.parametrize(
    ("wanted", "granted"),
    [
        ({"min_driver": "550.54"}, True),
        ({"min_driver": "550.54.16"}, False),
        ({"min_driver": "1000"}, False),
        ({"min_runtime": "12.4"}, True),
        ({"min_runtime": "12.10"}, False),
        ({"min_runtime": "9.9"}, True),
    ],
)
def test_versions_are_compared_as_numbers(
    world: World, wanted: dict[str, Any], granted: bool
) -> None:
    world.host("h", device("a", driver="550.54.15", runtime="12.4"), device("b", index=1))
    answer = world.reserve("1", Request(**wanted))
    assert (answer.outcome is answers.Outcome.GRANTED) is granted
    if granted:
        assert devices_of(answer) == ["a"]  # b does not say what it has

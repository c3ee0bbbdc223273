"""Where requests go: best fit, preferences, gangs, warm keys."""

import pytest

from gpu_scheduler.core import actions as do
from gpu_scheduler.model import DeviceKind, Placement, Request, Sharing


def devices_of(answer):
    assert answer.outcome is do.Outcome.GRANTED
    return [share.device for share in answer.granted.lease.shares]


def place(world, name, **fields):
    return devices_of(world.reserve(name, Request(**fields)))


def test_pack_fills_the_fullest_that_fits(world, device):
    world.host("h", device("a"), device("b", index=1), device("c", index=2))
    assert place(world, "1", memory_mib=300) == ["a"]
    assert place(world, "2", memory_mib=600) == ["a"]
    assert place(world, "3", memory_mib=300) == ["b"]
    assert place(world, "4", memory_mib=100) == ["a"]


def test_best_fit_looks_at_compute_too(world, device):
    world.host("h", device("a"), device("b", index=1))
    place(world, "1", memory_mib=100, compute_guarantee_pct=90)  # a: 900 MiB, 10 %
    assert place(world, "2", memory_mib=100, compute_guarantee_pct=50) == ["b"]
    assert place(world, "3", memory_mib=100, compute_guarantee_pct=10) == ["a"]


def test_spread_takes_the_emptiest(world, device):
    world.host("h", device("a"), device("b", index=1))
    place(world, "1", memory_mib=300)
    assert place(world, "2", memory_mib=300, placement=Placement.SPREAD) == ["b"]


def test_an_exclusive_request_wastes_least(world, device):
    world.host("h", device("big", 8000), device("small", 1000, index=1))
    assert place(world, "1", memory_mib=500, sharing=Sharing.EXCLUSIVE) == ["small"]


def test_kinds_and_models_go_by_preference(world, device):
    world.host(
        "h",
        device("cuda", 500, model="T4"),
        device("cpu", 8000, DeviceKind.CPU, 1, model="X"),
        device("cuda2", 500, index=2, model="A100"),
    )
    kinds = (DeviceKind.CPU, DeviceKind.CUDA)
    assert place(world, "1", memory_mib=400, kinds=kinds) == ["cpu"]
    assert place(world, "2", memory_mib=400, models=("A100", "T4")) == ["cuda2"]
    assert place(world, "3", memory_mib=400, models=("A100", "T4")) == ["cuda"]


def test_a_warm_device_comes_first(world, device):
    world.host("h", device("a"), device("b", index=1, resident=("model-1",)))
    assert place(world, "1", memory_mib=10, warm_key="model-1") == ["b"]
    assert place(world, "2", memory_mib=10, warm_key="model-2") == ["b"]  # cold: packs
    world.report("h", device("a", resident=("model-2",)), device("b", index=1))
    assert place(world, "3", memory_mib=10, warm_key="model-2") == ["a"]


def test_what_is_no_longer_resident_is_not_warm(world, device):
    world.host("h", device("a"), device("b", index=1, resident=("k",)))
    world.report("h", device("a"), device("b", index=1))
    assert place(world, "1", memory_mib=10, warm_key="k") == ["a"]


def test_a_warm_device_that_is_full_does_not_matter(world, device):
    world.host("h", device("a"), device("b", index=1, resident=("k",)))
    place(world, "1", memory_mib=1000, warm_key="k")
    assert place(world, "2", memory_mib=1000, warm_key="k") == ["a"]


@pytest.fixture
def cluster(world, device):
    """Two hosts with two devices, one with three."""
    for host, count in (("h1", 2), ("h2", 2), ("h3", 3)):
        world.host(host, *(device(f"{host}/{i}", index=i) for i in range(count)))
    return world


def test_a_gang_gets_all_or_nothing(cluster, whole):
    assert len(set(place(cluster, "1", count=7, sharing=Sharing.EXCLUSIVE))) == 7
    answer = cluster.reserve("2", Request(count=2, memory_mib=1))
    assert answer.outcome is do.Outcome.WAITING
    assert answer.explanation.devices_fitting == 0


def test_same_host_is_one_host(cluster):
    got = place(cluster, "1", count=3, placement=Placement.SAME_HOST, memory_mib=10)
    assert {d.split("/")[0] for d in got} == {"h3"}


def test_same_host_waits_and_says_so(cluster):
    place(cluster, "1", count=1, models=("M",), sharing=Sharing.EXCLUSIVE)
    gang = Request(count=3, placement=Placement.SAME_HOST, sharing=Sharing.EXCLUSIVE)
    first = cluster.reserve("2", gang)
    assert first.outcome is do.Outcome.GRANTED
    second = cluster.reserve("3", Request(count=2, placement=Placement.SAME_HOST,
                                          sharing=Sharing.EXCLUSIVE))  # fmt: skip
    assert second.outcome is do.Outcome.GRANTED
    third = cluster.reserve("4", gang)
    assert third.outcome is do.Outcome.WAITING


def test_same_host_counts_devices_that_fit_but_not_together(world, device):
    world.host("h1", device("a"), device("b", index=1))
    world.host("h2", device("c"))
    place(world, "1", memory_mib=1000)
    gang = Request(count=2, placement=Placement.SAME_HOST, memory_mib=500)
    reason = world.reserve("2", gang).explanation
    assert reason.counts["SAME_HOST"] == 2
    assert "too few on one host" in reason.sentence


def test_spread_of_a_gang_goes_over_hosts(cluster):
    got = place(cluster, "1", count=3, placement=Placement.SPREAD, memory_mib=10)
    assert {d.split("/")[0] for d in got} == {"h1", "h2", "h3"}


def test_pack_of_a_gang_uses_few_hosts(cluster):
    got = place(cluster, "1", count=3, memory_mib=10)
    assert {d.split("/")[0] for d in got} == {"h3"}


def test_advisory_hosts_only_for_those_who_accept_them(world, device):
    world.host("h", device("a"), gateway=None)
    assert world.reserve("1", Request()).outcome is do.Outcome.IMPOSSIBLE
    answer = world.reserve("2", Request(advisory=True))
    assert answer.outcome is do.Outcome.GRANTED
    assert answer.granted.gateways == {}

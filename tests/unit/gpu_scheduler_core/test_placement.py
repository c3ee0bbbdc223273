"""Where requests go: best fit, preferences, gangs, warm keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.ids import HostId, LeaseId
from gpu_scheduler.core import actions as do
from gpu_scheduler.core.explain import explain
from gpu_scheduler.core.fits import fits, share_of
from gpu_scheduler.core.inventory import Inventory
from gpu_scheduler.core.placement import place as place_in
from gpu_scheduler.core.placement import score
from gpu_scheduler.model import Device, DeviceKind, HostState, Placement, Request, Sharing


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


any_request = st.builds(
    Request,
    kinds=st.sampled_from([(), (DeviceKind.CPU,), (DeviceKind.CPU, DeviceKind.CUDA)]),
    memory_mib=st.integers(0, 1200),
    compute_guarantee_pct=st.sampled_from([0, 10, 60]),
    sharing=st.sampled_from(Sharing),
    placement=st.sampled_from([Placement.PACK, Placement.SPREAD]),
)


@given(
    lent=st.lists(st.tuples(st.integers(0, 7), any_request), max_size=20),
    down=st.sampled_from([None, "h0", "h1"]), wanted=any_request,
)  # fmt: skip
def test_the_index_finds_what_looking_at_everything_finds(lent, down, wanted):
    inventory = Inventory()
    for host in ("h0", "h1"):
        devices = [
            Device(
                id=f"{host}/{i}", index=i, kind=(DeviceKind.CUDA, DeviceKind.CPU)[i % 2],
                model="M", memory_mib=(800, 1000)[i // 2],
            )
            for i in range(4)
        ]  # fmt: skip
        inventory.register(HostId(host), "one", "g", devices)
        if host != down:
            inventory.set_state(inventory.hosts[HostId(host)], HostState.UP)
    entries = list(inventory.devices.values())
    for n, (index, request) in enumerate(lent):
        entry = entries[index]
        if fits(request, inventory.shape_of(entry.device.id)) is None:
            inventory.promise(LeaseId(f"l{n}"), share_of(request, entry.device, entry.host))
    shapes = [inventory.shape_of(entry.device.id) for entry in entries]
    answers = [fits(wanted, shape) for shape in shapes]
    scores = [score(wanted, s) for s, why in zip(shapes, answers, strict=True) if why is None]
    got = place_in(wanted, inventory)
    assert (got is None) is (not scores)
    if got is not None:
        assert score(wanted, inventory.shape_of(got[0])) == min(scores)
    reason = explain(wanted, inventory)
    assert reason.devices_fitting == len(scores)
    assert sum(reason.counts.values()) == len(answers) - len(scores)
    for why, count in reason.counts.items():
        assert answers.count(why) == count


def test_a_same_host_gang_that_fits_is_explained_so(cluster):
    gang = Request(count=3, placement=Placement.SAME_HOST)
    inventory = cluster.machine.state.inventory
    assert explain(gang, inventory).counts == {}
    assert explain(gang, inventory).sentence == "3 × device on one host fits now"

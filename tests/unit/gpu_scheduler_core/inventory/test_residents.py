"""Residents: publication, placement, what a grant uses and evicts, withdrawal, limits."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corekit.errors import ErrorCode
from corekit.ids import DeviceId
from gpu_scheduler.core.inventory.devices import fits
from gpu_scheduler.model import DeviceResidents, Placement, Request, Resident, Sharing
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol import ops
from gpu_scheduler.warm import workload_key
from tests.scheduler_world import World, device, world_with


def resident(
    id_: str,
    memory_mib: int = 100,
    loading_s: float | int = 1.0,
    workload: str = "w",
    tenant: str = "default",
) -> Resident:
    key = workload_key(tenant, workload)
    return Resident(id=id_, workload=key, memory_mib=memory_mib, loading_s=loading_s)


def on(device: str, *added: Resident, removed: tuple[str, ...] = ()) -> DeviceResidents:
    return DeviceResidents(device=DeviceId(device), added=added, removed=removed)


def publish(world: World, host: str, *changes: DeviceResidents) -> Any:
    return world.handle(host_ops.Report, host=host, reply_to="h", residents=changes)


def known(world: World, device: str) -> list[str | Any]:
    return list(world.machine.state.inventory.residents.of(DeviceId(device)))


def install(world: World) -> Any:
    (push,) = world.pushed(host_ops.InstallPush)
    return push.install


def placed(world: World, attempt: str, **fields: Any) -> list[str]:
    lease = world.granted(attempt, Request(**fields))
    return [share.device for share in lease.shares]


@pytest.fixture
def two(world: World) -> World:
    """One host with two devices of 1000 MiB."""
    world.host("h", device("a"), device("b", index=1))
    return world


def test_residents_are_published_as_differences(two: World) -> None:
    publish(two, "h", on("a", resident("w1"), resident("w2")), on("b", resident("w3")))
    assert (known(two, "a"), known(two, "b")) == (["w1", "w2"], ["w3"])
    publish(two, "h", on("a", resident("w4"), removed=("w1", "absent")))
    publish(two, "h", on("a", resident("w4"), removed=("w1",)))  # a repeated message
    assert known(two, "a") == ["w2", "w4"]
    publish(two, "h", on("other", resident("w5")))  # of a device that the host does not have
    publish(two, "h")
    assert (known(two, "a"), known(two, "b")) == (["w2", "w4"], ["w3"])


def test_the_books_hold_a_bounded_number(two: World) -> None:
    publish(two, "h", on("a", *(resident(f"w{n}", 1) for n in range(100))))
    assert known(two, "a") == [f"w{n}" for n in range(64)]


def test_a_hello_replaces_all_residents(world: World) -> None:
    world.host("h", device("a"), residents=(on("a", resident("w1"), resident("w2")),))
    world.host("h", device("a"), residents=(on("a", resident("w2")),))
    assert known(world, "a") == ["w2"]
    world.hosts.clear()
    world.advance(7)  # stale: another incarnation may come
    world.host("h", device("a"), incarnation="two")
    assert known(world, "a") == []


def test_a_lost_host_has_no_residents(world: World) -> None:
    world.host("h", device("a"), residents=(on("a", resident("w1")),))
    world.hosts.clear()
    world.advance(7)
    assert known(world, "a") == ["w1"], "a silent host may still have them"
    world.advance(20)
    assert known(world, "a") == []
    world.ask(ops.Forget, host="h")


def test_residents_never_make_a_request_wait(two: World) -> None:
    publish(two, "h", on("a", resident("w1", 900)), on("b", resident("w2", 900)))
    assert (
        fits(Request(memory_mib=1000), two.machine.state.inventory.state_of(DeviceId("a"))) is None
    )
    for number in range(4):
        two.granted(f"{number}", Request(memory_mib=500))
    assert (known(two, "a"), known(two, "b")) == ([], [])


# ---------------------------------------------------------------------- placement


def test_a_resident_of_the_workload_comes_before_the_best_fit(two: World) -> None:
    publish(two, "h", on("b", resident("w1")))
    spread = {"memory_mib": 100, "placement": Placement.SPREAD}
    assert placed(two, "other", **spread, workload="v") == ["a"]
    assert install(two).residents == ()
    assert placed(two, "mine", **spread, workload="w") == ["b"]
    assert install(two).residents == ("w1",)


@pytest.mark.parametrize(
    "fields", [{"tenant": "eve"}, {"workload": "v"}, {"workload": None}, {"middleware": "rcuda"}]
)
def test_nobody_else_uses_a_resident(world: World, fields: dict[str, str | None]) -> None:
    world.host("h", device("a"), middlewares=("builtin", "rcuda"))
    publish(world, "h", on("a", resident("w1")))
    assert placed(world, "x", **{"memory_mib": 100, "workload": "w", **fields}) == ["a"]
    assert (install(world).residents, install(world).evict) == ((), ())
    assert known(world, "a") == ["w1"]


@pytest.mark.parametrize(
    ("fields", "where", "used"),
    [
        ({"memory_mib": 299}, "a", ()),
        ({"memory_pct": 29.9}, "a", ()),
        ({"memory_mib": 300}, "b", ("w1",)),
        ({"memory_pct": 30}, "b", ("w1",)),
        ({"sharing": Sharing.EXCLUSIVE}, "b", ("w1",)),
    ],
)
def test_a_share_uses_a_resident_that_it_has_room_for(
    two: World, fields: dict[str, Any], where: str, used: tuple[str, ...]
) -> None:
    """In a smaller one its host would start a new worker, while the books count a warm start."""
    publish(two, "h", on("b", resident("w1", memory_mib=300)))
    assert placed(two, "x", placement=Placement.SPREAD, workload="w", **fields) == [where]
    assert install(two).residents == used


def test_a_resident_that_no_share_of_its_workload_holds_is_evicted_for_it(world: World) -> None:
    world.host("h", device("a"))
    publish(world, "h", on("a", resident("w1", memory_mib=900)))
    assert placed(world, "x", memory_mib=200, workload="w") == ["a"]
    assert (install(world).residents, install(world).evict) == ((), ("w1",))


def test_the_names_of_tenant_and_workload_do_not_run_together() -> None:
    assert workload_key("a", "b/c") != workload_key("a/b", "c")


def test_a_device_where_nothing_is_evicted_comes_before_a_tighter_one(two: World) -> None:
    two.granted("filler", Request(memory_mib=500))  # a is tighter
    publish(two, "h", on("a", resident("w1", 400)))
    assert placed(two, "x", memory_mib=300, workload="v") == ["b"]
    assert known(two, "a") == ["w1"]


def test_the_cheapest_eviction_is_chosen(two: World) -> None:
    publish(two, "h", on("a", resident("w1", 900, 9.0)), on("b", resident("w2", 900, 2.0)))
    assert placed(two, "x", memory_mib=500) == ["b"]
    assert install(two).evict == ("w2",)
    assert placed(two, "y", sharing=Sharing.EXCLUSIVE) == ["a"]
    assert install(two).evict == ("w1",)


def test_an_idle_device_without_residents_serves_an_exclusive_request_first(two: World) -> None:
    publish(two, "h", on("a", resident("w1", 1, 0.0)))
    assert placed(two, "x", sharing=Sharing.EXCLUSIVE) == ["b"]


def test_a_gang_prefers_residents_and_evicts_last(world: World) -> None:
    world.host("h", *(device(f"d{n}", index=n) for n in range(4)))
    publish(world, "h", on("d1", resident("w1")), on("d2", resident("w2", 900, workload="v")))
    devices = placed(world, "x", count=3, memory_mib=500, workload="w")
    assert sorted(devices) == ["d0", "d1", "d3"]
    assert install(world).residents == ("w1",)


# ---------------------------------------------------------------------- grants

CASES: dict[str, Any] = {  # residents (id, MiB, loading s, workload), request → used, evicted
    "all fit": ([("a", 300, 1, "v"), ("b", 300, 2, "w")], {"memory_mib": 400}, (), ()),
    "the cheapest first": ([("a", 300, 3, "v"), ("b", 300, 2, "v")], {"memory_mib": 700}, (), "b"),
    "until it fits": (
        [("a", 300, 3, "v"), ("b", 100, 2, "v"), ("c", 300, 1, "v")],
        {"memory_mib": 800},
        (),
        "cba",
    ),
    "among equals the largest": (
        [("a", 100, 1, "v"), ("b", 300, 1, "v")],
        {"memory_mib": 800},
        (),
        "b",
    ),
    "its own counts inside the share": ([("a", 600, 1, "w")], {"memory_mib": 700}, "a", ()),
    "its own stays when others go": (
        [("a", 300, 0, "w"), ("b", 300, 5, "v")],
        {"memory_mib": 900},
        "a",
        "b",
    ),
    "the costliest of its own": (
        [("a", 10, 1, "w"), ("b", 10, 2, "w")],
        {"memory_mib": 10},
        "b",
        (),
    ),
    "the costliest of its own that its share has room for": (
        [("a", 10, 1, "w"), ("b", 11, 2, "w")],
        {"memory_mib": 10},
        "a",
        (),
    ),
    "no guarantee, no eviction": ([("a", 1000, 1, "v")], {}, (), ()),
    "an exclusive one evicts all but its own": (
        [("a", 1, 3, "w"), ("b", 1, 2, "v"), ("c", 1, 1, "v")],
        {"sharing": Sharing.EXCLUSIVE},
        "a",
        "cb",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_grant_takes_residents_out_of_the_books(one: World, case: str) -> None:
    found, fields, used, evicted = CASES[case]
    published = [resident(id_, mib, loading_s, work) for id_, mib, loading_s, work in found]
    publish(one, "h1", on("d1", *published))
    placed(one, "x", **{"workload": "w" if used else None, **fields})
    assert (install(one).residents, install(one).evict) == (tuple(used), tuple(evicted))
    assert known(one, "d1") == [id_ for id_, *_ in found if id_ not in (*used, *evicted)]


def test_a_repeated_install_names_the_same_residents(one: World) -> None:
    publish(one, "h1", on("d1", resident("w1", 100), resident("w2", 900, workload="v")))
    lease = one.granted("x", Request(memory_mib=500, workload="w"))
    first = install(one)
    assert (first.residents, first.evict) == (("w1",), ("w2",))
    again = one.host("h1", device("d1"), residents=(on("d1", resident("w1"), resident("w2")),))
    assert [(i.residents, i.evict) for i in again.installs] == [(("w1",), ("w2",))]
    assert known(one, "d1") == [], "the grant has claimed them"
    installed = one.host(
        "h1", device("d1"), installed=(lease.id,), residents=(on("d1", resident("w3")),)
    )
    assert [i.lease for i in installed.installs] == [lease.id]
    assert known(one, "d1") == ["w3"]


def test_a_worker_becomes_a_resident_again_under_its_id(one: World) -> None:
    publish(one, "h1", on("d1", resident("w1")))
    lease = one.granted("x", Request(memory_mib=500, workload="w"))
    one.told("h1", lease, "opened")
    one.told("h1", lease, "freed", loading_s=0.0)
    publish(one, "h1", on("d1", resident("w1")))
    assert known(one, "d1") == ["w1"]
    again = one.host(
        "h1", device("d1"), installed=(lease.id,), residents=(on("d1", resident("w1")),)
    )
    assert [i.residents for i in again.installs] == [()]
    assert known(one, "d1") == ["w1"]


def test_evictions_are_counted(one: World) -> None:
    publish(one, "h1", on("d1", resident("w1", 900), resident("w2", 50)))
    one.granted("x", Request(sharing=Sharing.EXCLUSIVE))
    residents = one.machine.state.inventory.residents
    assert (residents.evicted, residents.evicted_mib) == (2, 950)


# ---------------------------------------------------------------------- limits


def test_hosts_get_the_limits_with_the_welcome_and_when_they_change(world: World) -> None:
    welcome = world.host("h1", device("d1"))
    assert welcome.warm == host_ops.WarmLimits(workers_max=4, idle_s_max=600.0, memory_pct_max=50)
    world.host("h2", device("d2"), gateway=None)
    for name, value in (
        ("warm_workers_max", 2),
        ("warm_idle_s_max", 5.0),
        ("warm_memory_pct_max", 10),
        ("warm_loads_max", 2),
    ):
        world.ask(ops.SetParameter, name=name, value=value)
        assert len(world.pushed(host_ops.WarmLimitsPush)) == 1
    assert world.hosts_of(host_ops.WarmLimitsPush) == ["h1"], "h2 has no gateway, thus no workers"
    (push,) = world.pushed(host_ops.WarmLimitsPush)
    assert push.limits == host_ops.WarmLimits(
        workers_max=2, idle_s_max=5.0, memory_pct_max=10, loads_max=2
    )
    world.ask(ops.SetParameter, name="bypass_max", value=3)
    assert world.pushed(host_ops.WarmLimitsPush) == []
    assert world.host("h1", device("d1")).warm == push.limits


def test_a_drain_evicts_the_warm_workers_of_its_host_or_device(two: World) -> None:
    """By the limits: a drained host that is away gets them with its welcome."""
    two.ask(ops.Drain, host="h", device="b")
    (push,) = two.pushed(host_ops.WarmLimitsPush)
    assert push.limits == host_ops.WarmLimits(none_on=(DeviceId("b"),))
    two.ask(ops.Drain, host="h", device="b")
    assert two.pushed(host_ops.WarmLimitsPush) == [], "nothing changed"
    two.ask(ops.Drain, host="h")
    (push,) = two.pushed(host_ops.WarmLimitsPush)
    assert push.limits == host_ops.WarmLimits(workers_max=0, none_on=(DeviceId("b"),))
    two.ask(ops.SetParameter, name="warm_workers_max", value=9)
    (push,) = two.pushed(host_ops.WarmLimitsPush)
    assert push.limits == host_ops.WarmLimits(workers_max=0, none_on=(DeviceId("b"),)), (
        "still drained"
    )
    assert two.host("h", device("a"), device("b", index=1)).warm == push.limits
    two.ask(ops.Undrain, host="h")
    two.ask(ops.Undrain, host="h", device="b")
    (push,) = two.pushed(host_ops.WarmLimitsPush)
    assert push.limits == host_ops.WarmLimits(workers_max=9)


@pytest.mark.parametrize(
    ("name", "value"),
    [("warm_workers_max", 65), ("warm_idle_s_max", -1), ("warm_memory_pct_max", 101)],
)
def test_a_limit_has_a_range(world: World, name: str, value: int) -> None:
    assert world.ask(ops.SetParameter, name=name, value=value).code is ErrorCode.INVALID
    assert name in world.answer().message


# ---------------------------------------------------------------------- properties

ids = st.sampled_from(["w1", "w2", "w3", "w4"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), ids, st.sampled_from("ab"), st.sampled_from([50, 300, 900])),
        st.tuples(st.just("remove"), ids, st.sampled_from("ab"), st.just(0)),
        st.tuples(st.just("grant"), st.sampled_from(["w", "v"]), st.just(""), st.integers(0, 600)),
        st.tuples(st.just("end"), st.just(""), st.just(""), st.just(0)),
    ),
    max_size=20,
)


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # `World` is a class
)
@given(steps=steps)
def test_the_books_are_what_hosts_reported_less_what_grants_took(steps: list[Any]) -> None:
    world = world_with(device("a"), device("b", index=1))
    books: dict[str, dict[str, Any]] = {"a": {}, "b": {}}
    leases: list[Any] = []
    for number, (what, name, where, mib) in enumerate(steps):
        if what == "add":
            books[where][name] = None
            publish(world, "h", on(where, resident(name, mib), removed=(name,)))
        elif what == "remove":
            books[where].pop(name, None)
            publish(world, "h", on(where, removed=(name,)))
        elif what == "end" and leases:
            world.release(leases.pop(0))
        elif what == "grant":
            request = Request(memory_mib=mib, workload=name)
            free = [world.machine.state.inventory.state_of(DeviceId(d)).free_mib for d in books]
            answer = world.reserve(f"{number}", request, wait=False)
            assert (answer.granted is not None) is (max(free) >= mib), "residents take no room"
            for push in world.pushed(host_ops.InstallPush):
                leases.append(answer.granted.lease)
                device_id = answer.granted.lease.shares[0].device
                for gone in (*push.install.residents, *push.install.evict):
                    del books[device_id][gone]
        assert {d: sorted(known(world, d)) for d in books} == {
            d: sorted(b) for d, b in books.items()
        }

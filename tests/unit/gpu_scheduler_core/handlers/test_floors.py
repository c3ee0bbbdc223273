"""Warm floors: where their slots are, when they move, and what hosts and people learn of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corekit.decode import encode_json
from corekit.errors import AppError
from corekit.ids import AttemptId, DeviceId, HostId
from corekit.values import replace
from gpu_scheduler.core import events as on
from gpu_scheduler.core.handlers import floors
from gpu_scheduler.core.handlers.floors import CHECK_S, SOON_S, VIEWS_MAX
from gpu_scheduler.floors import (
    HOST_BYTES_MAX,
    LOADS_BYTES_MAX,
    TENANT_WORKERS_MAX,
    HostFloor,
    WarmFloor,
)
from gpu_scheduler.model import Batch, DeviceResidents, Request, Resident, Sharing
from gpu_scheduler.parameters import Quota
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import Outcome
from gpu_scheduler.warm import workload_key
from tests.scheduler_world import World, device

LOADS = (("onnx", '{"model": "m"}'),)
NO_ROOM = "no device has room for 1 more"


def floor(workload: str = "w", workers_min: int = 1, memory_mib: int = 400, **f: Any) -> WarmFloor:
    loads = f.pop("loads", LOADS)
    about: dict[str, Any] = {"memory_mib": memory_mib, "workload": workload} | f
    request = Request(**about)
    return WarmFloor(request=request, workers_min=workers_min, loads=loads)


def world_of(*names: str, **parameters: Any) -> World:
    """Hosts with one device each."""
    world = World(**parameters)
    for name in names:
        host(world, name)
    world.alive["s1"] = None
    return world


def host(world: World, name: str, **fields: Any) -> Any:
    return world.host(name, device(f"{name}/d"), **({"loads_ahead": True} | fields))


def declare(world: World, *floors: WarmFloor, session: str = "s1") -> None:
    world.ask(ops.KeepWarm, session, floors=floors)


def slots(world: World, workload: str = "w") -> list[str]:
    found = world.machine.state.floors.slots.get(("default", workload), ())
    return [slot.device for slot in found]


def pushed(world: World) -> list[tuple[HostId, tuple[HostFloor, ...]]]:
    hosts = world.hosts_of(host_ops.KeepWarmPush)
    return list(zip(hosts, [p.floors for p in world.pushed(host_ops.KeepWarmPush)], strict=True))


def loaded(world: World, name: str, id_: str = "r1", workload: str = "w", mib: int = 300) -> None:
    key = workload_key("default", workload)
    made = Resident(id=id_, workload=key, memory_mib=mib, loading_s=2.0)
    shown(world, name, added=(made,))


def shown(world: World, name: str, **change: Any) -> None:
    residents = (DeviceResidents(device=DeviceId(f"{name}/d"), **change),)
    world.handle(host_ops.Report, host=HostId(name), reply_to="h", residents=residents)


def view(world: World, number: int = 0) -> tuple[int, int, str]:
    found = world.ask(ops.Inventory).floors[number]
    return found.workers, found.workers_min, found.why


def test_a_floor_is_spread_pushed_once_and_welcomed_again() -> None:
    world = world_of("a", "b")
    declare(world, floor(workers_min=2))
    assert [(name, len(floors)) for name, floors in pushed(world)] == [("a", 1), ("b", 1)]
    (_, (kept,)), _ = pushed(world)
    assert (kept.workload, kept.workers_min, kept.loads) == ("w", 1, LOADS)
    assert (kept.share.device, kept.share.memory_mib) == ("a/d", 400)
    declare(world, floor(workers_min=2))
    assert not pushed(world)
    world.advance(CHECK_S + 1)
    assert not pushed(world)
    assert host(world, "a").floors == (kept,)


def test_several_workers_share_a_device_as_far_as_it_has_room() -> None:
    world = world_of("a")
    declare(world, floor(workers_min=3))
    assert slots(world) == ["a/d", "a/d"]
    assert view(world) == (0, 3, f"{NO_ROOM}: a/0 has 200 MiB free of 400 MiB needed")


def test_the_second_floor_that_does_not_fit_is_stated_and_displaces_nothing() -> None:
    world = world_of("a")
    declare(world, floor("z", memory_mib=700))
    world.alive["s2"] = None
    declare(world, floor("a", memory_mib=700), session="s2")
    world.advance(3 * CHECK_S)
    assert (slots(world, "z"), slots(world, "a")) == (["a/d"], [])
    assert view(world) == (0, 1, f"{NO_ROOM}: a/0 has 300 MiB free of 700 MiB needed")
    assert view(world, 1) == (0, 1, "being loaded on a/d")
    loaded(world, "a", workload="z")
    assert view(world, 1) == (1, 1, "")
    declare(world, session="s1")
    assert slots(world, "a") == ["a/d"], "what it had is free"


def test_the_highest_floor_of_several_sessions_counts_until_its_session_is_gone() -> None:
    world = world_of("a")
    declare(world, floor(workers_min=1))
    declare(world, floor(workers_min=2), session="s2")
    assert len(slots(world)) == 2
    world.advance(world.budget.client_gone_s + 2 * CHECK_S)
    assert len(slots(world)) == 1
    assert world.ask(ops.KeepWarm, floors=()) is not None
    assert (slots(world), pushed(world)) == ([], [("a", ())])
    assert world.ask(ops.Inventory).floors == ()


def test_a_slot_moves_when_a_lease_takes_its_room_and_stays_with_its_worker() -> None:
    world = world_of("a", "b")
    declare(world, floor())
    assert slots(world) == ["a/d"]
    loaded(world, "a")
    other = world.granted("other", Request(memory_mib=800, workload="o"))
    assert other.shares[0].device == "b/d", "it evicts nothing where it can"
    world.granted("large", Request(memory_mib=900, workload="o2"))
    assert world.machine.state.inventory.residents.of(DeviceId("a/d")) == {}
    world.advance(CHECK_S + 1)
    assert slots(world) == [], "neither device has room"
    world.release(other)
    world.advance(CHECK_S + 1)
    assert slots(world) == ["b/d"]


def test_a_lease_of_the_workload_holds_its_slot() -> None:
    world = world_of("a", "b")
    declare(world, floor())
    loaded(world, "a")
    lease = world.granted("own", Request(memory_mib=400, workload="w"))
    assert lease.shares[0].device == "a/d"
    world.granted("more", Request(memory_mib=600, workload="o", models=("M",)))
    world.advance(2 * CHECK_S)
    assert slots(world) == ["a/d"]
    assert view(world) == (1, 1, "")


def test_the_workers_of_floors_are_evicted_last() -> None:
    world = world_of("a")
    declare(world, floor())
    loaded(world, "a", "kept", mib=400)
    loaded(world, "a", "other", workload="o", mib=400)
    world.granted("one", Request(memory_mib=500, workload="p"))
    assert list(world.machine.state.inventory.residents.of(DeviceId("a/d"))) == ["kept"]


@pytest.mark.parametrize("event", ["lost", "drained", "off"])
def test_a_slot_leaves_a_host_that_keeps_none(event: str) -> None:
    world = world_of("a", "b")
    declare(world, floor())
    loaded(world, "a")
    if event == "lost":
        del world.hosts["a"]
        world.advance(world.budget.host_lost_s + 2 * CHECK_S)
    elif event == "drained":
        world.ask(ops.Drain, host=HostId("a"))
        world.advance(CHECK_S + 1)
    else:
        world.ask(ops.SetParameter, name="warm_workers_max", value=0)
        world.advance(CHECK_S + 1)
        assert "switched off" in view(world)[2]
    assert slots(world) == ([] if event == "off" else ["b/d"])


def test_a_slot_without_a_worker_for_long_is_tried_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(floors, "PATIENCE_S", 2 * CHECK_S)
    world = world_of("a", "b")
    declare(world, floor())
    world.advance(CHECK_S + 1)
    assert slots(world) == ["a/d"]
    world.advance(CHECK_S)
    assert slots(world) == ["b/d"]
    world.advance(2 * CHECK_S)
    assert slots(world) == ["a/d"]


def test_a_new_scheduler_finds_the_workers_that_there_are() -> None:
    world = world_of("a", "b")
    declare(world, floor())
    loaded(world, "b")
    world.start()
    for name in ("a", "b"):
        host(world, name)
    loaded(world, "b")
    assert world.machine.state.floors.slots == {}
    declare(world, floor())
    assert slots(world) == ["b/d"]


def test_hosts_that_do_not_load_ahead_keep_no_floor() -> None:
    world = World()
    host(world, "a", loads_ahead=False)
    declare(world, floor())
    assert slots(world) == []


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"count": 2}, "one device"),
        ({"memory_mib": 0}, "needs a size"),
        ({"middleware": "rcuda"}, "middleware"),
        ({"batch": Batch(joins=True)}, "batch"),
        ({"workload": None}, "workload"),
    ],
)
def test_requests_without_a_worker_that_could_stay_are_refused(
    fields: dict[str, Any], why: str
) -> None:
    with pytest.raises(AppError, match=why):
        floor(**fields)


_EVENT = st.one_of(
    st.tuples(st.just("floor"), st.sampled_from("uvw"), st.integers(0, 3)),
    st.tuples(st.just("lease"), st.sampled_from("uvwo"), st.sampled_from([100, 400, 1000])),
    st.tuples(st.just("release"), st.integers(0, 3), st.none()),
    st.tuples(st.just("loads"), st.sampled_from("ab"), st.sampled_from("uvw")),
    st.tuples(st.just("drain"), st.sampled_from("ab"), st.booleans()),
    st.tuples(st.just("time"), st.sampled_from([1.0, 6.0]), st.none()),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(_EVENT, max_size=15))
def test_slots_fit_beside_leases_and_each_other(events: list[tuple[Any, ...]]) -> None:
    world = world_of("a", "b")
    wanted: dict[str, WarmFloor] = {}
    leases: list[Any] = []
    for number, (kind, one, two) in enumerate(events):
        if kind == "floor":
            wanted.pop(one, None)
            wanted |= {one: floor(one, two, 300)} if two else {}
            declare(world, *wanted.values())
        elif kind == "lease":
            sharing = Sharing.EXCLUSIVE if two == 1000 else Sharing.SHARED
            made = Request(memory_mib=two, workload=one, sharing=sharing)
            answer = world.reserve(f"r{number}", made, wait=False)
            leases += [answer.granted.lease] if answer.granted else []
        elif kind == "release" and leases:
            world.release(leases.pop(one % len(leases)))
        elif kind == "loads":
            loaded(world, one, f"r{number}", two, 200)
        elif kind == "drain":
            world.ask(ops.Drain if two else ops.Undrain, host=HostId(one))
        elif kind == "time":
            world.advance(one)
    world.advance(CHECK_S + 1)
    state = world.machine.state
    booked = {DeviceId("a/d"): 0, DeviceId("b/d"): 0}
    for (_, workload), found in state.floors.slots.items():
        assert 0 < len(found) <= wanted[workload].workers_min
        for slot in found:
            own = [
                lease
                for lease in state.inventory.devices[slot.device].shares
                if state.leases[lease].request.workload == workload
            ]
            there = state.inventory.residents.of(slot.device).values()
            if not own and not any(r.workload == workload_key("default", workload) for r in there):
                booked[slot.device] += 300
    for device_id, booked_mib in booked.items():
        assert booked_mib <= state.inventory.state_of(device_id).free_mib
        assert not booked_mib or not state.inventory.hosts[HostId(device_id[0])].is_drained


# ---------------------------------------------------------------------- what a check costs


def test_a_check_searches_for_some_slots_and_the_next_ones_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(floors, "CHECK_SLOTS_MAX", 4)
    number = 6
    world = world_of(*(f"h{n}" for n in range(number)))
    declare(world, floor("v", 1), floor("w", number - 1, 600), floor("x", 1, 5000))
    assert len(slots(world)) == 3
    assert view(world, 1)[2] == "a device for 2 more is being searched"
    world.advance(SOON_S)
    assert len(slots(world)) == number - 1
    assert view(world, 2)[2] == f"{NO_ROOM}, and no known one ever has"
    assert world.machine.state.floors.resumes_at is None, "the next check is the usual one"


def test_requests_equal_to_one_that_found_nothing_cost_no_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(floors, "CHECK_SLOTS_MAX", 4)
    world = world_of("a")
    declare(world, floor("a", 1, 600), *(floor(name, 1, 700) for name in "bcde"), floor("z", 1))
    assert (slots(world, "a"), slots(world, "z")) == (["a/d"], ["a/d"])
    assert not any(slots(world, name) for name in "bcde")


def test_full_devices_do_not_hide_those_with_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floors, "COMPARED_MAX", 1)
    world = world_of("a", "b", "c")
    declare(world, floor("w", 3, 600))
    assert sorted(slots(world)) == ["a/d", "b/d", "c/d"]


def test_a_check_ends_after_so_many_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floors, "SEARCHED_MAX", 2)
    world = world_of("a", "b")
    declare(world, floor("w", 2, 600))
    assert len(slots(world)) == 1
    world.advance(SOON_S)
    assert len(slots(world)) == 2


# ---------------------------------------------------------------------- sizes


def test_the_loads_of_a_floor_are_limited() -> None:
    loads = tuple(("onnx", f"{n:0>900}") for n in range(8))
    assert floor(loads=loads)
    assert len(encode_json((*loads, loads[0]))) > LOADS_BYTES_MAX
    with pytest.raises(AppError, match="warm_loads has at most"):
        floor(loads=(*loads, loads[0]))


def test_a_host_is_sent_no_more_than_a_message_has_room_for() -> None:
    loads = tuple(("onnx", f"{n:0>900}") for n in range(8))
    world = world_of("a")
    declare(world, *(floor(f"w{n}", 1, 1, loads=loads) for n in range(60)))
    world.advance(SOON_S)
    (message,) = world.pushed(host_ops.KeepWarmPush)
    assert 20 < len(message.floors) < 60
    assert len(encode_json(message)) < HOST_BYTES_MAX + 100
    welcome = host(world, "a")
    assert welcome.floors == message.floors


def test_views_are_short_and_few() -> None:
    world = world_of("a", "b", "c", "d", "e")
    declare(world, floor(workers_min=5))
    assert view(world)[2] == "being loaded on a/d, b/d, c/d and 2 more devices"
    declare(world, *(floor(f"w{n}") for n in range(VIEWS_MAX + 3)))
    answer = world.ask(ops.Inventory)
    assert (len(answer.floors), answer.floors_left_out) == (VIEWS_MAX, 3)


# ---------------------------------------------------------------------- why it is not met


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("drained", "a/0 is drained"),
        ("exclusive", "a/0 is allocated exclusively"),
        ("cold", "a/0 does not load without a lease"),
    ],
)
def test_the_nearest_device_is_named_with_what_it_lacks(state: str, why: str) -> None:
    world = World()
    world.alive["s1"] = None
    host(world, "a", loads_ahead=state != "cold")
    if state == "drained":
        world.ask(ops.Drain, host=HostId("a"))
    elif state == "exclusive":
        world.granted("x", Request(memory_mib=1, sharing=Sharing.EXCLUSIVE))
    declare(world, floor())
    assert view(world) == (0, 1, f"{NO_ROOM}: {why}")


def test_explanations_name_the_floor_of_the_workload() -> None:
    world = world_of("a")
    request = Request(memory_mib=600, workload="w")
    assert world.ask(ops.Explain, request=request).explanation.floor is None
    declare(world, floor(workers_min=2, memory_mib=600))
    loaded(world, "a", mib=600)
    floors = world.ask(ops.Inventory).floors
    world.granted("r0", Request(memory_mib=600, workload="o"))
    text = f"0 of 2 workers of its workload are kept warm: {NO_ROOM.replace('1', '2')}: a/0 has 400"
    world.advance(CHECK_S + 1)
    answer = world.reserve("r1", request)
    assert answer.outcome is Outcome.WAITING
    for named in ({"request": request}, {"attempt": AttemptId("r1")}):
        why = world.ask(ops.Explain, **named).explanation
        assert why.sentence.endswith(f"; {text} MiB free of 600 MiB needed")
        assert why.floor == world.ask(ops.Inventory).floors[0] != floors[0]
    assert world.ask(ops.Explain, request=replace(request, workload="o")).explanation.floor is None


# ---------------------------------------------------------------------- floors of other keys


def test_a_floor_that_a_key_may_not_declare_is_refused_alone_and_shown_with_the_reason() -> None:
    world = world_of("a")
    denied = {0: "key 'a' may request for tenant 'lab' only, not for 'other'"}
    floors = floor("x", tenant="other"), floor("w")
    answer = world.ask(ops.KeepWarm, floors=floors, denied=denied)
    assert [(one.tenant, one.workload, one.why) for one in answer.refused] == [
        ("other", "x", denied[0])
    ]
    assert slots(world) == ["a/d"]
    assert [one.workload for one in world.ask(ops.Inventory).floors] == ["w", "x"]
    assert view(world, 1) == (0, 1, denied[0])
    declare(world, floors[0], session="s2")
    assert len(world.ask(ops.Inventory).floors) == 2
    assert view(world, 0)[2] == "being loaded on a/d", "another session may declare it"
    declare(world, session="s2")
    assert view(world, 1)[2] == denied[0]
    world.alive = {"s2": None}
    world.advance(world.budget.client_gone_s + 1)
    assert world.ask(ops.Inventory, "s2").floors == (), "it ends with its session"


# ---------------------------------------------------------------------- changes and silence


@pytest.mark.parametrize("change", [{"loads": (("onnx", "{}"),)}, {"memory_mib": 500}])
def test_other_loads_and_memory_reach_the_hosts(change: dict[str, Any]) -> None:
    world = world_of("a")
    declare(world, floor())
    ((_, before),) = pushed(world)
    declare(world, floor(**change))
    ((_, after),) = pushed(world)
    assert before != after
    assert after[0].loads == change.get("loads", LOADS)
    assert after[0].share.memory_mib == change.get("memory_mib", 400)


def test_a_silent_host_is_sent_its_floors_when_it_is_back_and_keeps_its_slots() -> None:
    world = world_of("a", "b")
    declare(world, floor())
    assert pushed(world)
    del world.hosts["a"]
    world.handle(on.HostLeft, host=HostId("a"))
    declare(world, floor(loads=()))
    world.advance(CHECK_S + 1)
    assert (slots(world), pushed(world)) == (["a/d"], []), "it still loads there"
    shown(world, "a")
    world.advance(CHECK_S)
    assert [name for name, _ in pushed(world)] == ["a"]


# ---------------------------------------------------------------------- tenants


def test_the_floors_of_a_tenant_have_a_limit_and_displace_none_of_its_own() -> None:
    world = world_of(*(f"h{n}" for n in range(4)))
    declare(world, floor("z", 60, 1))
    world.advance(4 * SOON_S)
    declare(world, floor("a", 60, 1), floor("z", 60, 1), floor("b", 2, 1, tenant="other"))
    world.advance(4 * SOON_S)
    assert (len(slots(world, "a")), len(slots(world, "z"))) == (TENANT_WORKERS_MAX - 60, 60)
    assert view(world)[2] == "its tenant has 64 workers of floors, of at most 64"
    assert len(world.machine.state.floors.slots["other", "b"]) == 2


def test_a_quota_of_devices_limits_the_floors_of_its_tenant() -> None:
    world = world_of("a", "b", quotas={"default": Quota(devices=1)})
    declare(world, floor(workers_min=2))
    assert len(slots(world)) == 1
    assert view(world)[2] == "its tenant has 1 workers of floors, of at most 1"

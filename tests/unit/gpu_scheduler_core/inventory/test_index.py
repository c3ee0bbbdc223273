"""The index equals a search of all devices: placement, counts, infeasibility."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from corekit.ids import DeviceId, HostId, LeaseId
from corekit.values import replace
from gpu_scheduler.core.inventory.devices import fits, is_feasible, share_of
from gpu_scheduler.core.inventory.index import Index, preference
from gpu_scheduler.core.inventory.inventory import Inventory
from gpu_scheduler.core.placement.candidates import score
from gpu_scheduler.core.placement.capacity import (
    feasible_devices,
    is_infeasible,
    largest,
    shortage,
)
from gpu_scheduler.core.placement.explain import explain, with_verdicts
from gpu_scheduler.core.placement.head_reservation import reservable_for_head
from gpu_scheduler.core.placement.placement import place
from gpu_scheduler.model import (
    Device,
    DeviceKind,
    Health,
    HostState,
    Placement,
    Request,
    Resident,
    Sharing,
)
from gpu_scheduler.protocol.changes import HostRegistered
from gpu_scheduler.verdicts import NoFit
from gpu_scheduler.warm import workload_key
from tests.property.inputs import sized_request

MIB = (800, 1000, 1024)
HOSTS = ("h0", "h1", "h2")


requests = st.builds(
    sized_request,
    memory_pct=st.sampled_from([0, 0, 12.5, 33.3, 50, 100]),
    count=st.sampled_from([1, 1, 1, 2, 3, 5]),
    kinds=st.sampled_from([(), (DeviceKind.CPU,), (DeviceKind.CPU, DeviceKind.CUDA)]),
    models=st.sampled_from([(), (), ("A",), ("B", "A"), ("Z",)]),
    memory_mib=st.one_of(st.sampled_from([0, 100, 128, 500, 512, 1000]), st.integers(0, 1100)),
    memory_max_mib=st.sampled_from([None, None, None, 1100, 1500]),
    compute_guarantee_pct=st.sampled_from([0, 10, 12.5, 25, 33.3, 60, 100]),
    sharing=st.sampled_from(Sharing),
    placement=st.sampled_from(Placement),
    min_driver=st.sampled_from([None, None, "550", "550.54.14", "560"]),
    min_runtime=st.sampled_from([None, None, None, "12.4"]),
    warm_key=st.sampled_from([None, "k", "absent"]),
    workload=st.sampled_from([None, "w", "absent"]),
    advisory=st.booleans(),
    middleware=st.sampled_from([None, None, None, "rcuda"]),
)

devices = st.builds(
    Device,
    id=st.just(DeviceId("set later")),
    index=st.just(0),
    kind=st.sampled_from(DeviceKind),
    model=st.sampled_from("AB"),
    memory_mib=st.sampled_from(MIB),
    driver=st.sampled_from(["", "550.54.9", "550.54.14"]),
    runtime=st.sampled_from(["12.2", "12.10"]),
    health=st.sampled_from([Health.OK, Health.OK, Health.OK, Health.SUSPECT, Health.BAD]),
    resident=st.sampled_from([(), ("k",)]),
)

residents = st.builds(
    Resident,
    id=st.sampled_from(["w1", "w2", "w3"]),
    workload=st.sampled_from([workload_key("default", "w"), workload_key("other", "w")]),
    memory_mib=st.sampled_from([0, 50, 200, 700]),
    loading_s=st.sampled_from([0.0, 1.0, 2.5]),
)
loads = st.tuples(
    st.integers(0, 30),
    st.lists(residents, max_size=2).map(tuple),
    st.lists(st.sampled_from(["w1", "w2"]), max_size=2).map(tuple),
)
lent = st.tuples(st.integers(0, 30), requests)
days = st.lists(
    st.one_of(
        st.tuples(st.just("lend"), lent),
        st.tuples(st.just("end"), st.integers(0, 30)),
        st.tuples(st.just("host"), st.tuples(st.sampled_from(HOSTS), st.sampled_from(HostState))),
        st.tuples(st.just("drain"), st.tuples(st.integers(0, 30), st.booleans())),
        st.tuples(st.just("keep"), st.tuples(st.integers(0, 30), st.sampled_from(["me", None]))),
        st.tuples(st.just("warm"), st.tuples(st.integers(0, 30), st.sampled_from([(), ("k",)]))),
        st.tuples(st.just("load"), loads),
        st.tuples(st.just("load"), loads),
        st.tuples(st.just("ask"), requests),
    ),
    max_size=25,
)
mixed = st.lists(st.lists(devices, min_size=0, max_size=5), min_size=1, max_size=3)


def registered(
    host: HostId, gateway: str | None, devices: list[Device], middlewares: tuple[str, ...] = ()
) -> HostRegistered:
    return HostRegistered(
        host=host,
        incarnation="one",
        gateway=gateway,
        devices=tuple(devices),
        middlewares=middlewares,
    )


class Known:
    """An inventory after some changes, with the results of a search of all devices."""

    def __init__(self, said: list[list[Device]], past: list[Any]) -> None:
        self.inventory = Inventory()
        self.lent: list[tuple[LeaseId, Any]] = []
        for number, theirs in enumerate(said):
            host = HostId(HOSTS[number])
            named = [
                replace(device, id=DeviceId(f"{host}/{index}"), index=index)
                for index, device in enumerate(theirs)
            ]
            gateway = None if number == 2 else f"{host}:1"
            offered = ("rcuda",) if number == 0 else ()
            self.inventory.register(registered(host, gateway, named, offered))
            self.inventory.set_state(self.inventory.hosts[host], HostState.UP)
            self.inventory.observe(self.inventory.hosts[host], named, ())
        self.entries = list(self.inventory.devices.values())
        for what, detail in past:
            getattr(self, f"_{what}")(detail)

    def _lend(self, detail: tuple[int, Request]) -> None:
        number, request = detail
        if self.entries and number < 30:
            entry = self.entries[number % len(self.entries)]
            if fits(request, self.inventory.state_of(entry.device.id)) is None:
                lease = LeaseId(f"l{len(self.lent)}-{number}")
                share = share_of(request, entry.device, entry.host)
                self.inventory.allocate(lease, share)
                self.lent.append((lease, share))

    def _end(self, number: int) -> None:
        if self.lent:
            self.inventory.deallocate(*self.lent.pop(number % len(self.lent)))

    def _host(self, detail: tuple[str, HostState]) -> None:
        host = self.inventory.hosts.get(HostId(detail[0]))
        if host is not None:
            self.inventory.set_drained(host.host, detail[1] is HostState.DRAINED)
            if detail[1] is not HostState.DRAINED:
                self.inventory.set_state(host, detail[1])

    def _drain(self, detail: tuple[int, bool]) -> None:
        if self.entries:
            device = self.entries[detail[0] % len(self.entries)].device.id
            self.inventory.set_device_drained(device, detail[1])

    def _keep(self, detail: tuple[int, str | None]) -> None:
        if self.entries:
            self.inventory.reserve(
                [self.entries[detail[0] % len(self.entries)].device.id], detail[1]
            )

    def _warm(self, detail: tuple[int, tuple[str, ...]]) -> None:
        if self.entries:
            entry = self.entries[detail[0] % len(self.entries)]
            said = replace(entry.device, resident=detail[1])
            self.inventory.observe(self.inventory.hosts[entry.host], [said], ())

    def _load(self, detail: tuple[int, tuple[Resident, ...], tuple[str, ...]]) -> None:
        number, added, removed = detail
        if self.entries:
            device = self.entries[number % len(self.entries)].device.id
            self.inventory.change_residents(device, added, removed)

    def _ask(self, request: Request) -> None:
        place(request, self.inventory, "me")  # what it remembers must not mislead it later

    def fitting(self, request: Request, attempt: str) -> list[DeviceId]:
        ids = [entry.device.id for entry in self.entries]
        return [d for d in ids if fits(request, self.inventory.state_of(d), attempt) is None]

    def score(self, request: Request, device: DeviceId) -> Any:
        entry = self.inventory.devices[device]
        warm = request.warm_key is None or request.warm_key in entry.resident
        return score(request, self.inventory, device, warm=warm)


known = st.builds(Known, mixed, days)


@settings(max_examples=50)
@given(known, requests, st.sampled_from(["me", "other"]))
def test_placement_equals_a_search_of_all_devices(
    known: Known, request: Request, attempt: str
) -> None:
    request = replace(request, count=1)
    scores = [known.score(request, d) for d in known.fitting(request, attempt)]
    got = place(request, known.inventory, attempt)
    if got is None:
        assert not scores
    else:
        assert known.score(request, got[0]) == min(scores)


@settings(max_examples=50)
@given(known, requests, st.sampled_from(["me", "other"]))
def test_a_gang_gets_all_or_nothing_and_whenever_it_fits(
    known: Known, request: Request, attempt: str
) -> None:
    fitting = known.fitting(request, attempt)
    got = place(request, known.inventory, attempt)
    per_host = Counter(known.inventory.devices[d].host for d in fitting)
    on_one = request.placement is Placement.SAME_HOST
    together = max(per_host.values(), default=0) if on_one else len(fitting)
    assert (got is not None) is (together >= request.count)
    if got is None:
        return
    assert len(dict.fromkeys(got)) == request.count
    assert all(device in fitting for device in got)
    used = Counter(known.inventory.devices[d].host for d in got)
    if on_one:
        assert len(used) == 1
    elif request.placement is Placement.SPREAD and request.count > 1:
        assert max(used.values()) <= max(1, min(used[h] for h in used) + 1) or len(used) < 2
    if not on_one and request.count > 1:  # no worse preference than is needed to hold it all
        ranks = sorted(
            preference(request, known.inventory.state_of(d).device_class) for d in fitting
        )
        worst = max(preference(request, known.inventory.state_of(d).device_class) for d in got)
        assert worst <= ranks[request.count - 1]


@settings(max_examples=50)
@given(known, requests)
def test_explanations_count_the_result_of_every_device(known: Known, request: Request) -> None:
    ids = [entry.device.id for entry in known.entries]
    said = Counter(fits(request, known.inventory.state_of(d), "me") for d in ids)
    told = explain(request, known.inventory, attempt="me")
    assert told.devices_fitting == said.pop(None, 0)
    counts = dict(told.counts)
    together = counts.pop(NoFit.SAME_HOST, None)
    assert counts == {reason: count for reason, count in said.items() if reason is not None}
    assert (together is not None) is (
        told.devices_fitting >= request.count > 1 and place(request, known.inventory, "me") is None
    )
    assert sum(counts.values()) + told.devices_fitting == told.devices_known == len(ids)
    told = with_verdicts(told, request, known.inventory, "me")
    assert (len(told.devices), told.devices_left_out) == (len(ids), 0)
    for verdict in told.devices:
        device_state = known.inventory.state_of(verdict.device)
        assert verdict.reason == fits(request, device_state, "me")


def emptied(inventory: Inventory, more: list[Device], on: HostId) -> Inventory:
    """The same devices, all idle and available, and some more on one host."""
    empty = Inventory()
    hosts = {host.host: host.gateway for host in inventory.hosts.values()}
    for host, gateway in {HostId("new"): "new:1", **hosts}.items():
        known = inventory.hosts[host].devices.values() if host in hosts else ()
        here = [*(entry.device for entry in known), *(more if host == on and gateway else ())]
        offered = inventory.hosts[host].middlewares if host in hosts else ("rcuda",)
        best = [replace(d, health=Health.OK) for d in here]
        empty.register(registered(host, gateway, best, offered))
        empty.set_state(empty.hosts[host], HostState.UP)
    return empty


@settings(max_examples=50)
@given(known, requests, st.lists(devices, max_size=2))
def test_the_largest_fit_is_granted_on_idle_devices(
    known: Known, request: Request, declared: list[Device]
) -> None:
    inventory = known.inventory
    named = [replace(d, id=DeviceId(f"new/{i}"), index=i) for i, d in enumerate(declared)]
    inventory.declared = tuple(named)
    # declared devices may turn up on any one host, and all hosts with a gateway may have them
    worlds = [emptied(inventory, named, host) for host in (*inventory.hosts, HostId("new"))]
    fits_all = any(place(request, world) is not None for world in worlds)
    most = largest(request, inventory)
    if not worlds[0].devices:
        assert most is None
        return
    assert most is not None
    assert any(place(most, world) is not None for world in worlds)
    if not is_infeasible(request, inventory):
        assert (most.count, shortage(request, inventory)) == (request.count, None)
        assert most.memory_mib >= request.memory_mib
    else:
        assert shortage(request, inventory) is not None
        assert not fits_all
    assert fits_all is not is_infeasible(request, inventory)
    assert feasible_devices(request, inventory) == feasible_devices(
        request, inventory
    )  # remembered


def test_declared_devices_are_on_hosts_with_a_gateway() -> None:
    one = Device(
        id=DeviceId("set later"),
        index=0,
        kind=DeviceKind.CUDA,
        model="A",
        memory_mib=800,
        driver="550.54.9",
        runtime="12.2",
        health=Health.OK,
    )
    inventory = Known([[], [], [one]], []).inventory  # h2 is watched by a monitor alone
    inventory.declared = (replace(one, id=DeviceId("new/0")),)
    together = Request(count=2, placement=Placement.SAME_HOST, advisory=True)
    assert feasible_devices(together, inventory) == 1
    assert is_infeasible(together, inventory)
    most = largest(together, inventory)
    assert most is not None
    assert most.count == 1


@settings(max_examples=40)
@given(known, requests)
def test_devices_reserved_for_the_head_are_feasible_for_it(known: Known, request: Request) -> None:
    kept = reservable_for_head(request, known.inventory)
    device_states = [known.inventory.state_of(device) for device in kept]
    assert len(dict.fromkeys(kept)) in (0, request.count)
    for device_state in device_states:
        usable = (device_state.host_state, device_state.health) == (HostState.UP, Health.OK)
        assert usable
        assert is_feasible(request, device_state.device_class)
    if request.placement is Placement.SAME_HOST and request.count > 1:
        assert len({known.inventory.devices[device].host for device in kept}) <= 1


@settings(max_examples=40)
@given(known)
def test_indexes_equal_a_fresh_index(known: Known) -> None:
    index, warm, residents = Index(), Index(), known.inventory.residents
    for entry in known.entries:
        device_state = known.inventory.state_of(entry.device.id)
        index.add(entry.device.id, device_state, loaded=bool(residents.of(entry.device.id)))
        if "k" in entry.resident:
            warm.add(entry.device.id, device_state)
        assert is_feasible(Request(advisory=True), device_state.device_class)
    assert index.groups == known.inventory.index.groups
    found = known.inventory.warm("k")
    assert (found.groups if found else {}) == warm.groups


def crowd(*promised: tuple[int, int]) -> Inventory:
    """Devices of one class, two on each host, with these allocations of memory and compute."""
    inventory = Inventory()
    for number in range(0, len(promised), 2):
        host = HostId(f"h{number // 2}")
        named = [
            Device(
                id=DeviceId(f"{host}/{index}"),
                index=index,
                kind=DeviceKind.CUDA,
                model="A",
                memory_mib=1000,
            )
            for index in range(2)
        ]
        inventory.register(registered(host, "g", named))
        inventory.set_state(inventory.hosts[host], HostState.UP)
    for number, (entry, (mib, pct)) in enumerate(
        zip(inventory.devices.values(), promised, strict=False)
    ):
        share = share_of(Request(memory_mib=mib, compute_guarantee_pct=pct), entry.device, "h")
        inventory.allocate(LeaseId(f"l{number}"), share)
    return inventory


promises = st.lists(
    st.tuples(st.integers(0, 1000), st.sampled_from([0, 0, 0, 12, 25, 60])), min_size=6, max_size=20
)


@settings(max_examples=100)
@given(
    promises,
    st.integers(0, 300),
    st.sampled_from([0, 0, 12, 25]),
    st.sampled_from(Placement),
)
def test_among_many_devices_the_best_fit_is_found(
    promised: list[tuple[int, int]], mib: int, pct: int, placement: Placement
) -> None:
    inventory = crowd(*promised)
    request = Request(memory_mib=mib, compute_guarantee_pct=pct, placement=placement)
    scores = [
        score(request, inventory, device)
        for device in inventory.devices
        if fits(request, inventory.state_of(device)) is None
    ]
    got = place(request, inventory)
    assert [score(request, inventory, d) for d in got or ()] == sorted(scores)[:1]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from([0, 600, 700])), max_size=20))
def test_a_gang_that_was_refused_fits_once_one_host_has_room(
    turns: list[tuple[int, int]],
) -> None:
    inventory = crowd(*[(700, 0)] * 8)
    gang = Request(count=2, memory_mib=400, placement=Placement.SAME_HOST)
    shares = {e.device.id: list(e.shares.items()) for e in inventory.devices.values()}
    assert place(gang, inventory) is None
    for number, mib in turns:
        entry = list(inventory.devices.values())[number]
        for lease, share in shares[entry.device.id]:
            inventory.deallocate(lease, share)
        again = share_of(Request(memory_mib=mib), entry.device, entry.host)
        inventory.allocate(LeaseId("again"), again)
        shares[entry.device.id] = [(LeaseId("again"), again)]
        free = [
            all(fits(gang, inventory.state_of(device)) is None for device in host.devices)
            for host in inventory.hosts.values()
        ]
        assert (place(gang, inventory) is not None) is any(free)

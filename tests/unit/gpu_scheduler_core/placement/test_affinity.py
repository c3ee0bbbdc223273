"""The policy `affinity` of Kernel-as-a-service: tables of its decisions, and its bounds."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corekit.errors import AppError
from gpu_scheduler.affinity import OUTSTANDING_MAX, PENALTY_RUNS, Affinity, RunStart


class Table:
    """A core, whose runs are numbered in the order of submission."""

    def __init__(self, *devices: str, clients_max: int | None = None) -> None:
        self.core = Affinity(devices, clients_max)
        self.numbers = itertools.count(1)
        self.under_way: dict[int, RunStart] = {}

    def join(self, *clients: str) -> None:
        for client in clients:
            self.core.join(client)

    def note(self, started: list[RunStart]) -> list[str]:
        self.under_way |= {one.run: one for one in started}
        marks = {True: "", False: " cold"}
        return [f"{one.client}@{one.device}{marks[one.warm]}" for one in started]

    def submit(self, client: str, expected_s: float = 1.0, devices: str = "") -> list[str]:
        number = next(self.numbers)
        return self.note(self.core.submit(client, number, expected_s, devices.split()))

    def done(self, run: int, used_s: float = 1.0) -> list[str]:
        del self.under_way[run]
        return self.note(self.core.done(run, used_s))


def test_a_free_device_takes_any_run_and_then_its_own_clients_first() -> None:
    t = Table("g0", "g1")
    t.join("a", "b", "c")
    assert t.submit("a") == ["a@g0 cold"]
    assert t.submit("b") == ["b@g1 cold"]
    assert [t.submit(client) for client in "bca"] == [[], [], []]
    assert t.done(1) == ["a@g0"], "before b and c, which came first but are not at home"
    assert t.done(2) == ["b@g1"]
    assert t.done(3) == ["c@g1 cold"], "alone in the queue: no device stays free"


def test_a_client_leaves_its_device_when_it_is_ten_runs_behind() -> None:
    t = Table("g", clients_max=1)
    t.join("a", "b")
    runs = [t.submit("a")[0].removesuffix(" cold")]
    for _ in range(40):
        t.submit("a")
        t.submit("b")
    for number in itertools.islice(iter(lambda: next(iter(t.under_way)), None), 40):
        runs += [one.removesuffix(" cold") for one in t.done(number)]
    first = runs.index("b@g")
    assert first in (PENALTY_RUNS + 1, PENALTY_RUNS + 2)
    second = runs.index("a@g", first)
    assert second - first in range(2 * PENALTY_RUNS, 2 * PENALTY_RUNS + 4)


def test_an_idle_client_earns_no_credit() -> None:
    t = Table("g")
    t.join("a", "b", "c")
    for number in range(1, 101):
        t.submit("a")
        t.done(number)
    assert t.core.virtual_s("a") == 100
    t.submit("a")
    t.submit("b")
    assert t.core.virtual_s("b") == 100, "the system's virtual time, when it came back"


def test_a_run_only_begins_on_the_devices_of_its_lease() -> None:
    t = Table("g0", "g1")
    t.join("a", "b")
    assert t.submit("a", devices="g1") == ["a@g1 cold"]
    assert t.submit("a", devices="g1") == []
    assert t.submit("b") == ["b@g0 cold"]
    assert t.done(1) == ["a@g1"]


def test_a_client_that_leaves_takes_its_waiting_runs_along() -> None:
    t = Table("g")
    t.join("a", "b")
    t.submit("a")
    t.submit("a")
    t.submit("b")
    t.core.leave("a")
    t.core.leave("a")
    with pytest.raises(AppError, match="has left"):
        t.join("a")
    assert t.done(1) == ["b@g cold"]
    assert t.core.residents("g") == ("b",)
    t.join("a")


def test_an_evicted_client_is_cold_again() -> None:
    t = Table("g")
    t.join("a")
    t.submit("a")
    t.done(1)
    t.core.evicted("g", "a")
    t.core.evicted("g", "a")
    assert t.submit("a") == ["a@g cold"]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda core: core.submit("x", 9, 1.0), "client x has not joined"),
        (lambda core: core.submit("a", 9, 1.0, ("h",)), "no device h"),
        (lambda core: core.submit("a", 9, -1.0), "not a time"),
        (lambda core: core.submit("a", 9, float("nan")), "not a time"),
        (lambda core: core.done(9, 1.0), "run 9 is not under way"),
        (lambda core: core.join("b", 0.0), "must be above 0"),
    ],
)
def test_wrong_calls_are_refused(call: object, problem: str) -> None:
    core = Affinity(["g"])
    core.join("a")
    assert callable(call)
    with pytest.raises(AppError, match=problem):
        call(core)


def test_at_most_256_runs_are_outstanding() -> None:
    t = Table("g")
    t.join("a")
    for _ in range(OUTSTANDING_MAX):
        t.submit("a")
    with pytest.raises(AppError, match="the limit is 256"):
        t.submit("a")
    t.done(1)
    t.submit("a")


@dataclass
class Load:
    """Clients that always have runs waiting, on a clock of their own."""

    weights: list[float]
    lengths_s: list[float]
    devices: int
    clients_max: int | None
    served_s: list[float] = field(default_factory=list)
    widest_s: float = 0.0  #: between the virtual times of two clients

    def play(self, until_s: float) -> None:
        core = Affinity([f"g{n}" for n in range(self.devices)], self.clients_max)
        self.served_s = [0.0] * len(self.weights)
        numbers, ends = itertools.count(), list[tuple[float, int, int]]()
        now_s = 0.0

        def begin(started: list[RunStart]) -> None:
            for one in started:
                client = int(one.client)
                heapq.heappush(ends, (now_s + self.lengths_s[client], one.run, client))

        for client, weight in enumerate(self.weights):
            core.join(str(client), weight)
        for client in range(len(self.weights)):
            for _ in range(self.devices + 1):  # one always waits
                begin(core.submit(str(client), next(numbers), self.lengths_s[client]))
        while now_s < until_s:
            now_s, run, client = heapq.heappop(ends)
            self.served_s[client] += self.lengths_s[client]
            begin(core.submit(str(client), next(numbers), self.lengths_s[client]))
            begin(core.done(run, self.lengths_s[client]))
            assert len(ends) == self.devices, "a device is free while runs wait"
            times = [core.virtual_s(str(c)) for c in range(len(self.weights))]
            self.widest_s = max(self.widest_s, max(times) - min(times))


LOADS = st.integers(2, 6).flatmap(
    lambda count: st.builds(
        Load,
        weights=st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=count, max_size=count),
        lengths_s=st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=count, max_size=count),
        devices=st.integers(1, 4),
        clients_max=st.sampled_from([None, 1, 2]),
    )
)


@given(LOADS)
@settings(max_examples=60, deadline=None)
def test_service_is_proportional_and_no_device_idles(load: Load) -> None:
    """Virtual times of clients that always wait stay together: no client starves."""
    load.play(300.0)
    run_s = max(length / w for length, w in zip(load.lengths_s, load.weights, strict=True))
    started = load.devices  # a client may have as many runs begun, charged ahead
    assert load.widest_s <= (PENALTY_RUNS + 1 + started) * run_s + 1e-9


@given(st.integers(0, 3), st.sampled_from([0.1, 0.3, 0.5]))
@settings(max_examples=20, deadline=None)
def test_newcomers_without_end_starve_no_client(others: int, length_s: float) -> None:
    """A client of long runs waits without affinity, and a new client of short ones comes with every
    run that ends."""
    core = Affinity(["g"], clients_max=1)
    numbers = itertools.count(1)
    for client in ("first", "patient", *(f"other{n}" for n in range(others))):
        core.join(client)
        core.submit(client, next(numbers), 1.0 if client == "patient" else length_s)
    [one] = [RunStart("first", 1, "g", warm=False)]
    waited_s = 0.0
    while one.client != "patient":
        core.leave(one.client)
        core.join(f"new{one.run}")
        core.submit(f"new{one.run}", next(numbers), length_s)
        waited_s += length_s
        [one] = core.done(one.run, length_s)
        assert waited_s <= (3 + others) * (PENALTY_RUNS + 1)
    assert waited_s > length_s, "it was overtaken"

"""Declared data sets of requests: hosts that have them, or have them soonest, are preferred."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.errors import AppError
from corekit.ids import HostId
from gpu_scheduler.core.placement.explain import explain, with_verdicts
from gpu_scheduler.core.placement.placement import place
from gpu_scheduler.data_sets import (
    UNKNOWN_BYTES,
    DataSet,
    HeldData,
    HeldSet,
    fetch_s,
    held_bytes,
    loaded_name,
    source_problem,
)
from gpu_scheduler.model import Placement, Request
from gpu_scheduler.monitor.device_report import ReportedData
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.verdicts import NoFit
from tests.scheduler_world import World, device

GB = 10**9
SPACE_MIB = 100_000


def data_set(name: str = "weights", size_bytes: int = 34 * GB // 10) -> DataSet:
    return DataSet(name=name, source=f"s3://models/{name}", digest="0" * 64, bytes=size_bytes)


WEIGHTS = data_set()


def holding(size_bytes: int, bytes_per_s: float | None = None) -> HeldData:
    return HeldData(added=(HeldSet(key=WEIGHTS.key, bytes=size_bytes),), bytes_per_s=bytes_per_s)


def asks(**fields: Any) -> Request:
    return Request(**{"memory_mib": 1, "data_sets": (WEIGHTS,), **fields})


def chosen(world: World, request: Request) -> list[str]:
    found = place(request, world.machine.state.inventory)
    return [] if found is None else [str(one).rpartition("/")[0] for one in found]


def world(**hosts: HeldData) -> World:
    made = World()
    for name, held in hosts.items():
        devices = [device(f"{name}/{n}", index=n) for n in range(2)]
        made.host(name, *devices, data_space_mib=SPACE_MIB, held=held)
    return made


@pytest.mark.parametrize(
    ("a", "b", "c", "best"),
    [
        (HeldData(), holding(WEIGHTS.bytes), HeldData(), "b"),
        (holding(1 * GB), holding(2 * GB), holding(31 * GB // 10), "c"),
        # 2.4 GB at 1 GB/s before 0.3 GB at 0.05 GB/s
        (holding(1 * GB, 1e9), HeldData(), holding(31 * GB // 10, 5e7), "a"),
        (HeldData(), HeldData(bytes_per_s=1e9), HeldData(), "b"),
    ],
)
def test_the_host_with_the_data_soonest_is_chosen(
    a: HeldData, b: HeldData, c: HeldData, best: str
) -> None:
    assert chosen(world(a=a, b=b, c=c), asks()) == [best]


def test_a_host_without_the_data_is_chosen_when_the_other_is_full() -> None:
    made = world(a=HeldData(), b=holding(WEIGHTS.bytes))
    for number in range(2):
        lease = made.granted(f"full-{number}", asks(memory_mib=1000))
        assert lease.shares[0].host == "b"
    assert chosen(made, asks(memory_mib=1000)) == ["a"]


def test_a_gang_prefers_hosts_with_the_data() -> None:
    made = world(a=HeldData(), b=holding(WEIGHTS.bytes))
    assert chosen(made, asks(count=2)) == ["b", "b"]
    assert chosen(made, asks(count=2, placement=Placement.SAME_HOST)) == ["b", "b"]


def test_preference_comes_before_data() -> None:
    made = World()
    made.host("a", device("a/0", model="X"), data_space_mib=SPACE_MIB)
    made.host("b", device("b/0", model="Y"), data_space_mib=SPACE_MIB, held=holding(WEIGHTS.bytes))
    assert chosen(made, asks(models=("X", "Y"))) == ["a"]


def test_differences_are_applied_and_a_host_that_is_gone_has_nothing() -> None:
    made = world(a=HeldData(), b=holding(WEIGHTS.bytes))
    gone = HeldData(removed=(WEIGHTS.key,))
    made.handle(host_ops.Report, host=HostId("b"), reply_to="r", held=gone)
    made.handle(host_ops.Report, host=HostId("a"), reply_to="r", held=holding(5))
    assert chosen(made, asks()) == ["a"]
    assert dict(made.machine.state.inventory.held.of(HostId("b"))) == {}
    made.host("a", device("a/0"), device("a/1", index=1), data_space_mib=SPACE_MIB)
    assert dict(made.machine.state.inventory.held.of(HostId("a"))) == {}


def test_a_host_that_fetches_nothing_is_no_choice() -> None:
    made = World()
    made.host("a", device("a/0"))
    answer = made.reserve("x", asks())
    assert answer.explanation.short.what is NoFit.DATA_SPACE
    assert "`gpud --data-space`" in answer.explanation.sentence


def test_explain_names_what_a_host_has() -> None:
    made = world(b=holding(31 * GB // 10))
    inventory = made.machine.state.inventory
    found = with_verdicts(explain(asks(), inventory), asks(), inventory)
    assert [one.data for one in found.devices] == ["has 3.1 of 3.4 GB of weights"] * 2


def test_the_install_carries_the_sets_and_a_workload_of_its_own() -> None:
    made = world(a=HeldData())
    made.granted("x", asks(workload="w"))
    (push,) = made.pushed(host_ops.InstallPush)
    assert push.install.data_sets == (WEIGHTS,)
    assert push.install.workload == loaded_name("w", (WEIGHTS,)) != "w"


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "a b"},
        {"digest": "0"},
        {"source": "ftp://x/y"},
        {"source": "s3://b/x?versionId="},
        {"source": "https://h/x"},
        {"bytes": -1},
    ],
)
def test_a_malformed_set_is_refused(fields: dict[str, Any]) -> None:
    good: dict[str, Any] = {"name": "w", "source": "s3://bucket/w", "digest": "0" * 64}
    DataSet(**good)
    with pytest.raises(AppError):
        DataSet(**{**good, **fields})


sizes = st.lists(st.integers(0, 10**12), min_size=1, max_size=5)


@given(sizes=sizes, held=sizes, bytes_per_s=st.floats(1, 1e12))
def test_more_here_is_never_later(sizes: list[int], held: list[int], bytes_per_s: float) -> None:
    sets = [data_set(f"s{n}", size) for n, size in enumerate(sizes)]
    here = {one.key: size for one, size in zip(sets, held, strict=False)}
    assert 0 <= fetch_s(sets, here, bytes_per_s) <= fetch_s(sets, {}, bytes_per_s)
    assert held_bytes(sets, here) <= sum(one.bytes or UNKNOWN_BYTES for one in sets)


def test_reports_are_differences_until_they_are_acknowledged() -> None:
    reports = ReportedData()
    first = reports.news({"a": 1, "b": 2}, None)
    assert first == reports.news({"a": 1, "b": 2}, None)
    reports.reported(first)
    assert reports.news({"a": 1, "b": 2}, 5.0) is None
    change = reports.news({"a": 3}, 5.0)
    expected = HeldData(added=(HeldSet(key="a", bytes=3),), removed=("b",), bytes_per_s=5.0)
    assert change == expected
    reports.doubt()
    assert reports.news({"a": 3}, None) == HeldData(
        added=(HeldSet(key="a", bytes=3),), removed=("b",)
    )


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("oci://h:5000/a/b-c__d.e/f--g@sha256:", None),
        ("oci://h/allowed/../../secret/x@sha256:", "has not the form oci://"),
        ("oci://h/allowed/./x@sha256:", "has not the form oci://"),
        ("oci://h/allowed//x@sha256:", "has not the form oci://"),
        ("https://h/v..1/.x/a%20b?at=../x#sha256=", None),
        ("https://h/allowed/../secret#sha256=", "leads elsewhere"),
        ("https://h/allowed/..?x#sha256=", "leads elsewhere"),
        ("https://h/allowed/%2e%2E/secret#sha256=", "leads elsewhere"),
        ("https://h/allowed/..%2fsecret#sha256=", "leads elsewhere"),
        ("https://h/allowed%5c.%2e%5Csecret#sha256=", "leads elsewhere"),
        ("https://h/allowed/./x#sha256=", "leads elsewhere"),
    ],
)
def test_a_source_leads_nowhere_else_than_it_reads(source: str, problem: str | None) -> None:
    found = source_problem(source + "0" * 64)
    assert found is None if problem is None else (found or "").startswith(problem)

"""Explanations: counts, the largest fit, one sentence."""

import pytest

from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.model import DeviceKind, Placement, Request, Sharing


@pytest.fixture
def mixed(world, device):
    world.host(
        "h1",
        device("a", 8000, model="A100"),
        device("b", 2000, index=1, model="T4"),
        device("c", 4000, DeviceKind.CPU, 2, model="X"),
    )
    return world


def explain(world, **fields):
    world.ask(on.ExplainAsked, **fields)
    return world.answer()


def test_impossible_names_the_largest_fit(mixed):
    answer = mixed.reserve("a", Request(kinds=(DeviceKind.CUDA,), memory_mib=9000))
    assert answer.outcome is do.Outcome.IMPOSSIBLE
    reason = answer.explanation
    assert reason.largest_fit == "1 × cuda with 8000 MiB, 100 %"
    assert reason.counts == {"KIND": 1, "MEMORY": 2}
    assert reason.sentence == (
        "no known capacity can ever hold 1 × cuda with 9000 MiB: 8000 MiB is the most of one "
        "device, the largest fit is 1 × cuda with 8000 MiB, 100 % "
        "(of 3 devices: 1 of another kind, 2 with too little memory)"
    )


def test_too_many_devices_are_impossible(mixed):
    answer = mixed.reserve("a", Request(count=4))
    assert answer.outcome is do.Outcome.IMPOSSIBLE
    answer = mixed.reserve("b", Request(count=3, placement=Placement.SAME_HOST))
    assert answer.outcome is do.Outcome.GRANTED


def test_too_many_devices_say_how_many_there_are(world, device):
    world.host("h1", *(device(f"d{i}", 4096, DeviceKind.CPU, i) for i in range(2)))
    reason = world.reserve("a", Request(count=5)).explanation
    assert reason.sentence == (
        "no known capacity can ever hold 5 × device: 2 such devices are known, "
        "the largest fit is 2 × cpu with 4096 MiB, 100 % (of 2 devices: 2 fitting)"
    )


def test_every_known_device_is_told_once(mixed):
    mixed.reserve("a", Request(models=("A100",), sharing=Sharing.EXCLUSIVE))
    want = Request(count=2, kinds=(DeviceKind.CUDA,), sharing=Sharing.EXCLUSIVE)
    assert mixed.reserve("b", want).explanation.sentence == (
        "number 1 in the queue: 2 × cuda, exclusive must wait, 1 of 2 fit now "
        "(of 3 devices: 1 fitting, 1 of another kind, 1 lent exclusively)"
    )


def test_declared_devices_are_known_before_they_register(world, device):
    world.handle(on.CapacityDeclared, devices=(device("d0", 4096),))
    reason = world.reserve("a", Request(count=2)).explanation
    assert reason.sentence.endswith("(no device has registered yet)")


def test_same_host_too_large_for_any_host(world, device):
    world.host("h1", device("a"))
    world.host("h2", device("b"))
    answer = world.reserve("a", Request(count=2, placement=Placement.SAME_HOST))
    assert answer.outcome is do.Outcome.IMPOSSIBLE


def test_nothing_known(world):
    answer = world.reserve("a")
    assert answer.outcome is do.Outcome.IMPOSSIBLE
    assert "no device is known" in answer.explanation.sentence


def test_waiting_says_why_and_where(mixed):
    want = Request(models=("A100",), sharing=Sharing.EXCLUSIVE)
    mixed.reserve("a", want)
    mixed.reserve("b", want)
    reason = mixed.reserve("c", want).explanation
    assert (reason.position, reason.devices_fitting, reason.devices_known) == (2, 0, 3)
    assert reason.sentence == (
        "number 2 in the queue: 1 × device A100, exclusive must wait, 0 of 1 fit now "
        "(of 3 devices: 2 of another model, 1 lent exclusively)"
    )
    assert explain(mixed, attempt="b").explanation.position == 1


def test_dry_runs(mixed, code):
    assert explain(mixed, request=Request()).outcome is do.Outcome.GRANTED
    assert explain(mixed, request=Request()).explanation.sentence == "1 × device fits now"
    assert explain(mixed, request=Request(count=9)).outcome is do.Outcome.IMPOSSIBLE
    mixed.ask(on.DrainAsked, host="h1", drained=True)
    assert explain(mixed, request=Request()).outcome is do.Outcome.WAITING
    assert explain(mixed, attempt="none").code is code.NOT_FOUND
    assert mixed.leases == []


def test_by_holder(mixed):
    mixed.attempt("job")
    assert explain(mixed, holder="job").outcome is do.Outcome.GRANTED

"""Explanations: counts, the largest fit, one sentence."""

from typing import Any

import pytest

from corekit.errors import ErrorCode
from corekit.ids import AttemptId
from corekit.values import replace
from gpu_scheduler.core import events as on
from gpu_scheduler.model import DeviceKind, LeaseLifetime, Placement, Request, Sharing
from gpu_scheduler.protocol import answers, ops
from tests.scheduler_world import World, device


@pytest.fixture
def mixed(world: World) -> World:
    world.host(
        "h1",
        device("a", 8000, model="A100"),
        device("b", 2000, index=1, model="T4"),
        device("c", 4000, DeviceKind.CPU, index=2, model="X"),
    )
    return world


def explain(world: World, **fields: Any) -> Any:
    return world.ask(ops.Explain, **fields)


def test_impossible_names_the_largest_fit(mixed: World) -> None:
    answer = mixed.reserve("a", Request(kinds=(DeviceKind.CUDA,), memory_mib=9000))
    assert answer.outcome is answers.Outcome.IMPOSSIBLE
    reason = answer.explanation
    assert reason.largest_fit == "1 × cuda with 8000 MiB, 100 %"
    assert reason.counts == {"KIND": 1, "MEMORY": 2}
    assert reason.sentence == (
        "no known capacity can ever serve 1 × cuda with 9000 MiB: "
        "the largest such device has 8000 MiB, the largest fit is 1 × cuda with 8000 MiB, 100 % "
        "(of 3 devices: 1 of another kind, 2 with too little memory)"
    )


def test_too_many_devices_are_impossible(mixed: World) -> None:
    answer = mixed.reserve("a", Request(count=4))
    assert answer.outcome is answers.Outcome.IMPOSSIBLE
    answer = mixed.reserve("b", Request(count=3, placement=Placement.SAME_HOST))
    assert answer.outcome is answers.Outcome.GRANTED


def test_too_many_devices_report_the_known_number(world: World) -> None:
    world.host("h1", *(device(f"d{i}", 4096, DeviceKind.CPU, index=i) for i in range(2)))
    reason = world.reserve("a", Request(count=5)).explanation
    assert reason.sentence == (
        "no known capacity can ever serve 5 × device: only 2 such devices exist, "
        "the largest fit is 2 × cpu with 4096 MiB, 100 % (of 2 devices: 2 fitting)"
    )


def test_every_known_device_is_counted_once(mixed: World) -> None:
    mixed.reserve("a", Request(models=("A100",), sharing=Sharing.EXCLUSIVE))
    want = Request(count=2, kinds=(DeviceKind.CUDA,), sharing=Sharing.EXCLUSIVE)
    assert mixed.reserve("b", want).explanation.sentence == (
        "number 1 in the queue: 2 × cuda, exclusive must wait, 1 of 2 fit now "
        "(of 3 devices: 1 fitting, 1 of another kind, 1 allocated exclusively)"
    )


def test_declared_devices_are_known_before_they_register(world: World) -> None:
    world.handle(on.CapacityDeclared, devices=(device("d0", 4096),))
    reason = world.reserve("a", Request(count=2)).explanation
    assert reason.sentence.endswith("(no device has registered yet)")


def test_same_host_too_large_for_any_host(world: World) -> None:
    world.host("h1", device("a"))
    world.host("h2", device("b"))
    answer = world.reserve("a", Request(count=2, placement=Placement.SAME_HOST))
    assert answer.outcome is answers.Outcome.IMPOSSIBLE


def test_nothing_known(world: World) -> None:
    answer = world.reserve("a")
    assert answer.outcome is answers.Outcome.IMPOSSIBLE
    said = "no known capacity can ever serve 1 × device: no device is known"
    assert answer.explanation.sentence == said


def test_a_waiting_request_has_a_reason_and_a_position(mixed: World) -> None:
    want = Request(models=("A100",), sharing=Sharing.EXCLUSIVE)
    mixed.reserve("a", want)
    mixed.reserve("b", want)
    reason = mixed.reserve("c", want).explanation
    assert (reason.position, reason.devices_fitting, reason.devices_known) == (2, 0, 3)
    assert reason.sentence == (
        "number 2 in the queue: 1 × device A100, exclusive must wait, 0 of 1 fit now "
        "(of 3 devices: 2 of another model, 1 allocated exclusively)"
    )
    assert explain(mixed, attempt="b").explanation.position == 1


def test_dry_runs(mixed: World) -> None:
    assert explain(mixed, request=Request()).outcome is answers.Outcome.GRANTED
    assert explain(mixed, request=Request()).explanation.sentence == "1 × device fits now"
    assert explain(mixed, request=Request(count=9)).outcome is answers.Outcome.IMPOSSIBLE
    mixed.ask(ops.Drain, host="h1")
    assert explain(mixed, request=Request()).outcome is answers.Outcome.WAITING
    assert explain(mixed, attempt="none").code is ErrorCode.NOT_FOUND
    assert mixed.leases == []


def test_by_holder(mixed: World) -> None:
    mixed.attempt("job")
    assert explain(mixed, holder="job").outcome is answers.Outcome.GRANTED


@pytest.mark.parametrize(
    ("fields", "what", "words", "largest"),
    [
        ({"kinds": (DeviceKind.VPU,)}, "KIND", "only cuda/cpu is known", "1 × cuda with 8000"),
        ({"models": ("H100",)}, "MODEL", "only A100/T4/X is known", "1 × cuda with 8000"),
        (
            {"memory_mib": 8001},
            "MEMORY",
            "the largest such device has 8000 MiB",
            "1 × cuda with 8000",
        ),
        (
            {"count": 9, "memory_mib": 3000},
            "COUNT",
            "only 2 such devices exist",
            "2 × cuda/cpu with 4000",
        ),
        ({"min_driver": "560"}, "DRIVER", "driver 550.54.15 is the newest", "1 × cuda with 8000"),
        ({"min_runtime": "12.10", "kinds": (DeviceKind.CUDA,)}, "RUNTIME", "12.9 is", "1 × cuda"),
        (
            {"count": 3, "placement": Placement.SAME_HOST, "kinds": (DeviceKind.CUDA,)},
            "SAME_HOST",
            "2 is the most on one host",
            "2 × cuda with 2000",
        ),
    ],
)
def test_an_impossible_request_reports_the_shortage(
    world: World,
    fields: dict[str, Any],
    what: str,
    words: str,
    largest: str,
) -> None:
    """The largest fit of each explanation is granted, since all devices are idle."""
    versions: dict[str, Any] = {"driver": "550.54.15", "runtime": "12.9"}
    world.host(
        "h1",
        device("a", 8000, model="A100", **versions),
        device("b", 2000, index=1, model="T4", **versions),
        device("c", 4000, DeviceKind.CPU, index=2, model="X"),
    )
    if what == "SAME_HOST":
        world.host("h2", device("d", 1000, model="A100"))
    told = world.reserve("a", Request(**fields)).explanation
    assert told.short.what == what
    assert words in told.sentence
    assert told.largest_fit.startswith(largest)
    assert world.reserve("largest", told.largest).outcome is answers.Outcome.GRANTED


def test_explain_lists_feasible_devices_first(mixed: World) -> None:
    mixed.reserve("a", Request(models=("A100",), sharing=Sharing.EXCLUSIVE))
    want = Request(kinds=(DeviceKind.CUDA,), memory_mib=1000, sharing=Sharing.EXCLUSIVE, count=2)
    mixed.reserve("b", want)
    told = explain(mixed, attempt="b").explanation
    assert [(d.device, d.reason) for d in told.devices] == [
        ("a", "EXCLUSIVE_TAKEN"),
        ("b", None),
        ("c", "KIND"),
    ]
    assert told.devices_left_out == 0
    assert told.largest_fit == "2 × cuda with 2000 MiB, 100 %"
    passing = mixed.reserve("c", want).explanation  # stays short
    assert (passing.devices, passing.largest, passing.largest_fit) == ((), None, "")


def test_many_devices_are_listed_in_part(world: World) -> None:
    for host in range(3):
        world.host(f"h{host}", *(device(f"{host}/{i}", index=i) for i in range(30)))
    told = explain(world, request=Request()).explanation
    assert (len(told.devices), told.devices_left_out) == (64, 26)


def test_capacity_is_expected_when_stated_lengths_are_over(one: World, whole: Request) -> None:
    one.alive["s1"] = None
    one.reserve("a", whole, hold=LeaseLifetime.DEADLINE, lease_s=100.0)
    one.reserve("b", whole)
    one.advance(40)
    told = explain(one, attempt="b").explanation
    assert told.expected_s == pytest.approx(60)
    assert told.sentence.endswith(
        "enough is expected to be free in 60 s: blocking leases expire by then"
    )
    one.advance(60)
    assert [lease.attempt for lease in one.leases] == ["b"]


def test_the_slowest_of_the_devices_it_needs_decides(world: World, whole: Request) -> None:
    world.host("h", *(device(f"d{i}", index=i) for i in range(3)))
    for number, length_s in enumerate((300.0, 100.0, 200.0)):
        world.reserve(f"f{number}", whole, hold=LeaseLifetime.DEADLINE, lease_s=length_s)
    pair = Request(count=2, sharing=Sharing.EXCLUSIVE, placement=Placement.SAME_HOST)
    answer = explain(world, request=pair)
    assert (answer.outcome, answer.explanation.expected_s) == (answers.Outcome.WAITING, 200.0)


def test_the_end_of_a_lease_without_a_length_is_unknown(one: World, whole: Request) -> None:
    one.reserve("a", whole)
    one.reserve("b", whole)
    told = explain(one, attempt="b").explanation
    assert (told.expected_s, told.expected_why) == (
        None,
        "1 of 1 feasible devices have leases without a stated length",
    )
    one.ask(ops.Drain, host="h1")
    assert explain(one, attempt="b").explanation.expected_why == (
        "none of the feasible devices are up, healthy and not reserved for others"
    )


def test_a_granted_request_is_explained_with_its_devices(mixed: World) -> None:
    mixed.reserve("a", Request(models=("A100",)))
    answer = explain(mixed, attempt="a")
    assert answer.outcome is answers.Outcome.GRANTED
    lease = mixed.leases[0].id
    assert answer.explanation.sentence == f"1 × device A100 is granted: lease {lease} on h1/0"


def test_refused_requests_are_remembered_for_a_while(mixed: World, whole: Request) -> None:
    mixed.reserve("never", Request(memory_mib=9000))
    for attempt in ("x", "y", "z"):
        mixed.reserve(attempt, whole)
    mixed.reserve("busy", whole, wait=False)
    assert explain(mixed, attempt="never").outcome is answers.Outcome.IMPOSSIBLE
    assert explain(mixed, attempt="busy").outcome is answers.Outcome.WAITING  # if it were to wait
    state = mixed.machine.state
    for number in range(1000):
        state.remember_refused(replace(state.refused["busy"], attempt=AttemptId(f"n{number}")))
    assert len(state.refused) == 1000
    assert "never" not in state.refused


@pytest.mark.parametrize(("length_s", "lent"), [(50.0, True), (150.0, False)])
def test_a_dry_run_uses_the_length_of_its_lease(
    world: World, whole: Request, length_s: float, lent: bool
) -> None:
    """Backfill uses the length of the lease, also when the request has another one."""
    world.ask(ops.SetParameter, name="policy", value="backfill")
    world.ask(ops.SetParameter, name="bypass_max", value=0)
    world.host("h", *(device(f"d{i}", index=i) for i in range(2)))
    world.reserve("a", whole, hold=LeaseLifetime.DEADLINE, lease_s=100.0)
    world.reserve("head", Request(count=2, sharing=Sharing.EXCLUSIVE))
    asked = {"hold": LeaseLifetime.DEADLINE, "lease_s": length_s}
    told = explain(world, request=whole, **asked)
    assert (told.outcome is answers.Outcome.GRANTED) is lent
    made = world.reserve("b", whole, wait=False, **asked)
    assert (made.outcome is answers.Outcome.GRANTED) is lent
    if not lent:
        assert explain(world, attempt="b").outcome is answers.Outcome.WAITING


def test_a_dry_run_with_an_invalid_length_is_refused(one: World) -> None:
    week = one.configured.lease_s_max
    fine = explain(one, request=Request(), hold=LeaseLifetime.DEADLINE, lease_s=week - 1)
    assert fine.outcome is answers.Outcome.GRANTED
    wrong = explain(one, request=Request(), hold=LeaseLifetime.DEADLINE, lease_s=week + 1)
    assert (wrong.code, "at most 604800" in wrong.message) == (ErrorCode.INVALID, True)


def test_a_job_without_an_open_request_is_not_found(mixed: World) -> None:
    record = mixed.attempt("job").record
    mixed.ask(
        ops.FailAttempt,
        holder="job",
        revision=record.revision,
        reason="EXIT_NONZERO",
        detail="",
        retry_at_s=None,
    )
    answer = explain(mixed, holder="job")
    assert (answer.code, "job has no open request: it is RECEIVED" in answer.message) == (
        ErrorCode.NOT_FOUND,
        True,
    )

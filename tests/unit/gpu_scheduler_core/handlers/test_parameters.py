"""Parameters: changed by name, validated, journalled, removed."""

import re
from pathlib import Path
from typing import Any

import pytest

from corekit.decode import decode, encode
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.model import Request
from gpu_scheduler.parameters import (
    DEFAULT,
    MEANINGS,
    NAMES,
    Parameters,
    Quota,
    changed,
    in_force,
    known_name,
    meaning_of,
    overridden,
)
from gpu_scheduler.policy_parameters import Given
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import changes as to
from tests.scheduler_world import World

POLICIES = ("fifo", "backfill", "fair")
PAGE = Path(__file__).resolve().parents[4] / "docs/how-to/scheduler.md"
OF_POLICIES = "policy.POLICY.PARAMETER"


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("policy", "fair", "policy", "fair"),
        ("aging_s", "90", "aging_s", 90.0),
        ("aging_s", "off", "aging_s", None),
        ("aging_s", None, "aging_s", None),
        ("bypass_max", 3.0, "bypass_max", 3),
        ("leases_max", "10", "leases_max", 10),
        ("waiting_max", 0, "waiting_max", 0),
        ("lease_s_max", 1e5, "lease_s_max", 1e5),
        ("usage_half_life_s", 60, "usage_half_life_s", 60.0),
        ("weight.a.b", "2.5", "weights", {"a.b": 2.5}),
        ("weight.*", 2, "weights", {"*": 2.0}),
        ("quota.a.b.devices", "4", "quotas", {"a.b": Quota(devices=4)}),
        ("quota.*.memory_mib", 1024, "quotas", {"*": Quota(memory_mib=1024)}),
        ("quota.a.compute_pct", "none", "quotas", {}),
    ],
)
def test_a_parameter_changes_by_its_name(
    name: str, value: float | int | str | None, field: str, expected: Any
) -> None:
    parameters = changed(Parameters(), name, value, POLICIES)
    assert getattr(parameters, field) == expected
    assert decode(Parameters, encode(parameters)) == parameters


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("polic", "fair", "did you mean 'policy'?"),
        ("quota.a.device", 3, "did you mean 'quota.TENANT.devices'?"),
        ("quota.devices", 3, "is unknown"),
        ("weight.", 3, "is unknown"),
        ("zzz", 3, "known are policy"),
        ("policy", "lottery", "installed are fifo, backfill, fair"),
        ("policy", None, "is not an installed policy"),
        ("bypass_max", "1.5", "not an integer"),
        ("bypass_max", -1, "-1 must lie in 0…1000000000"),
        ("bypass_max", True, "not a finite number"),
        ("leases_max", 0, "0 must lie in 1…"),
        ("lease_s_max", "nan", "not a finite number"),
        ("lease_s_max", None, "not a finite number"),
        ("aging_s", -5, "more than 0"),
        ("waiting_max", 10**400, "not a finite number"),
        ("weight.a", 0, "a weight must lie"),
        ("weight.a", [1], "not a finite number"),
        ("quota.a.devices", -1, "devices -1 must lie in 0…"),
        (f"weight.{'x' * 300}", 1, "1 to 256 characters"),
    ],
)
def test_an_invalid_value_is_refused_with_the_name(name: str, value: Any, says: str) -> None:
    with pytest.raises(AppError, match="parameter") as refused:
        changed(Parameters(), name, value, POLICIES)
    assert says in refused.value.message


def test_every_name_is_known() -> None:
    for name in NAMES:
        known_name(name.replace("TENANT", "somebody"))


def test_overrides_take_precedence_over_the_configuration() -> None:
    configured = Parameters(bypass_max=5, quotas={"a": Quota(devices=1, memory_mib=7)})
    held = overridden(configured, {"quota.a.devices": 2, "aging_s": "off"})
    assert held == Parameters(
        bypass_max=5, aging_s=None, quotas={"a": Quota(devices=2, memory_mib=7)}
    )
    assert held.quota("a").memory_mib == 7
    assert held.quota("b") == Quota()


def test_the_star_applies_to_tenants_without_values() -> None:
    parameters = Parameters(quotas={"*": Quota(devices=1), "a": Quota()}, weights={"*": 2.0})
    assert (parameters.quota("b").devices, parameters.weight("b")) == (1, 2.0)


def set_(world: World, name: str, value: str | int) -> Any:
    return world.ask(ops.SetParameter, name=name, value=value)


def test_setting_is_journalled_idempotent_and_removable(world: World) -> None:
    assert set_(world, "bypass_max", "3").parameters.bypass_max == 3
    entries = len(world.journal)
    assert set_(world, "bypass_max", "3").overridden == ("bypass_max",)
    assert len(world.journal) == entries
    world.start()
    policies = world.ask(ops.ParametersOf).policies
    assert world.answer() == answers.ParametersAnswer(
        parameters=Parameters(bypass_max=3), overridden=("bypass_max",), policies=policies
    )
    assert set_(world, "bypass_max", DEFAULT) == answers.ParametersAnswer(
        parameters=Parameters(), overridden=(), policies=policies
    )
    assert set_(world, "bypass_max", DEFAULT).overridden == ()


def test_unknown_overrides_are_kept_out_of_force_and_removable(world: World) -> None:
    configured = Parameters(bypass_max=5)
    given: dict[str, Given] = {"policy": "lottery", "colour": "blue", "bypass_max": 3}
    held, ignored = in_force(configured, given, POLICIES)
    assert held == Parameters(bypass_max=3)
    assert set(ignored) == {"policy", "colour"}
    assert "lottery" in ignored["policy"]
    state = world.machine.state
    newer = to.Entry(parts=tuple(to.ParameterSet(name=n, value=v) for n, v in given.items()))
    world.machine.apply(newer)
    world.journal.append(newer)
    assert world.ask(ops.ParametersOf).overridden == ("bypass_max",)
    assert state.overrides == given
    assert set_(world, "colour", "red").code is ErrorCode.INVALID, "nobody sets what is not known"
    set_(world, "colour", DEFAULT)
    assert set_(world, "policy", "fair").overridden == ("bypass_max", "policy")
    assert state.overrides == {"bypass_max": 3, "policy": "fair"}


def test_a_parameter_of_a_policy_has_one_name(world: World) -> None:
    set_(world, "policy.fair-sticky.patience_s", 3)
    set_(world, "policy.fair_sticky.patience_s", 4)
    assert world.machine.state.overrides == {"policy.fair_sticky.patience_s": 4}
    assert set_(world, "policy.fair-sticky.patience_s", DEFAULT).overridden == ()


def test_a_wrong_parameter_changes_nothing(world: World) -> None:
    entries = len(world.journal)
    assert set_(world, "bypas_max", 3).code is ErrorCode.INVALID
    assert set_(world, "bypas_max", DEFAULT).code is ErrorCode.INVALID
    assert set_(world, "bypass_max", "many").code is ErrorCode.INVALID
    assert len(world.journal) == entries


def test_a_changed_limit_serves_the_queue_at_once(one: World) -> None:
    set_(one, "leases_max", 1)
    one.reserve("a", Request(memory_mib=100))
    assert one.reserve("b", Request(memory_mib=100)).outcome is answers.Outcome.WAITING
    set_(one, "leases_max", 2)
    assert [push.attempt for push in one.pushes(answers.GrantedPush)] == ["b"]


def test_the_answer_describes_the_installed_policies(world: World) -> None:
    set_(world, "policy.srtf.strict_head", "yes")
    described = {one.name: one for one in world.answer().policies}
    assert set(described) == set(world.policies)
    assert not described["fifo"].decides
    assert described["fifo"].work_conserving
    assert described["fifo"].wait_bound.startswith("(k + 1) × (bypass_max + 2) × L")
    assert described["srtf"].decides
    assert described["srtf"].values == {"strict_head": True}
    assert not described["srtf"].work_conserving
    assert described["srtf"].starves == "long requests, while shorter ones keep coming"


def test_every_parameter_has_one_and_the_page_has_the_same() -> None:
    assert sorted(MEANINGS) == sorted(set(NAMES) - {OF_POLICIES})
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (.*?) \| [^|]+ \|$", PAGE.read_text(), re.MULTILINE))
    missing = {name: text for name, text in MEANINGS.items() if text not in rows.get(name, "")}
    assert missing.keys() <= {"policy"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("weight.lab", MEANINGS["weight.TENANT"]),
        ("quota.lab.of.a.name.devices", MEANINGS["quota.TENANT.devices"]),
        ("quota.*.newer", ""),
        ("newer_s", ""),
    ],
)
def test_parameters_of_tenants_share_theirs(name: str, text: str) -> None:
    assert meaning_of(name) == text

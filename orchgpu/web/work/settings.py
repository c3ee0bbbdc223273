"""The rules and limits of the scheduler as a form, an item for each parameter. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from corekit.decode import encode
from corekit.values import Value
from gpu_scheduler.parameters import meaning_of
from gpu_scheduler.protocol.answers import ParametersAnswer


class SettingItem(Value):
    """One parameter."""

    name: str  #: as `set` takes it
    value: object
    overridden: bool  #: an operator changed it
    meaning: str = ""
    choices: tuple[str, ...] = ()  #: () = free text
    settable: bool = True


def settings_json(found: ParametersAnswer, *, may_change: bool) -> dict[str, object]:
    """The parameters by group."""
    return {
        "policies": list(_policies(found)),
        "parameters": list(_plain(found)),
        "quotas": list(_quotas(found)),
        "installed": found.policies,
        "may_change": may_change,
    }


def _policies(found: ParametersAnswer) -> Iterator[SettingItem]:
    chosen = next((one for one in found.policies if one.name == found.parameters.policy), None)
    yield SettingItem(
        name="policy",
        value=found.parameters.policy,
        overridden="policy" in found.overridden,
        meaning="" if chosen is None else chosen.summary,
        choices=tuple(one.name for one in found.policies),
    )
    for parameter in () if chosen is None else chosen.parameters:
        name = f"policy.{found.parameters.policy}.{parameter.name}"
        yield SettingItem(
            name=name,
            value=chosen.values.get(parameter.name, parameter.default) if chosen else None,
            overridden=name in found.overridden,
            meaning=parameter.meaning,
            choices=tuple(str(one) for one in parameter.choices),
        )


def _plain(found: ParametersAnswer) -> Iterator[SettingItem]:
    for name, value in encode(found.parameters).items():
        if name not in ("policy", "weights", "quotas", "policy_parameters"):
            yield _item(name, value, found)


def _quotas(found: ParametersAnswer) -> Iterator[SettingItem]:
    for tenant, weight in sorted(found.parameters.weights.items()):
        yield _item(f"weight.{tenant}", weight, found)
    for tenant, quota in sorted(found.parameters.quotas.items()):
        for limit, value in encode(quota).items():
            yield _item(f"quota.{tenant}.{limit}", value, found)


def _item(name: str, value: object, found: ParametersAnswer) -> SettingItem:
    overridden = name in found.overridden
    return SettingItem(name=name, value=value, overridden=overridden, meaning=meaning_of(name))

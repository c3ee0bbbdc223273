"""The template as data: its parameters, and the resources that exist with given values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from corekit.errors import invalid
from corekit.suggest import one_of_known

FILES = Path(__file__).parent / "files"
TEMPLATE = FILES / "cloudformation" / "orchgpu.yaml"
#: CloudFormation's limits: of a template in the call, and of one that it reads from a bucket
#: ("Understand CloudFormation quotas": 51,200 bytes and 1 MB).
BODY_BYTES_MAX, TEMPLATE_BYTES_MAX = 51_200, 1_000_000


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML with CloudFormation's short forms of functions; read in C where PyYAML has libyaml."""


def _function(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> dict[str, object]:
    if isinstance(node, yaml.ScalarNode):
        value: object = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        assert isinstance(node, yaml.MappingNode)
        value = loader.construct_mapping(node, deep=True)
    if suffix == "GetAtt" and isinstance(value, str):
        value = value.split(".", 1)
    return {suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}": value}


yaml.add_multi_constructor("!", _function, Loader=_Loader)


class Template:
    """A CloudFormation template."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.content: dict[str, Any] = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader

    @property
    def parameters(self) -> Mapping[str, Mapping[str, Any]]:
        found: Mapping[str, Mapping[str, Any]] = self.content["Parameters"]
        return found

    def values(self, given: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
        """Every parameter's value: as given, else as before, else its default.

        A parameter without any is left out. Raises INVALID for an unknown one.
        """
        for name in given:
            if name not in self.parameters:
                raise invalid(f"--set {name}: not a parameter{one_of_known(name, self.parameters)}")
        found = {}
        for name, about in self.parameters.items():
            value = given.get(name, before.get(name, about.get("Default")))
            if value is not None:
                found[name] = _checked(name, str(value), about)
        return found

    def resources(self, values: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
        """The resources that exist with these values."""
        return {
            name: one
            for name, one in self.content["Resources"].items()
            if "Condition" not in one or self._holds(one, values)
        }

    def _holds(self, condition: Mapping[str, Any], values: Mapping[str, str]) -> bool:
        """Of the functions that the template's conditions use."""
        if "Condition" in condition:
            return self._holds(self.content["Conditions"][condition["Condition"]], values)
        if "Fn::And" in condition:
            return all(self._holds(one, values) for one in condition["Fn::And"])
        if "Fn::Not" in condition:
            return not self._holds(condition["Fn::Not"][0], values)
        left, right = (_value(one, values) for one in condition["Fn::Equals"])
        return left == right


def read_template(file: Path | None = None) -> Template:
    """A template. [default: the one of this program] Raises INVALID."""
    path = file or TEMPLATE
    try:
        text = path.read_text()
        found = Template(text)
        found.parameters, found.content["Conditions"], found.content["Resources"]
    except (OSError, yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise invalid(f"{path} is not a template of orchgpu: {error}") from None
    if len(text.encode()) > TEMPLATE_BYTES_MAX:
        raise invalid(f"{path} has more than {TEMPLATE_BYTES_MAX:,} bytes, CloudFormation's limit")
    return found


def _checked(name: str, value: str, about: Mapping[str, Any]) -> str:
    allowed = [str(one) for one in about.get("AllowedValues", ())]
    if allowed and value not in allowed:
        raise invalid(f"--set {name}={value}: one of {', '.join(allowed)}")
    if about["Type"] == "Number":
        try:
            number = float(value)
        except ValueError:
            raise invalid(f"--set {name}={value}: not a number") from None
        least, most = about.get("MinValue", number), about.get("MaxValue", number)
        if not least <= number <= most:
            raise invalid(f"--set {name}={value}: must lie in {least}…{most}")
    return value


def _value(one: Any, values: Mapping[str, str]) -> str:
    return values[one["Ref"]] if isinstance(one, dict) else str(one)

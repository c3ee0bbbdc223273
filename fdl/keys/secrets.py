"""The key `secrets:`: variables of the script, each with a reference to the place of its value.

A value in clear may stand here by mistake, so errors show neither it nor its line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from contract.secrets.reference import Scheme, SecretReference, UnknownScheme, parse_reference
from corekit.errors import AppError
from corekit.suggest import did_you_mean
from fdl.keys.scar import VARIABLES
from fdl.schema.schema import Reading, Schema
from fdl.text.nodes import Entry, Node, Scalar
from fdl.text.nodes import Mapping as MappingNode

#: Of one function; each is read by a call of its own.
SECRETS_MAX = 50
_PATTERN = "^(secretsmanager|ssm|file):."


@dataclass(frozen=True, slots=True)
class Secrets:
    """A mapping of variables to references."""

    def read(self, node: Node, path: str, reading: Reading) -> Mapping[str, SecretReference]:
        if isinstance(node, Scalar) and node.is_null:
            return {}
        if not isinstance(node, MappingNode):
            raise _error(reading, node, path, "expected a mapping of variables to references")
        if len(node.entries) > SECRETS_MAX:
            raise _error(reading, node, path, f"more than {SECRETS_MAX} secrets")
        values = {}
        faults = len(reading.faults)
        for entry in node.entries:
            with reading.collecting_errors():
                values[entry.key] = _reference(entry, path, reading)
        reading.end(faults)
        return values

    def describe(self) -> str:
        return "a mapping: `secretsmanager:NAME[#KEY]`, `ssm:NAME` or `file:PATH`"

    def schema(self) -> Schema:
        references: Schema = {"type": "string", "pattern": _PATTERN}
        names: Schema = {"pattern": f"^{VARIABLES.key_pattern}$"}
        return {
            "type": "object",
            "additionalProperties": references,
            "propertyNames": names,
            "maxProperties": SECRETS_MAX,
        }


def _reference(entry: Entry, path: str, reading: Reading) -> SecretReference:
    if not re.fullmatch(VARIABLES.key_pattern, entry.key, re.ASCII):
        message = f"{reading.written(path)}: a key here is not {VARIABLES.key_what}"
        raise reading.source.error(entry.at, message, private=True)
    inner = f"{path}.{entry.key}"
    reading.locations[inner] = entry.at
    if not isinstance(entry.value, Scalar) or entry.value.is_null:
        raise _error(reading, entry.value, inner, "expected a reference to a secret")
    text = entry.value.text
    try:
        return parse_reference(text)
    except UnknownScheme as error:
        near = did_you_mean(text.partition(":")[0], [scheme.value for scheme in Scheme])
        raise _error(reading, entry.value, inner, f"{error}{near}") from None
    except ValueError as error:
        raise _error(reading, entry.value, inner, str(error)) from None


def _error(reading: Reading, node: Node, path: str, message: str) -> AppError:
    shown = f"{reading.written(path)}: {message}"
    return reading.source.error(node.at, shown, private=True)

"""The output of `--json`: one form per command, one version of all, and their JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping

from corekit.cli.screen import JSON_VERSION
from corekit.values import Value
from gpu_scheduler.client.status import SystemStatus
from gpu_scheduler.policy_parameters import Given
from gpu_scheduler.protocol import answers
from gpu_scheduler.protocol.openapi import ERROR, Schema, components_of


class Released(Value):
    """Answer of `dealloc`."""

    released: tuple[str, ...]  #: leases as they were given


class Renewed(Value):
    """Answer of `renew`."""

    renewed: str
    lease_s: float  #: from now on


class Drained(Value):
    """Answer of `drain`."""

    drained: str  #: host, or host/index


class Undrained(Value):
    """Answer of `undrain`."""

    undrained: str  #: host, or host/index


class Forgotten(Value):
    """Answer of `forget`."""

    forgotten: str  #: host


class ParametersInForce(Value):
    """Answer of `get` and `set`: parameters by the names that `set` takes."""

    parameters: Mapping[str, Given]
    overridden: tuple[str, ...]  #: parameters that were set at run time


class Policies(Value):
    """Answer of `policies`: the installed queue policies, or the one that was named."""

    in_force: str
    policies: tuple[answers.PolicyDeclaration, ...]


#: Command → the form of its output (`events` prints the objects of `GET /v1/watch`).
FORMS: Mapping[str, type[Value]] = {
    "alloc": answers.AttemptAnswer,
    "dealloc": Released,
    "renew": Renewed,
    "resize": answers.LeaseAnswer,
    "transfer": answers.LeaseAnswer,
    "leases": answers.LeasesAnswer,
    "status": SystemStatus,
    "hosts": answers.InventoryAnswer,
    "devices": answers.InventoryAnswer,
    "queue": answers.QueueAnswer,
    "workloads": answers.WorkloadsAnswer,
    "demand": answers.DemandAnswer,
    "explain": answers.ExplainAnswer,
    "dry-run": answers.ExplainAnswer,
    "quote": answers.AdmitAnswer,
    "drain": Drained,
    "undrain": Undrained,
    "forget": Forgotten,
    "get": ParametersInForce,
    "set": ParametersInForce,
    "policies": Policies,
}


def json_schema() -> Schema:
    """JSON Schema of every answer: `#/commands/<name>`, and `#/error` of a refusal."""
    schemas = components_of(dict.fromkeys(FORMS.values()))
    commands = {name: _versioned(schemas[form.__name__]) for name, form in FORMS.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ssgm --json",
        "commands": commands,
        "error": _versioned(ERROR),
        "components": {"schemas": schemas},
    }


def _versioned(form: Schema) -> Schema:
    version = {"const": JSON_VERSION}
    return {
        **form,
        "properties": {"version": version, **form["properties"]},
        "required": ["version", *form["required"]],
    }

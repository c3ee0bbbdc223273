"""References to secrets in a plan: they are shown, unlike the other variables of a function."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from contract.secrets.reference import VARIABLE
from fdl.plan.resources import FunctionResource, Resource


def secrets_of(resource: Resource | None) -> dict[str, str]:
    """The secrets of a function; {} for any other resource."""
    return deployed_secrets(resource.variables) if isinstance(resource, FunctionResource) else {}


def deployed_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Variable of the script → reference, by a function's own variables.

    `STEP/NAME` for a step of a group; {} for what another version wrote in another form.
    """
    try:
        steps = json.loads(variables.get(VARIABLE, "{}"))
        return {
            f"{step}/{name}" if step else str(name): str(reference)
            for step, secrets in steps.items()
            for name, reference in secrets.items()
        }
    except (ValueError, AttributeError):
        return {}


def secret_changes(before: Resource | None, after: Resource, *, deleted: bool) -> Iterator[str]:
    """The secrets that a step adds, changes and takes away, for people."""
    old, new = secrets_of(before), {} if deleted else secrets_of(after)
    for name in dict.fromkeys((*old, *new)):
        if name not in old:
            yield f"secret {name} from {new[name]}"
        elif name not in new:
            yield f"without secret {name}"
        elif old[name] != new[name]:
            yield f"secret {name} from {new[name]} instead of {old[name]}"

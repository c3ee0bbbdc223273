"""Functions of one plan that would make the same resource."""

from __future__ import annotations

from collections.abc import Sequence

from corekit.errors import AppError, ErrorCode
from fdl.plan.desired import DesiredFunction
from fdl.plan.resources import (
    EventRule,
    FunctionResource,
    QueueResource,
    Role,
    Schedule,
    Topic,
    WorkflowRecord,
    key_of,
)

#: Kinds of which one belongs to one function; buckets may be shared.
EXCLUSIVE = FunctionResource | QueueResource | Role | WorkflowRecord | Schedule | Topic | EventRule


def check_collisions(wanted: Sequence[DesiredFunction]) -> None:
    """Two functions of one plan make no resource of the same name. Raises CONFLICT."""
    owners: dict[str, DesiredFunction] = {}
    for function in wanted:
        for resource in function.resources:
            if not isinstance(resource, EXCLUSIVE):
                continue
            key = key_of(resource)
            owner = owners.setdefault(key, function)
            if owner is not function:
                message = (
                    f"{owner.name} and {function.name} would both make the {resource.kind}"
                    f" {resource.name!r}: choose another name for one of them"
                )
                raise AppError(ErrorCode.CONFLICT, message, resource=key)

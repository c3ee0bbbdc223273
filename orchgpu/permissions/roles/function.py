"""The execution role of functions: that of `iam: {create: true}`, for a role of your own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from corekit.errors import invalid
from corekit.values import replace
from fdl.plan.resources import Role
from fdl.plan.roles import role_of
from orchgpu.permissions.model import RoleKind, Scope, Statement


def _needs(scope: Scope) -> Iterator[Statement]:
    """Raises INVALID without functions: their policies name their buckets."""
    if not scope.functions:
        raise invalid("the policy of a function names its buckets: give its FILE")
    return statements_of([role_of(function, scope.place) for function in scope.functions])


def statements_of(roles: Iterable[Role]) -> Iterator[Statement]:
    """The statements of roles, each once."""
    parts = [_statement(one) for role in roles for one in role.policy["Statement"]]
    return _numbered(_joined(parts))


def _statement(one: Mapping[str, Any]) -> Statement:
    return Statement(
        sid=one["Sid"],
        actions=tuple(one["Action"]),
        resources=tuple(one["Resource"]),
        effect=one["Effect"],
        condition=one.get("Condition", {}),
    )


def _joined(parts: list[Statement]) -> list[Statement]:
    """Statements that differ by their resources only as one: a policy has 10,240 characters."""
    found: dict[str, Statement] = {}
    for part in parts:
        key = json.dumps([part.sid, part.effect, part.actions, part.condition], sort_keys=True)
        before = found[key].resources if key in found else ()
        both = tuple(dict.fromkeys((*before, *part.resources)))
        found[key] = replace(part, resources=both)
    return list(found.values())


def _numbered(parts: list[Statement]) -> Iterator[Statement]:
    seen = Counter[str]()
    for part in parts:
        seen[part.sid] += 1
        number = seen[part.sid]
        yield part if number == 1 else replace(part, sid=f"{part.sid}{number}")


ROLE = RoleKind(
    summary="the functions of a definition; `iam: {create: true}` makes one for each instead",
    service="lambda.amazonaws.com",
    needs=_needs,
)

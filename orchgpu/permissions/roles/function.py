"""The execution role of functions: that of `iam: {create: true}`, for a role of your own."""

from __future__ import annotations

from collections.abc import Mapping

from corekit.errors import invalid
from corekit.values import replace
from fdl.plan.roles import role_of
from orchgpu.permissions.model import Scope, Statement


class FunctionRole:
    """The role of all functions of a scope."""

    summary = "the functions of a definition; `iam: {create: true}` makes one for each instead"
    service = "lambda.amazonaws.com"

    def statements(self, scope: Scope) -> tuple[Statement, ...]:
        """Raises INVALID without functions: their policies name their buckets."""
        if not scope.functions:
            raise invalid("the policy of a function names its buckets: give its FILE")
        parts = [
            _statement(one)
            for function in scope.functions
            for one in role_of(function, scope.place).policy["Statement"]
        ]
        return _joined(parts)


def _statement(one: Mapping[str, object]) -> Statement:
    actions, resources = one["Action"], one["Resource"]
    assert isinstance(actions, list)
    assert isinstance(resources, list)
    return Statement(sid=str(one["Sid"]), actions=tuple(actions), resources=tuple(resources))


def _joined(parts: list[Statement]) -> tuple[Statement, ...]:
    """Statements with the same actions as one: a role's policy may have 10,240 characters."""
    found: dict[str, Statement] = {}
    for part in parts:
        known = found.get(part.sid)
        before = known.resources if known is not None else ()
        both = tuple(dict.fromkeys((*before, *part.resources)))
        found[part.sid] = replace(part, resources=both)
    return tuple(found.values())


ROLE = FunctionRole()

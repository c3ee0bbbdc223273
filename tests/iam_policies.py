"""IAM's evaluation of identity policies and boundaries, for the elements that our policies use.

An explicit Deny wins; else a statement of the policies must allow, and one of the boundary too
(IAM user guide, "Policy evaluation logic"). Elements that are not known here raise, so that a new
one cannot pass unseen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Policy = Mapping[str, Any]
_KNOWN = {"Sid", "Effect", "Action", "Resource", "Condition"}


@dataclass(frozen=True)
class Request:
    """One request for authorization."""

    action: str
    resource: str = "*"
    context: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.action} on {self.resource} {dict(self.context) or ''}".rstrip()


def allowed(request: Request, policies: Iterable[Policy], boundary: Policy | None = None) -> bool:
    """Whether an identity with these policies, and this boundary, may do it."""
    policies = list(policies)
    limits = [boundary] if boundary is not None else []
    if any(_has(policy, "Deny", request) for policy in (*policies, *limits)):
        return False
    return all(
        any(_has(one, "Allow", request) for one in group) for group in (policies, limits) if group
    )


def _has(policy: Policy, effect: str, request: Request) -> bool:
    return any(
        statement["Effect"] == effect and _matches(statement, request)
        for statement in policy["Statement"]
    )


def _matches(statement: Policy, request: Request) -> bool:
    assert set(statement) <= _KNOWN, statement
    return (
        any(_like(one.lower(), request.action.lower()) for one in _listed(statement["Action"]))
        and any(_like(one, request.resource) for one in _listed(statement["Resource"]))
        and all(
            _holds(operator, request.context.get(key), _listed(values))
            for operator, keys in statement.get("Condition", {}).items()
            for key, values in keys.items()
        )
    )


def _holds(operator: str, given: str | None, values: list[str]) -> bool:
    name = operator.removesuffix("IfExists")
    if given is None and name != operator:
        return True
    if name == "Null":
        return (given is None) == (values == ["true"])
    test = _OPERATORS[name.replace("Not", "")]
    found = given is not None and any(test(value, given) for value in values)
    return not found if "Not" in name else found


def _equal(value: str, given: str) -> bool:
    return value == given


def _like(pattern: str, text: str) -> bool:
    parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern)
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None


#: By IAM's names; ArnEquals and ArnLike are the same.
_OPERATORS: dict[str, Callable[[str, str], bool]] = {
    "StringEquals": _equal,
    "StringLike": _like,
    "ArnEquals": _like,
    "ArnLike": _like,
}


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)

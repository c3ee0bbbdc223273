"""Evaluation of policies, as far as anything here asks one: may this call be made?

An explicit Deny wins. An unknown condition is false, so a policy that this module cannot evaluate
grants nothing; other text than a policy's has no statements.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping

from corekit.values import Value
from local_cloud.model.json_text import read_json

_LIKE = frozenset({"arnlike", "arnequals", "stringlike"})
_EQUAL = frozenset({"stringequals"})


class Access(Value):
    """A call to a resource."""

    action: str  #: `sqs:SendMessage`
    resource: str  #: ARN
    service: str = ""  #: principal, `s3.amazonaws.com`; empty: the policy is the caller's own
    source_arn: str = ""
    source_account: str = ""


def allows(policy: str, access: Access) -> bool:
    """Whether the policy (JSON text, empty = none) lets `access` through."""
    verdicts = {s.get("Effect") for s in statements(policy) if _applies(s, access)}
    return "Allow" in verdicts and "Deny" not in verdicts


def statements(policy: str) -> Iterator[Mapping[str, object]]:
    """The statements of a policy's JSON text."""
    try:
        document = read_json(policy)
    except ValueError:
        return
    for statement in many(document.get("Statement", [])) if isinstance(document, dict) else ():
        if isinstance(statement, dict):
            yield statement


def _applies(statement: Mapping[str, object], access: Access) -> bool:
    actions = [str(a).lower() for a in many(statement.get("Action", []))]
    resources = [str(r) for r in many(statement.get("Resource", []))]
    return (
        _principal_matches(statement.get("Principal"), access.service)
        and any(fnmatch.fnmatchcase(access.action.lower(), a) for a in actions)
        and any(fnmatch.fnmatchcase(access.resource, r) for r in resources)
        and _conditions_hold(statement.get("Condition", {}), access)
    )


def _principal_matches(principal: object, service: str) -> bool:
    if not service or principal == "*":
        return True
    if not isinstance(principal, dict):
        return False
    return service in many(principal.get("Service", [])) or "*" in many(principal.get("AWS", []))


def _conditions_hold(conditions: object, access: Access) -> bool:
    if not isinstance(conditions, dict):
        return False
    values = {"aws:sourcearn": access.source_arn, "aws:sourceaccount": access.source_account}
    for operator, tests in conditions.items():
        if not isinstance(tests, dict):
            return False
        for name, wanted in tests.items():
            actual = values.get(str(name).lower())
            if actual is None or not _holds(str(operator).lower(), actual, many(wanted)):
                return False
    return True


def _holds(operator: str, actual: str, wanted: Iterable[object]) -> bool:
    if operator in _LIKE:
        return any(fnmatch.fnmatchcase(actual, str(w)) for w in wanted)
    return operator in _EQUAL and any(actual == str(w) for w in wanted)


def many(value: object) -> list[object]:
    """The values of an element, which may be one alone."""
    return value if isinstance(value, list) else [value]

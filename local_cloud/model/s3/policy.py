"""Evaluation of resource policies for event delivery: may S3 call this resource?

For a service principal: Allow statements with matching principal, action, resource and conditions
on aws:SourceArn and aws:SourceAccount; an explicit Deny wins. An unknown condition is false, so a
policy that this module cannot evaluate grants nothing.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping

from corekit.values import Value
from local_cloud.model.json_text import read_json

_LIKE = frozenset({"arnlike", "arnequals", "stringlike"})
_EQUAL = frozenset({"stringequals"})


class Access(Value):
    """A service's call to a resource."""

    service: str  #: principal, `s3.amazonaws.com`
    action: str  #: `sqs:SendMessage`
    resource: str  #: ARN
    source_arn: str
    source_account: str


def allows(policy: str, access: Access) -> bool:
    """Whether the policy (JSON text, empty = none) lets `access` through."""
    try:
        statements = _many(read_json(policy)["Statement"]) if policy else []
    except (ValueError, KeyError, TypeError):
        return False
    verdicts = {s.get("Effect") for s in statements if isinstance(s, dict) and _applies(s, access)}
    return "Allow" in verdicts and "Deny" not in verdicts


def _applies(statement: Mapping[str, object], access: Access) -> bool:
    actions = [str(a).lower() for a in _many(statement.get("Action", []))]
    resources = [str(r) for r in _many(statement.get("Resource", []))]
    return (
        _principal_matches(statement.get("Principal"), access.service)
        and any(fnmatch.fnmatchcase(access.action.lower(), a) for a in actions)
        and any(fnmatch.fnmatchcase(access.resource, r) for r in resources)
        and _conditions_hold(statement.get("Condition", {}), access)
    )


def _principal_matches(principal: object, service: str) -> bool:
    if principal == "*":
        return True
    if not isinstance(principal, dict):
        return False
    return service in _many(principal.get("Service", [])) or "*" in _many(principal.get("AWS", []))


def _conditions_hold(conditions: object, access: Access) -> bool:
    if not isinstance(conditions, dict):
        return False
    values = {"aws:sourcearn": access.source_arn, "aws:sourceaccount": access.source_account}
    for operator, tests in conditions.items():
        if not isinstance(tests, dict):
            return False
        for name, wanted in tests.items():
            actual = values.get(str(name).lower())
            if actual is None or not _holds(str(operator).lower(), actual, _many(wanted)):
                return False
    return True


def _holds(operator: str, actual: str, wanted: Iterable[object]) -> bool:
    if operator in _LIKE:
        return any(fnmatch.fnmatchcase(actual, str(w)) for w in wanted)
    return operator in _EQUAL and any(actual == str(w) for w in wanted)


def _many(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]

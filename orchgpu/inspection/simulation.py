"""IAM's simulation of a principal's policies over the statements that it needs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from corekit.errors import AppError, ErrorCode
from orchgpu.inspection.model import Answer, Finding, Read, ReadCall, good, refused, unknown, wrong
from orchgpu.permissions.model import Statement

#: Stands for the last part of a resource: a simulation has no wildcards.
_EXAMPLE = "orchgpu-doctor"
#: Refused actions that a message names.
_SHOWN_MAX = 6


def simulated(
    where: str, principal: str, statements: Iterable[Statement], remedy: str, read: Read
) -> Iterator[Finding]:
    """The findings about a principal (ARN of a user or role) that needs these statements."""
    denied: dict[str, list[str]] = {}
    count = 0
    for statement in statements:
        if statement.effect != "Allow":
            continue
        try:
            answer = read(_call(principal, statement))
        except AppError as error:
            yield _unsimulated(where, principal, error)
            return
        for result in answer["EvaluationResults"]:
            count += 1
            if result["EvalDecision"] != "allowed":
                named = f"{result['EvalActionName']} on {result.get('EvalResourceName') or '*'}"
                denied.setdefault(_cause(result), []).append(named)
    for cause, names in denied.items():
        more = f", and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
        yield wrong(where, f"{cause}: {', '.join(names[:_SHOWN_MAX])}{more}", remedy)
    if not denied:
        yield good(where, f"{principal} may do all of it ({count} simulated)")


def _call(principal: str, statement: Statement) -> ReadCall:
    resources = [arn.replace("*", _EXAMPLE) for arn in statement.resources if arn != "*"]
    arguments: dict[str, object] = {
        "PolicySourceArn": principal,
        "ActionNames": list(statement.actions),
    }
    if resources:
        arguments["ResourceArns"] = resources
    if statement.equals:
        arguments["ContextEntries"] = [
            {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": "string"}
            for key, value in statement.equals.items()
        ]
    return ReadCall(service="iam", operation="SimulatePrincipalPolicy", arguments=arguments)


def _unsimulated(where: str, principal: str, error: AppError) -> Finding:
    if error.code is ErrorCode.DENIED:
        remedy = "allow iam:SimulatePrincipalPolicy, or compare with `orchgpu iam`"
        return unknown(where, f"not allowed to simulate the policies of {principal}", remedy)
    if error.code is ErrorCode.NOT_FOUND:
        return wrong(where, f"{principal} does not exist", "create it, or name another role")
    return refused(error, where)


def _cause(result: Answer) -> str:
    if missing := result.get("MissingContextValues"):
        return f"allowed on conditions that have no value here ({', '.join(missing)})"
    if not result.get("OrganizationsDecisionDetail", {}).get("AllowedByOrganizations", True):
        return "refused by a policy of the organization"
    boundary = result.get("PermissionsBoundaryDecisionDetail", {})
    if not boundary.get("AllowedByPermissionsBoundary", True):
        return "refused by the permissions boundary"
    explicit = result["EvalDecision"] == "explicitDeny"
    return "refused by a Deny statement" if explicit else "allowed by none of its policies"

"""Simulation of a principal's policies over the statements that it needs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orchgpu.inspection.model import (
    Answer,
    Call,
    Finding,
    Reason,
    Refusal,
    Steps,
    attempted,
    good,
    not_known,
    unknown,
    wrong,
)
from orchgpu.permissions.model import Statement

#: Stands for the last part of a resource: a simulation has no wildcards.
_EXAMPLE = "orchgpu-doctor"


def simulated(
    where: str, principal: str, statements: Iterable[Statement], remedy: str
) -> Steps[list[Finding]]:
    """The findings about a principal (ARN of a user or role) that needs these statements."""
    denied: dict[str, list[str]] = {}
    open_keys: list[str] = []
    count = 0
    for statement in statements:
        if statement.effect != "Allow":
            continue
        answer = yield from attempted(_call(principal, statement))
        if isinstance(answer, Refusal):
            return [_refused(where, principal, answer)]
        for result in answer["EvaluationResults"]:
            count += 1
            if result["EvalDecision"] == "allowed":
                continue
            if missing := result.get("MissingContextValues"):
                open_keys += [key for key in missing if key not in open_keys]
            denied.setdefault(_cause(result), []).append(_named(result))
    findings = [_denied(where, cause, names, remedy) for cause, names in denied.items()]
    if open_keys:
        keys = ", ".join(open_keys)
        message = f"policies of {principal} have conditions on {keys}, without values here"
        findings.append(not_known(where, message, "check these conditions by hand"))
    return findings or [good(where, f"{principal} may do all of it ({count} simulated)")]


def _call(principal: str, statement: Statement) -> Call:
    resources = [one.replace("*", _EXAMPLE) for one in statement.resources if one != "*"]
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
    return Call(service="iam", operation="SimulatePrincipalPolicy", arguments=arguments)


def _refused(where: str, principal: str, refusal: Refusal) -> Finding:
    if refusal.reason is Reason.DENIED:
        remedy = "allow iam:SimulatePrincipalPolicy, or compare with `orchgpu iam`"
        return not_known(where, f"not allowed to simulate the policies of {principal}", remedy)
    if refusal.reason is Reason.ABSENT:
        return wrong(where, f"{principal} does not exist", "create it, or name another role")
    return unknown(refusal, where)


def _cause(result: Mapping[str, object]) -> str:
    organization = result.get("OrganizationsDecisionDetail")
    boundary = result.get("PermissionsBoundaryDecisionDetail")
    if isinstance(organization, Mapping) and not organization.get("AllowedByOrganizations", True):
        return "refused by a policy of the organization"
    if isinstance(boundary, Mapping) and not boundary.get("AllowedByPermissionsBoundary", True):
        return "refused by the permissions boundary"
    if result["EvalDecision"] == "explicitDeny":
        return "refused by a Deny statement"
    return "allowed by none of its policies"


def _named(result: Answer) -> str:
    resource = result.get("EvalResourceName") or "*"
    return f"{result['EvalActionName']} on {resource}"


#: Refused actions that a message names.
_SHOWN_MAX = 6


def _denied(where: str, cause: str, names: list[str], remedy: str) -> Finding:
    shown = ", ".join(names[:_SHOWN_MAX])
    more = f", and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return wrong(where, f"{cause}: {shown}{more}", remedy)

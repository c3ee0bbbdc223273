"""Execution roles: Lambda may assume each, and it allows what the runner calls. Pure."""

from __future__ import annotations

from fdl.plan.roles import SECRET_SIDS
from orchgpu.inspection.model import (
    Answer,
    Call,
    Finding,
    Inspected,
    Reason,
    Refusal,
    Steps,
    Subject,
    attempted,
    good,
    unknown,
    wrong,
)
from orchgpu.inspection.simulation import simulated
from orchgpu.permissions.model import Scope
from orchgpu.permissions.roles.function import ROLE

_LAMBDA = "lambda.amazonaws.com"


class FunctionPolicy:
    """Roles that exist; those that deploy makes are right by construction."""

    title = "policies of functions"

    def examine(self, subject: Subject) -> Steps[list[Finding]]:
        findings: list[Finding] = []
        for inspected in subject.functions:
            findings += yield from _examined(subject, inspected)
        return findings


def _examined(subject: Subject, inspected: Inspected) -> Steps[list[Finding]]:
    where = f"function {inspected.name}"
    if not inspected.role:
        return [good(where, "deploy makes its role")]
    role = inspected.role
    principal = role if role.startswith("arn:") else subject.place.role_arn(role)
    name = principal.rpartition("/")[2]
    call = Call(service="iam", operation="GetRole", arguments={"RoleName": name})
    answer = yield from attempted(call)
    if isinstance(answer, Refusal) and answer.reason is Reason.ABSENT:
        remedy = "correct iam.role, or let deploy make one: iam: {create: true}"
        return [wrong(where, f"its role {principal} does not exist", remedy)]
    trusts = unknown(answer, where) if isinstance(answer, Refusal) else _trust(where, answer)
    scope = Scope(place=subject.place, functions=(inspected.function,))
    remedy = "attach the policy that `orchgpu iam function FILE` prints"
    # an entry of a store has six random characters, which `secrets` looks up
    statements = [one for one in ROLE.statements(scope) if one.sid not in SECRET_SIDS]
    allowed = yield from simulated(where, principal, statements, remedy)
    return [trusts, *allowed]


def _trust(where: str, answer: Answer) -> Finding:
    role = answer["Role"]
    policy = role.get("AssumeRolePolicyDocument", {})
    statements = policy.get("Statement", []) if isinstance(policy, dict) else []
    statements = statements if isinstance(statements, list) else [statements]
    for statement in statements:
        principal = statement.get("Principal", {})
        service = principal.get("Service", []) if isinstance(principal, dict) else []
        services = [service] if isinstance(service, str) else service
        if statement.get("Effect") == "Allow" and _LAMBDA in services:
            return good(where, f"Lambda may assume {role['Arn']}")
    remedy = "update its trust policy to what `orchgpu iam function --trust` prints"
    return wrong(where, f"Lambda may not assume {role['Arn']}", remedy)


CHECK = FunctionPolicy()

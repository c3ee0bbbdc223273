"""Execution roles: Lambda may assume each, and it allows what the runner calls. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from corekit.errors import AppError, ErrorCode
from fdl.plan.roles import SECRET_SIDS
from orchgpu.inspection.model import (
    Answer,
    Check,
    Finding,
    Inspected,
    Read,
    ReadCall,
    Subject,
    good,
    refused,
    wrong,
)
from orchgpu.inspection.simulation import simulated
from orchgpu.permissions.model import Scope
from orchgpu.permissions.roles.function import ROLE


def _policies(subject: Subject, read: Read) -> Iterator[Finding]:
    """Roles that exist; those that deploy makes are right by construction."""
    for inspected in subject.functions:
        if inspected.role:
            yield from _policy(subject, inspected, read)
        else:
            yield good(inspected.where, "deploy makes its role")


def _policy(subject: Subject, inspected: Inspected, read: Read) -> Iterator[Finding]:
    where, principal = inspected.where, subject.role_arn(inspected.role)
    named = {"RoleName": principal.rpartition("/")[2]}
    try:
        answer = read(ReadCall(service="iam", operation="GetRole", arguments=named))
        if not _trusts_lambda(answer["Role"].get("AssumeRolePolicyDocument", {})):
            remedy = "update its trust policy to what `orchgpu iam function --trust` prints"
            yield wrong(where, f"Lambda may not assume {principal}", remedy)
    except AppError as error:
        if error.code is ErrorCode.NOT_FOUND:
            remedy = "correct iam.role, or let deploy make one: iam: {create: true}"
            yield wrong(where, f"its role {principal} does not exist", remedy)
            return
        yield refused(error, where)
    scope = Scope(place=subject.place, functions=(inspected.function,))
    # an entry of a store has six random characters, which the check of secrets looks up
    statements = [one for one in ROLE.statements(scope) if one.sid not in SECRET_SIDS]
    remedy = "attach the policy that `orchgpu iam function FILE` prints"
    yield from simulated(where, principal, statements, remedy, read)


def _trusts_lambda(policy: Answer) -> bool:
    statements = policy.get("Statement", [])
    for statement in statements if isinstance(statements, list) else [statements]:
        principal = statement.get("Principal", {})
        services = principal.get("Service", []) if isinstance(principal, dict) else []
        if statement.get("Effect") == "Allow" and ROLE.service in services:
            return True
    return False


CHECK = Check(title="policies of functions", examine=_policies)

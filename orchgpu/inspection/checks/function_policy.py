"""Execution roles: Lambda may assume each, for runs on hosts the orchestrator too, and it allows
what the runner calls. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from corekit.errors import AppError, ErrorCode
from fdl.plan.roles import SECRET_SIDS, TASKS
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
        yield from _trust(subject, inspected, answer["Role"].get("AssumeRolePolicyDocument", {}))
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


def _trust(subject: Subject, inspected: Inspected, policy: Answer) -> Iterator[Finding]:
    """Lambda assumes the role of a function in Lambda, the orchestrator that of one on a host."""
    role, function = subject.role_arn(inspected.role), inspected.function
    if function.in_lambda and ROLE.service not in _principals(policy, "Service"):
        remedy = "update its trust policy to what `orchgpu iam function --trust` prints"
        yield wrong(inspected.where, f"Lambda may not assume {role}", remedy)
    orchestrator = subject.role_arn(subject.orchestrator_role)
    trusted = {"*", subject.place.account, subject.place.root_arn, orchestrator}
    if function.in_batch and TASKS not in _principals(policy, "Service"):
        remedy = f"add the service {TASKS} to its trust policy"
        message = f"containers of AWS Batch may not have the role {role}"
        yield wrong(inspected.where, message, remedy)
    if not function.on_host or function.in_batch:
        return
    if not trusted & _principals(policy, "AWS"):
        remedy = f"add the AWS principal {subject.place.root_arn} to its trust policy"
        message = f"the orchestrator may not assume {role}, whose credentials runs on hosts get"
        yield wrong(inspected.where, message, remedy)


def _principals(policy: Answer, kind: str) -> set[str]:
    """The principals of a kind that a trust policy allows."""
    found: set[str] = set()
    for statement in _listed(policy.get("Statement", [])):
        principal = statement.get("Principal", {})
        if statement.get("Effect") == "Allow":
            named = principal.get(kind, []) if isinstance(principal, dict) else principal
            found.update(_listed(named))
    return found


def _listed(value: Any) -> list[Any]:
    """A document of IAM has one value, or a list of them."""
    return value if isinstance(value, list) else [value]


CHECK = Check(title="policies of functions", examine=_policies)

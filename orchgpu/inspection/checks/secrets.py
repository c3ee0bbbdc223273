"""Secrets of functions: their entries exist, and the functions' roles may read them. Pure."""

from __future__ import annotations

from contract.secrets.reference import Scheme, SecretReference
from contract.secrets.stores import call_of, description_of, key_of
from fdl.plan.roles import secret_arns
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
    not_known,
    unknown,
    wrong,
)
from orchgpu.inspection.simulation import simulated
from orchgpu.permissions.model import Statement


class SecretEntries:
    """Entries of Secrets Manager and Parameter Store; files are not of the account."""

    title = "secrets"

    def examine(self, subject: Subject) -> Steps[list[Finding]]:
        findings: list[Finding] = []
        for inspected in subject.functions:
            for reference in inspected.function.references:
                if reference.stored:
                    findings += yield from _examined(subject, inspected, reference)
        return findings or [good("functions", "none has secrets of a store")]


def _examined(
    subject: Subject, inspected: Inspected, reference: SecretReference
) -> Steps[list[Finding]]:
    where = f"function {inspected.name}, {reference}"
    place = subject.place
    parts = reference.entry.split(":")
    if parts[0] == "arn" and parts[3:5] != [place.region, place.account]:
        message = "is of another region or account, which is not looked at"
        return [not_known(where, message, "check that it exists, and who may read it")]
    call = description_of(reference)
    found = yield from attempted(
        Call(service=call.service, operation=call.operation, arguments=call.arguments)
    )
    if isinstance(found, Refusal) and found.reason is not Reason.ABSENT:
        return [unknown(found, where)]
    if isinstance(found, Refusal) or key_of(reference, found) is None:
        remedy = f"orchgpu secret put {reference.scheme.value}:{reference.entry}"
        return [wrong(where, "does not exist in this account and region", remedy)]
    if fault := _fault(where, reference, found):
        return [fault]
    if not inspected.role:
        return [good(where, "exists; deploy makes the role that reads it")]
    return (yield from _readable(subject, inspected, reference, found))


def _fault(where: str, reference: SecretReference, found: Answer) -> Finding | None:
    """The finding about an entry that exists and has no value to read."""
    if reference.scheme is not Scheme.SECRETS_MANAGER:
        return None
    if found.get("DeletedDate"):
        remedy = f"aws secretsmanager restore-secret --secret-id {reference.entry}"
        return wrong(where, "is marked for deletion", remedy)
    stages = found.get("VersionIdsToStages", {})
    if not any("AWSCURRENT" in labels for labels in stages.values()):
        return wrong(where, "has no value", f"orchgpu secret put secretsmanager:{reference.entry}")
    return None


def _readable(
    subject: Subject, inspected: Inspected, reference: SecretReference, found: Answer
) -> Steps[list[Finding]]:
    """The findings about the role of a function that reads an entry."""
    where, role = f"function {inspected.name}, {reference}", inspected.role
    principal = role if role.startswith("arn:") else subject.place.role_arn(role)
    arn = str(found.get("ARN") or secret_arns(reference, subject.place)[0])
    action = call_of(reference).action
    statements = [Statement(sid="Read", actions=(action,), resources=(arn,))]
    remedy = f"allow {action} on {arn} in that role: `orchgpu iam function FILE` prints its policy"
    if key := key_of(reference, found):
        answer = yield from attempted(
            Call(service="kms", operation="DescribeKey", arguments={"KeyId": key})
        )
        if isinstance(answer, Refusal):
            return [unknown(answer, where)]
        key = str(answer["KeyMetadata"]["Arn"])
        statements.append(Statement(sid="Key", actions=("kms:Decrypt",), resources=(key,)))
        remedy += f"; kms:Decrypt on {key}, also in the key's own policy"
    return (yield from simulated(where, principal, statements, remedy))


CHECK = SecretEntries()

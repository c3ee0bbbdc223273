"""Secrets of functions: their entries exist, and the functions' roles may read them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from contract.secrets.reference import SecretReference
from contract.secrets.stores import call_of, description_of, key_of
from corekit.errors import AppError, ErrorCode
from fdl.plan.resources import DeployTarget
from fdl.plan.roles import secret_arns
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
    unknown,
    wrong,
)
from orchgpu.inspection.simulation import simulated
from orchgpu.permissions.model import Statement


def _secrets(subject: Subject, read: Read) -> Iterator[Finding]:
    """Entries of Secrets Manager and Parameter Store; files are not of the account."""
    for inspected in subject.functions:
        for reference in inspected.function.references:
            if reference.stored:
                yield from _entry(subject, inspected, reference, read)


def _entry(
    subject: Subject, inspected: Inspected, reference: SecretReference, read: Read
) -> Iterator[Finding]:
    where, place = f"{inspected.where}, {reference}", subject.place
    entry = described(where, reference, place, read)
    if isinstance(entry, Finding):
        yield entry
    elif not inspected.role:
        yield good(where, "exists; deploy makes the role that reads it")
    else:
        arn = str(entry.get("ARN") or secret_arns(reference, place)[0])
        action = call_of(reference).action
        remedy = f"allow {action} on {arn} in that role: `orchgpu iam function FILE` has its policy"
        statement = Statement(sid="Read", actions=(action,), resources=(arn,))
        yield from simulated(where, subject.role_arn(inspected.role), [statement], remedy, read)


def described(
    where: str, reference: SecretReference, place: DeployTarget, read: Read
) -> Answer | Finding:
    """The description of an entry, without its content; or the finding that it has none."""
    parts = reference.entry.split(":")
    if parts[0] == "arn" and parts[3:5] != [place.region, place.account]:
        message = "is of another region or account, which is not looked at"
        return unknown(where, message, "check that it exists, and who may read it")
    call = description_of(reference)
    try:
        arguments = call.arguments
        entry = read(ReadCall(service=call.service, operation=call.operation, arguments=arguments))
    except AppError as error:
        if error.code is not ErrorCode.NOT_FOUND:
            return refused(error, where)
        entry = {"DeletedDate": error}
    if key_of(reference, entry) is None or entry.get("DeletedDate"):
        remedy = f"orchgpu secret put {reference.scheme.value}:{reference.entry}"
        return wrong(where, "does not exist in this account and region", remedy)
    return entry


CHECK = Check(title="secrets", examine=_secrets)

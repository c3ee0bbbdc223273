"""Policies of the deployer and of the orchestrator, simulated over all that they call. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from corekit.errors import AppError
from orchgpu.inspection.model import Check, Finding, Read, ReadCall, Subject, unknown, warning
from orchgpu.inspection.simulation import simulated
from orchgpu.permissions.model import Scope
from orchgpu.permissions.roles import deployer, orchestrator


def _policies(subject: Subject, read: Read) -> Iterator[Finding]:
    """The caller of this command is taken for the deployer; no call names the orchestrator."""
    scope = Scope(place=subject.place, functions=tuple(f.function for f in subject.functions))
    where, principal = f"deployer {subject.caller}", _principal(subject, read)
    if subject.caller.endswith(":root"):
        message = "the root user: no policy limits it, and no simulation takes it"
        yield warning(where, message, "create a role with `orchgpu iam deployer` and use that")
    elif principal is None:
        message = "neither a user nor a role: its policies cannot be simulated"
        yield unknown(where, message, "compare with `orchgpu iam deployer`")
    else:
        remedy = "attach the policy that `orchgpu iam deployer [FILE]` prints"
        statements = deployer.ROLE.statements(scope)
        yield from simulated(where, principal, statements, remedy, read)
    role = subject.orchestrator_role
    if not role:
        yield unknown("orchestrator", "its role is not known", "name it: --orchestrator-role NAME")
        return
    remedy = "attach the policy that `orchgpu iam orchestrator [FILE]` prints"
    statements = orchestrator.ROLE.statements(scope)
    yield from simulated("orchestrator", subject.role_arn(role), statements, remedy, read)


def _principal(subject: Subject, read: Read) -> str | None:
    head, _, resource = subject.caller.partition(f":{subject.place.account}:")
    kind, _, rest = resource.partition("/")
    if head.endswith(":iam:") and kind in ("user", "role"):
        return subject.caller
    if kind != "assumed-role":
        return None
    name = rest.partition("/")[0]
    try:  # the ARN of a session lacks the path of its role
        answer = read(ReadCall(service="iam", operation="GetRole", arguments={"RoleName": name}))
    except AppError:
        return subject.place.role_arn(name)
    return str(answer["Role"]["Arn"])


CHECK = Check(title="policies of deployer and orchestrator", examine=_policies)

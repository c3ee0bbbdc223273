"""The caller's policies, simulated over everything that a deploy calls. Pure."""

from __future__ import annotations

from orchgpu.inspection.model import (
    Call,
    Finding,
    Refusal,
    Steps,
    Subject,
    attempted,
    not_known,
    warning,
)
from orchgpu.inspection.simulation import simulated
from orchgpu.permissions.model import Scope
from orchgpu.permissions.roles.deployer import ROLE


class DeployerPolicy:
    """The caller of this command is taken for the deployer."""

    title = "policies of the deployer"

    def examine(self, subject: Subject) -> Steps[list[Finding]]:
        where = f"caller {subject.caller}"
        if subject.caller.endswith(":root"):
            message = "the root user: no policy limits it, and no simulation takes it"
            remedy = "create a role with `orchgpu iam deployer` and use that"
            return [warning(where, message, remedy)]
        principal = yield from _principal(subject)
        if principal is None:
            message = "neither a user nor a role: its policies cannot be simulated"
            return [not_known(where, message, "compare with `orchgpu iam deployer`")]
        scope = Scope(place=subject.place, functions=tuple(f.function for f in subject.functions))
        remedy = "attach the policy that `orchgpu iam deployer [FILE]` prints"
        return (yield from simulated(where, principal, ROLE.statements(scope), remedy))


def _principal(subject: Subject) -> Steps[str | None]:
    """The ARN of the user or role behind the caller."""
    head, _, resource = subject.caller.partition(f":{subject.place.account}:")
    kind, _, rest = resource.partition("/")
    if head.endswith(":iam:") and kind in ("user", "role"):
        return subject.caller
    if kind != "assumed-role":
        return None
    name = rest.partition("/")[0]
    # the ARN of a session lacks the path of its role
    call = Call(service="iam", operation="GetRole", arguments={"RoleName": name})
    answer = yield from attempted(call)
    if isinstance(answer, Refusal):
        return subject.place.role_arn(name)
    return str(answer["Role"]["Arn"])


CHECK = DeployerPolicy()

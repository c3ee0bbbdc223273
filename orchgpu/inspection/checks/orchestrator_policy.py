"""The orchestrator's role, simulated over everything that it calls. Pure."""

from __future__ import annotations

from orchgpu.inspection.model import Finding, Steps, Subject, not_known
from orchgpu.inspection.simulation import simulated
from orchgpu.permissions.model import Scope
from orchgpu.permissions.roles.orchestrator import ROLE


class OrchestratorPolicy:
    """The role is given by an option: no call of AWS names it."""

    title = "policies of the orchestrator"

    def examine(self, subject: Subject) -> Steps[list[Finding]]:
        if not subject.orchestrator_role:
            message = "its role is not known"
            return [not_known("orchestrator", message, "name it: --orchestrator-role NAME")]
        named = subject.orchestrator_role
        principal = named if named.startswith("arn:") else subject.place.role_arn(named)
        scope = Scope(place=subject.place, functions=tuple(f.function for f in subject.functions))
        remedy = "attach the policy that `orchgpu iam orchestrator [FILE]` prints"
        statements = ROLE.statements(scope)
        return (yield from simulated("orchestrator", principal, statements, remedy))


CHECK = OrchestratorPolicy()

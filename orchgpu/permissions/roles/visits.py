"""The role of an orchestrator without a server: both functions of `orchgpu deploy --serverless`."""

from __future__ import annotations

from collections.abc import Iterator

from fdl.plan.roles import DENIED_TO_CODE, INTERFACES, LOGS
from orchgpu.permissions.model import RoleKind, Scope, Statement, allow
from orchgpu.permissions.roles import orchestrator

#: The role that the policy of the deployer lets it pass.
NAME = "orchgpu-visits"


def _needs(scope: Scope) -> Iterator[Statement]:
    yield from orchestrator.ROLE.needs(scope)
    yield allow("Sweep", "lambda:InvokeFunction", on=scope.visits)
    where = f"arn:{scope.place.partition}:logs:{scope.where}:log-group:/aws/lambda/"
    names = [arn.rpartition(":")[2] for arn in scope.visits]
    yield allow("Logs", *LOGS, on=[f"{where}{name}:*" for name in names])
    network = not scope.functions or any(f.function.vpc.subnet_ids for f in scope.functions)
    yield allow("Network", *INTERFACES, on=("*",) if network else ())
    by_code = {"ArnLike": {"lambda:SourceFunctionArn": list(scope.visits)}}
    if network:
        yield Statement(
            sid="NetworkNotByCode", actions=DENIED_TO_CODE, effect="Deny", condition=by_code
        )


ROLE = RoleKind(
    summary="the functions of `orchgpu deploy --serverless`; add the entry of --key-secret",
    service="lambda.amazonaws.com scheduler.amazonaws.com",
    needs=_needs,
)

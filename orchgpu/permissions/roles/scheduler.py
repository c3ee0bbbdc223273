"""The role of the scheduler's machines of `orchgpu infra`, beside those of the programs on them."""

from __future__ import annotations

from collections.abc import Iterator

from orchgpu.permissions.model import RoleKind, Scope, Statement, allow


def _needs(scope: Scope) -> Iterator[Statement]:
    where, partition, stack = scope.where, scope.place.partition, scope.stack
    table = f"arn:{partition}:dynamodb:{where}:table/{stack}"
    # Secrets Manager adds six characters of its own to a name
    secret = f"arn:{partition}:secretsmanager:{where}:secret:{stack}/system-??????"
    machines = (
        f"arn:{partition}:ec2:{where}:{kind}/*" for kind in ("instance", "network-interface")
    )
    bundles, authority = scope.bundles, f"{scope.state}/{scope.stack_folder}/ca.pem"
    yield allow(
        "Journal",
        "dynamodb:DescribeTable",
        "GetItem",
        "PutItem",
        "Query",
        "BatchWriteItem",
        on=(table,),
    )
    yield allow("Secret", "secretsmanager:GetSecretValue", "PutSecretValue", on=(secret,))
    yield allow("Packages", "s3:GetObject", on=bundles)
    yield allow("Authority", "s3:PutObject", on=(authority,))
    yield allow("FindAddress", "ec2:DescribeNetworkInterfaces")
    yield allow("TakeAddress", "ec2:AttachNetworkInterface", on=machines, when=scope.of_stack)
    stacks = f"arn:{partition}:cloudformation:{where}:stack/{stack}/*"
    yield allow("Report", "cloudformation:SignalResource", on=(stacks,))
    yield allow(
        "Logs", "logs:CreateLogStream", "DescribeLogStreams", "PutLogEvents", on=scope.own_logs
    )


ROLE = RoleKind(
    summary="the scheduler's machines of `orchgpu infra`, in addition to orchestrator and user",
    service="ec2.amazonaws.com",
    needs=_needs,
)

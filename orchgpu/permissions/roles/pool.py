"""The role of GPU hosts that `orchgpu infra` starts: their packages, logs, and the group's hook."""

from __future__ import annotations

from collections.abc import Iterator

from orchgpu.permissions.model import RoleKind, Scope, Statement, allow


def _needs(scope: Scope) -> Iterator[Statement]:
    groups = f"arn:{scope.place.partition}:autoscaling:{scope.where}:autoScalingGroup:*"
    yield allow("Packages", "s3:GetObject", on=scope.bundles)
    yield allow("FindGroup", "autoscaling:DescribeAutoScalingInstances")
    yield allow("Leave", "autoscaling:CompleteLifecycleAction", on=(groups,), when=scope.of_stack)
    yield allow(
        "Logs", "logs:CreateLogStream", "DescribeLogStreams", "PutLogEvents", on=scope.own_logs
    )


ROLE = RoleKind(
    summary="GPU hosts that `orchgpu infra` starts, as an EC2 instance profile",
    service="ec2.amazonaws.com",
    needs=_needs,
)

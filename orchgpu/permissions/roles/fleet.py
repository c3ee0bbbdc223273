"""The role of `orchgpu fleet` on the machines of `orchgpu infra`: their groups of GPU hosts.

The two calls that change a group are limited by its name and by the stack's tag: the schedulers'
own groups have the tag, too, and a group of another stack may have a name like these.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchgpu.permissions.model import RoleKind, Scope, Statement, allow


def _needs(scope: Scope) -> Iterator[Statement]:
    where = f"arn:{scope.place.partition}:autoscaling:{scope.where}"
    pools = f"{where}:autoScalingGroup:*:autoScalingGroupName/{scope.stack}-gpu-*"
    find = ("autoscaling:DescribeAutoScalingGroups", "DescribeScalingActivities")
    size = ("autoscaling:SetDesiredCapacity", "TerminateInstanceInAutoScalingGroup")
    yield allow("FindHosts", *find)
    yield allow("Hosts", *size, on=(pools,), when=scope.of_stack)


ROLE = RoleKind(
    summary="`orchgpu fleet` on the scheduler's machines of `orchgpu infra`",
    service="ec2.amazonaws.com",
    needs=_needs,
)

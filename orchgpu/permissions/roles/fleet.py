"""The role of `orchgpu fleet`: the groups of GPU hosts at its provider, named `STACK-gpu-…`.

The two calls that change a group of Auto Scaling are limited by its name and by the stack's tag:
the schedulers' own groups have the tag, too, and a group of another stack may have a name like
these. Those of ECS are limited by the names of task definitions and capacity providers, and by the
cluster (AWS's Service Authorization Reference: ListTasks names no task).
"""

from __future__ import annotations

from collections.abc import Iterator

from orchgpu.permissions.model import RoleKind, Scope, Statement, allow


def _needs(scope: Scope) -> Iterator[Statement]:
    return _of_ecs(scope) if scope.cluster else _of_auto_scaling(scope)


def _of_ecs(scope: Scope) -> Iterator[Statement]:
    where, own = f"arn:{scope.place.partition}:ecs:{scope.where}", f"{scope.stack}-gpu-*"
    there = {"ArnEquals": {"ecs:cluster": f"{where}:cluster/{scope.cluster}"}}
    tasks = f"{where}:task/{scope.cluster}/*"
    yield allow(
        "FindGroups", "ecs:DescribeCapacityProviders", on=(f"{where}:capacity-provider/{own}",)
    )
    yield allow("FindHosts", "ecs:ListTasks", when=there)
    yield allow("Hosts", "ecs:DescribeTasks", "StopTask", on=(tasks,), when=there)
    yield allow("StartHosts", "ecs:RunTask", on=(f"{where}:task-definition/{own}",), when=there)
    passed = {"StringEquals": {"iam:PassedToService": "ecs-tasks.amazonaws.com"}}
    yield allow("TaskRoles", "iam:PassRole", on=(scope.place.role_arn(own),), when=passed)


def _of_auto_scaling(scope: Scope) -> Iterator[Statement]:
    where = f"arn:{scope.place.partition}:autoscaling:{scope.where}"
    pools = f"{where}:autoScalingGroup:*:autoScalingGroupName/{scope.stack}-gpu-*"
    find = ("autoscaling:DescribeAutoScalingGroups", "DescribeScalingActivities")
    size = ("autoscaling:SetDesiredCapacity", "TerminateInstanceInAutoScalingGroup")
    yield allow("FindHosts", *find)
    yield allow("Hosts", *size, on=(pools,), when=scope.of_stack)


ROLE = RoleKind(
    summary="`orchgpu fleet` on the scheduler's machines of `orchgpu infra`, or with --provider",
    service="ec2.amazonaws.com",
    needs=_needs,
)

"""The role of a person or pipeline that runs `orchgpu deploy`, `plan`, `rm` and `rollback`."""

from __future__ import annotations

from fdl.plan.desired import RETENTION
from fdl.plan.roles import role_of
from orchgpu.permissions.model import Scope, Statement, below

_BUCKETS = (
    "s3:CreateBucket",
    "s3:DeleteBucket",
    "s3:ListBucket",
    "s3:ListBucketVersions",
    "s3:GetBucketVersioning",
    "s3:PutBucketVersioning",
    "s3:GetBucketNotification",
    "s3:PutBucketNotification",
    "s3:GetLifecycleConfiguration",
    "s3:PutLifecycleConfiguration",
)
_QUEUES = (
    "sqs:CreateQueue",
    "sqs:TagQueue",
    "sqs:DeleteQueue",
    "sqs:GetQueueUrl",
    "sqs:GetQueueAttributes",
    "sqs:SetQueueAttributes",
    "sqs:ReceiveMessage",
)
_FUNCTIONS = (
    "lambda:CreateFunction",
    "lambda:DeleteFunction",
    "lambda:GetFunction",
    "lambda:ListTags",
    "lambda:GetFunctionConfiguration",
    "lambda:UpdateFunctionCode",
    "lambda:UpdateFunctionConfiguration",
    "lambda:TagResource",
    "lambda:UntagResource",
    "lambda:InvokeFunction",
    "lambda:GetFunctionEventInvokeConfig",
    "lambda:PutFunctionEventInvokeConfig",
    "lambda:DeleteFunctionEventInvokeConfig",
    "lambda:GetPolicy",
    "lambda:AddPermission",
    "lambda:RemovePermission",
)
_ROLES = (
    "iam:GetRole",
    "iam:GetRolePolicy",
    "iam:CreateRole",
    "iam:TagRole",
    "iam:PutRolePolicy",
    "iam:DeleteRolePolicy",
    "iam:DeleteRole",
)
_NETWORK = ("ec2:DescribeSubnets", "ec2:DescribeSecurityGroups", "ec2:DescribeVpcs")


class Deployer:
    """The deployer of the functions of a scope."""

    summary = "a person or pipeline that runs `orchgpu deploy`, `plan`, `rm` and `rollback`"
    service = ""

    def statements(self, scope: Scope) -> tuple[Statement, ...]:
        objects = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject")
        made, passed = _made_roles(scope), _passed_roles(scope)
        to_lambda = {"StringEquals": {"iam:PassedToService": "lambda.amazonaws.com"}}
        parts = (
            Statement(sid="Buckets", actions=_BUCKETS, resources=scope.all_buckets),
            Statement(sid="State", actions=objects, resources=below(scope.packages)),
            Statement(sid="Queues", actions=_QUEUES, resources=scope.queues()),
            Statement(sid="Functions", actions=_FUNCTIONS, resources=scope.lambdas),
            Statement(
                sid="PassRole", actions=("iam:PassRole",), resources=passed, condition=to_lambda
            ),
            Statement(sid="Roles", actions=_ROLES, resources=made),
            *_logs(scope),
            Statement(sid="Layers", actions=("lambda:GetLayerVersion",), resources=_layers(scope)),
            Statement(sid="Network", actions=_NETWORK, resources=_in_vpc(scope)),
        )
        return tuple(part for part in parts if part.resources)


def _made_roles(scope: Scope) -> tuple[str, ...]:
    if not scope.functions:
        return (scope.place.role_arn("orchgpu-*"),)
    creating = [f for f in scope.functions if f.iam.create]
    return tuple(scope.place.role_arn(role_of(f, scope.place).name) for f in creating)


def _passed_roles(scope: Scope) -> tuple[str, ...]:
    named = [f.iam.role for f in scope.functions if f.iam.role and not f.iam.create]
    return tuple(dict.fromkeys([*_made_roles(scope), *named]))


def _logs(scope: Scope) -> tuple[Statement, ...]:
    keeping = [f.name for f in scope.functions if RETENTION in f.cloudwatch]
    if scope.functions and not keeping:
        return ()
    groups = [one for one in scope.log_groups if not keeping or _named(one) in keeping]
    where = f"arn:{scope.place.partition}:logs:{scope.place.region}:{scope.place.account}"
    changes = ("logs:CreateLogGroup", "logs:PutRetentionPolicy")
    return (
        # IAM ignores a narrower resource of this action
        Statement(sid="FindLogs", actions=("logs:DescribeLogGroups",), resources=(f"{where}:*",)),
        Statement(sid="Logs", actions=changes, resources=tuple(groups)),
    )


def _named(group: str) -> str:
    return group.removesuffix(":*").rpartition("/")[2]


def _layers(scope: Scope) -> tuple[str, ...]:
    if not scope.functions:
        return ("*",)
    return tuple(dict.fromkeys(layer for f in scope.functions for layer in f.function.layers))


def _in_vpc(scope: Scope) -> tuple[str, ...]:
    """IAM cannot limit Describe actions to resources."""
    inside = not scope.functions or any(f.function.vpc.subnet_ids for f in scope.functions)
    return ("*",) if inside else ()


ROLE = Deployer()

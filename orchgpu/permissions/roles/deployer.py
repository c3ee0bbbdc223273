"""The role of a person or pipeline that runs `orchgpu deploy`, `plan`, `rm` and `rollback`."""

from __future__ import annotations

from contract.secrets.reference import Scheme
from corekit.values import replace
from fdl.plan.desired import RETENTION
from fdl.plan.roles import secret_arns
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
    "s3:GetBucketTagging",
    "s3:PutBucketTagging",
    "s3:GetEncryptionConfiguration",
)
_QUEUES = (
    "sqs:CreateQueue",
    "sqs:ListQueueTags",
    "sqs:TagQueue",
    "sqs:UntagQueue",
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
    "lambda:PutFunctionConcurrency",
    "lambda:DeleteFunctionConcurrency",
    "lambda:GetFunctionEventInvokeConfig",
    "lambda:PutFunctionEventInvokeConfig",
    "lambda:DeleteFunctionEventInvokeConfig",
    "lambda:GetPolicy",
    "lambda:AddPermission",
    "lambda:RemovePermission",
)
_SEEN_ROLES = ("iam:GetRole", "iam:GetRolePolicy")
_ROLES = ("iam:TagRole", "iam:UntagRole", "iam:DeleteRolePolicy", "iam:DeleteRole")
#: What gives a role rights: allowed on roles that have the boundary. There is no right to change
#: a boundary, or its policy.
_RIGHTS_OF_ROLES = ("iam:CreateRole", "iam:PutRolePolicy")
_NETWORK = (
    "ec2:DescribeSubnets",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeVpcs",
    "ec2:DescribeNetworkInterfaces",
    "lambda:ListFunctions",
)
_IMAGES = (
    "ecr:DescribeImages",
    "ecr:GetRepositoryPolicy",
    "ecr:SetRepositoryPolicy",
    "ecr:BatchGetImage",
    "ecr:GetDownloadUrlForLayer",
)
_VARIABLES = ("kms:CreateGrant", "kms:Encrypt", "kms:Decrypt")


class Deployer:
    """The deployer of the functions of a scope."""

    summary = "a person or pipeline that runs `orchgpu deploy`, `plan`, `rm` and `rollback`"
    service = ""

    def statements(self, scope: Scope) -> tuple[Statement, ...]:
        objects = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject")
        to_lambda = {"StringEquals": {"iam:PassedToService": "lambda.amazonaws.com"}}
        parts = (
            Statement(sid="Buckets", actions=_BUCKETS, resources=scope.all_buckets),
            Statement(sid="State", actions=objects, resources=below(scope.packages)),
            Statement(sid="Queues", actions=_QUEUES, resources=scope.queues()),
            Statement(sid="Functions", actions=_FUNCTIONS, resources=scope.lambdas),
            Statement(
                sid="PassRole",
                actions=("iam:PassRole",),
                resources=_passed_roles(scope),
                condition=to_lambda,
            ),
            *_roles(scope),
            *_logs(scope),
            Statement(sid="Layers", actions=("lambda:GetLayerVersion",), resources=_layers(scope)),
            *_uses(scope),
        )
        return tuple(part for part in parts if part.resources)


def _roles(scope: Scope) -> tuple[Statement, ...]:
    """Roles within the boundary only: a deployer that made any role would be an administrator."""
    made, limits = scope.made_roles(), scope.boundaries()
    bounded = {"StringEquals": {"iam:PermissionsBoundary": list(limits)}}
    return (
        Statement(sid="FindRoles", actions=_SEEN_ROLES, resources=scope.made_roles(seen=True)),
        Statement(sid="Boundary", actions=("iam:GetPolicy",), resources=limits),
        Statement(sid="Roles", actions=_ROLES, resources=made),
        Statement(sid="RightsOfRoles", actions=_RIGHTS_OF_ROLES, resources=made, condition=bounded),
    )


def _uses(scope: Scope) -> tuple[Statement, ...]:
    """Networks, files, images and keys, where a function has one; Describe takes no resource."""
    functions = [f.function for f in scope.functions]
    everything = not functions
    where = f"{scope.place.region}:{scope.place.account}"
    repositories = f"arn:{scope.place.partition}:ecr:{where}:repository/*"
    network = everything or any(f.vpc.subnet_ids for f in functions)
    files = everything or any(f.file_system for f in functions)
    images = everything or any(f.runtime == "image" for f in functions)
    mounts = ("elasticfilesystem:DescribeMountTargets",)
    # the keys of buckets and secrets are in no definition; the call reads no secret
    described = replace(scope, functions=()).keys(of_buckets=True)
    makes = everything or any(f.iam.create for f in scope.functions)
    return (
        Statement(sid="Network", actions=_NETWORK, resources=("*",) if network else ()),
        Statement(sid="Files", actions=mounts, resources=("*",) if files else ()),
        Statement(sid="Images", actions=_IMAGES, resources=(repositories,) if images else ()),
        Statement(sid="Keys", actions=("kms:DescribeKey",), resources=described if makes else ()),
        *_secrets(scope),
        Statement(
            sid="Variables",
            actions=_VARIABLES,
            resources=scope.keys(of_buckets=False),
            condition=scope.by("lambda"),
        ),
    )


def _secrets(scope: Scope) -> tuple[Statement, ...]:
    """The descriptions of secrets, which name the keys that a role of ours must use."""
    made = [f for f in scope.functions if f.iam.create]
    schemes = {one.scheme for f in made for one in f.references}
    everything = not scope.functions
    where = f"{scope.place.region}:{scope.place.account}"
    secrets = f"arn:{scope.place.partition}:secretsmanager:{where}:secret:*"
    named = [
        arn
        for f in made
        for one in f.references
        if one.scheme is Scheme.SECRETS_MANAGER
        for arn in secret_arns(one, scope.place)
    ]
    parameters = everything or Scheme.PARAMETER_STORE in schemes
    return (
        Statement(
            sid="Secrets",
            actions=("secretsmanager:DescribeSecret",),
            resources=(secrets,) if everything else tuple(dict.fromkeys(named)),
        ),
        # IAM ignores a narrower resource of this action
        Statement(
            sid="Parameters",
            actions=("ssm:DescribeParameters",),
            resources=("*",) if parameters else (),
        ),
    )


def _passed_roles(scope: Scope) -> tuple[str, ...]:
    named = [f.iam.role for f in scope.functions if f.iam.role and not f.iam.create]
    return tuple(dict.fromkeys([*scope.made_roles(), *named]))


def _logs(scope: Scope) -> tuple[Statement, ...]:
    keeping = tuple(f for f in scope.functions if RETENTION in f.cloudwatch)
    if scope.functions and not keeping:
        return ()
    kept = replace(scope, functions=keeping)
    where = f"arn:{scope.place.partition}:logs:{scope.place.region}:{scope.place.account}"
    changes = ("logs:CreateLogGroup", "logs:PutRetentionPolicy")
    return (
        # IAM ignores a narrower resource of this action
        Statement(
            sid="FindLogs", actions=("logs:DescribeLogGroups",), resources=(f"{where}:log-group:*",)
        ),
        Statement(sid="Logs", actions=changes, resources=kept.log_groups),
        Statement(sid="TagLogs", actions=("logs:TagResource",), resources=kept.tagged_log_groups),
    )


def _layers(scope: Scope) -> tuple[str, ...]:
    if not scope.functions:
        return ("*",)
    return tuple(dict.fromkeys(layer for f in scope.functions for layer in f.function.layers))


ROLE = Deployer()

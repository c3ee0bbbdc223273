"""The role of a person or pipeline that runs `orchgpu deploy`, `plan`, `rm` and `rollback`."""

from __future__ import annotations

from collections.abc import Iterator

from contract.secrets.reference import Scheme
from corekit.values import replace
from fdl.plan.desired import RETENTION, further_roles
from fdl.plan.roles import secret_arns
from fdl.plan.schedules import SERVICE
from orchgpu.permissions.model import RoleKind, Scope, Statement, allow, below

_BUCKETS = (
    *("s3:CreateBucket", "DeleteBucket", "ListBucket", "ListBucketVersions"),
    *("GetBucketVersioning", "PutBucketVersioning"),
    *("GetBucketNotification", "PutBucketNotification"),
    *("GetLifecycleConfiguration", "PutLifecycleConfiguration"),
    *("GetBucketTagging", "PutBucketTagging", "GetEncryptionConfiguration"),
)
#: Folders of the state bucket, without `infra/`: hosts trust the authority that is there.
STATE_FOLDERS = ("functions/", "deployments/", "workflows/", "registry/", "revisions/", "locks/")
_QUEUES = (
    *("sqs:CreateQueue", "ListQueueTags", "TagQueue", "UntagQueue", "DeleteQueue"),
    *("GetQueueUrl", "GetQueueAttributes", "SetQueueAttributes", "ReceiveMessage"),
)
FUNCTIONS = (
    *("lambda:CreateFunction", "DeleteFunction", "GetFunction", "ListTags"),
    *("GetFunctionConfiguration", "UpdateFunctionCode", "UpdateFunctionConfiguration"),
    *("TagResource", "UntagResource", "InvokeFunction"),
    *("PutFunctionConcurrency", "DeleteFunctionConcurrency"),
    *("GetFunctionEventInvokeConfig", "PutFunctionEventInvokeConfig"),
    *("DeleteFunctionEventInvokeConfig", "GetPolicy", "AddPermission", "RemovePermission"),
)
_URLS = tuple(f"lambda:{verb}FunctionUrlConfig" for verb in ("Create", "Get", "Update", "Delete"))
SCHEDULES = tuple(f"scheduler:{verb}Schedule" for verb in ("Get", "Create", "Update", "Delete"))
_TOPICS = (
    *("sns:CreateTopic", "GetTopicAttributes", "SetTopicAttributes", "DeleteTopic"),
    *("Subscribe", "ListSubscriptionsByTopic"),
)
_RULES = (
    *("events:DescribeRule", "PutRule", "DeleteRule"),
    *("ListTargetsByRule", "PutTargets", "RemoveTargets"),
)
_NETWORK = (
    *("ec2:DescribeSubnets", "DescribeSecurityGroups", "DescribeVpcs"),
    *("DescribeNetworkInterfaces", "lambda:ListFunctions"),
)
_IMAGES = (
    *("ecr:DescribeImages", "GetRepositoryPolicy", "SetRepositoryPolicy"),
    *("BatchGetImage", "GetDownloadUrlForLayer"),
)


def _needs(scope: Scope) -> Iterator[Statement]:
    passed = [f.iam.role for f in scope.functions if f.iam.role and not f.iam.create]
    passed += [one.role for f in scope.functions for one in f.schedule if one.role]
    to = ["lambda.amazonaws.com", *([SERVICE] if scope.schedules else [])]
    services = {"StringEquals": {"iam:PassedToService": to[0] if len(to) == 1 else to}}
    layers = [layer for f in scope.functions for layer in f.function.layers]
    yield allow("Buckets", *_BUCKETS, on=scope.all_buckets)
    state = (*below((scope.state,), *STATE_FOLDERS), *below(scope.packages, "packages/"))
    yield allow("State", "s3:GetObject", "PutObject", "DeleteObject", on=state)
    yield allow("Queues", *_QUEUES, on=(*scope.queues(), *scope.workflow_queues))
    yield allow("Functions", *FUNCTIONS, on=(*scope.lambdas, *scope.http_functions))
    yield allow("Urls", *_URLS, on=scope.http_functions)
    yield allow("PassRole", "iam:PassRole", on=(*scope.made_roles(), *passed), when=services)
    yield allow("Schedules", *SCHEDULES, on=scope.schedules)
    yield allow("Topics", *_TOPICS, on=scope.topics_of_uploads)
    yield allow("Rules", *_RULES, on=scope.rules_of_uploads)
    yield from _roles(scope)
    yield from _logs(scope)
    yield allow("Layers", "lambda:GetLayerVersion", on=layers if scope.functions else ("*",))
    yield from _uses(scope)
    stack = f"arn:{scope.place.partition}:cloudformation:{scope.where}:stack/{scope.stack}/*"
    yield allow("Stack", "cloudformation:DescribeStacks", on=(stack,))


def _roles(scope: Scope) -> Iterator[Statement]:
    """Roles within the boundary only: a deployer that made any role would be an administrator.

    What gives a role rights is allowed on roles that have the boundary. There is no right to change
    a boundary, or its policy.
    """
    made, limits = scope.made_roles(), scope.boundaries()
    bounded = {"StringEquals": {"iam:PermissionsBoundary": list(limits)}}
    change = (
        *("iam:TagRole", "UntagRole", "DeleteRolePolicy", "DeleteRole"),
        "UpdateAssumeRolePolicy",
    )
    yield allow("FindRoles", "iam:GetRole", "GetRolePolicy", on=scope.made_roles(seen=True))
    yield allow("Boundary", "iam:GetPolicy", on=limits)
    yield allow("Roles", *change, on=made)
    yield allow("RightsOfRoles", "iam:CreateRole", "PutRolePolicy", on=made, when=bounded)


def _uses(scope: Scope) -> Iterator[Statement]:
    """Networks, files, images and keys, where a function has one; Describe takes no resource."""
    functions = [f.function for f in scope.functions]
    everything = not functions
    repositories = f"arn:{scope.place.partition}:ecr:{scope.where}:repository/*"
    network = everything or any(f.vpc.subnet_ids for f in functions)
    files = everything or any(f.file_system for f in functions)
    images = everything or any(f.runtime == "image" for f in functions)
    mounts = "elasticfilesystem:DescribeMountTargets"
    # the keys of buckets and secrets are in no definition; the call reads no secret
    described = replace(scope, functions=()).keys(of_buckets=True)
    made = (f for f in scope.functions if f.iam.create or further_roles(f, scope.place))
    makes = everything or any(made)
    variables, by = scope.keys(of_buckets=False), scope.by("lambda")
    yield allow("Network", *_NETWORK, on=("*",) if network else ())
    yield allow("Files", mounts, on=("*",) if files else ())
    yield allow("Images", *_IMAGES, on=(repositories,) if images else ())
    yield allow("Keys", "kms:DescribeKey", on=described if makes else ())
    yield from _secrets(scope)
    yield allow("Variables", "kms:CreateGrant", "Encrypt", "Decrypt", on=variables, when=by)


def _secrets(scope: Scope) -> Iterator[Statement]:
    """The descriptions of secrets, which name the keys that a role of ours must use."""
    references = [one for f in scope.functions if f.iam.create for one in f.references]
    everything = not scope.functions
    every = f"arn:{scope.place.partition}:secretsmanager:{scope.where}:secret:*"
    named = [
        arn
        for one in references
        if one.scheme is Scheme.SECRETS_MANAGER
        for arn in secret_arns(one, scope.place)
    ]
    parameters = everything or any(one.scheme is Scheme.PARAMETER_STORE for one in references)
    yield allow("Secrets", "secretsmanager:DescribeSecret", on=(every,) if everything else named)
    # IAM ignores a narrower resource of this action
    yield allow("Parameters", "ssm:DescribeParameters", on=("*",) if parameters else ())


def _logs(scope: Scope) -> Iterator[Statement]:
    keeping = tuple(f for f in scope.functions if RETENTION in f.cloudwatch)
    if scope.functions and not keeping:
        return
    kept = replace(scope, functions=keeping)
    groups = f"arn:{scope.place.partition}:logs:{scope.where}:log-group:*"
    # IAM ignores a narrower resource of this action
    yield allow("FindLogs", "logs:DescribeLogGroups", on=(groups,))
    yield allow("Logs", "logs:CreateLogGroup", "PutRetentionPolicy", on=kept.log_groups)
    yield allow("TagLogs", "logs:TagResource", on=kept.tagged_log_groups)


ROLE = RoleKind(
    summary="a person or pipeline that runs `orchgpu deploy`, `plan`, `rm` and `rollback`",
    service="",
    needs=_needs,
)

"""The execution role of a function with `iam: {create: true}`: the least that it needs.

The actions are those of the function in `infra/README.md`; every resource is named, but for the
network interfaces that Lambda itself makes for a function in a VPC, which IAM cannot name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from fdl.model import Function, Path
from fdl.plan.resources import DeployTarget, Role

#: IAM's limit for the name of a role.
_NAME_CHARS_MAX = 64
_PREFIX = "orchgpu-"
_INTERFACES = (
    "ec2:CreateNetworkInterface",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSubnets",
    "ec2:DeleteNetworkInterface",
    "ec2:AssignPrivateIpAddresses",
    "ec2:UnassignPrivateIpAddresses",
)
_MOUNT = ("elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite")

Statement = Mapping[str, object]


def role_of(function: Function, place: DeployTarget) -> Role:
    """The role that a function with `create: true` runs under."""
    policy = {"Version": "2012-10-17", "Statement": list(_statements(function, place))}
    return Role(name=role_name(function.name), policy=policy)


def role_name(function: str) -> str:
    """Unique for each function; a name too long for IAM ends with its hash."""
    name = _PREFIX + function
    if len(name) <= _NAME_CHARS_MAX:
        return name
    digest = hashlib.sha256(function.encode()).hexdigest()[:8]
    return f"{name[: _NAME_CHARS_MAX - 9]}-{digest}"


def _statements(function: Function, place: DeployTarget) -> list[Statement]:
    reads = [s.path for s in function.user_input]
    writes = [s.path for s in function.function.output]
    statements = [
        _allow("Inputs", ("s3:GetObject", "s3:GetObjectVersion"), _objects(place, reads)),
        _allow("Outputs", ("s3:PutObject", "s3:AbortMultipartUpload"), _objects(place, writes)),
        _allow("Logs", _LOGS, (_log_group(function, place),)),
    ]
    if function.queued:
        statements += _of_jobs(function, place)
    lists = [*reads, *([function.intermediate] if function.queued else [])]
    statements.append(_allow("Absence", ("s3:ListBucket",), _buckets(place, lists)))
    if function.function.vpc.subnet_ids:
        statements.append(_allow("Network", _INTERFACES, ("*",)))
    mounts = tuple(fs.arn for fs in function.function.file_system)
    statements.append(_allow("Files", _MOUNT, mounts))
    return [statement for statement in statements if statement["Resource"]]


_LOGS = ("logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents")


def _of_jobs(function: Function, place: DeployTarget) -> list[Statement]:
    bucket = place.bucket_arn(function.intermediate.bucket)
    results = (f"{bucket}/results/*", f"{bucket}/attempts/*")
    staged = (f"{bucket}/staging/{function.name}/*", f"{bucket}/results/*")
    return [
        _allow("Envelopes", ("s3:GetObject",), staged),
        _allow("Results", ("s3:PutObject",), () if function.foreign else results),
        _allow("Failures", ("sqs:SendMessage",), (place.queue_arn(function.queues[2]),)),
    ]


def _allow(sid: str, actions: Sequence[str], resources: Sequence[str]) -> Statement:
    return {
        "Sid": sid,
        "Effect": "Allow",
        "Action": list(actions),
        "Resource": list(dict.fromkeys(resources)),
    }


def _objects(place: DeployTarget, paths: Sequence[Path]) -> list[str]:
    return [f"{place.bucket_arn(path.bucket)}/{path.key_prefix}*" for path in paths]


def _buckets(place: DeployTarget, paths: Sequence[Path]) -> list[str]:
    return [place.bucket_arn(path.bucket) for path in paths]


def _log_group(function: Function, place: DeployTarget) -> str:
    where = f"arn:{place.partition}:logs:{place.region}:{place.account}"
    return f"{where}:log-group:/aws/lambda/{function.name}:*"

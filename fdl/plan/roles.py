"""The execution role of a function with `iam: {create: true}`: the least that it needs.

The actions are those of the function in `infra/README.md`; every resource is named, but for the
network interfaces that Lambda itself makes for a function in a VPC, and X-Ray's traces, which IAM
cannot name. The function's own code may not use the rights on network interfaces: AWS's documented
Deny (Lambda developer guide, "Giving Lambda functions access to resources in an Amazon VPC").
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from contract.secrets.reference import Scheme, SecretReference
from fdl.model import Function, Path, Storage
from fdl.plan.facts import Facts
from fdl.plan.resources import DeployTarget, Role
from fdl.plan.tags import FUNCTION_TAG, tags_of
from fdl.served import http_name
from gpu_scheduler.names import ImageArchive, archive_of

#: IAM's limit for the name of a role.
_NAME_CHARS_MAX = 64
#: The managed policy that limits made roles, unless a definition or a setting names another.
BOUNDARY_NAME = "orchgpu-functions"
INTERFACES = (
    "ec2:CreateNetworkInterface",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSubnets",
    "ec2:DeleteNetworkInterface",
    "ec2:AssignPrivateIpAddresses",
    "ec2:UnassignPrivateIpAddresses",
)
#: Denied to the function's code; Lambda itself calls without a function as source.
DENIED_TO_CODE = (*INTERFACES, "ec2:DetachNetworkInterface")
MOUNT = ("elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite")
_READS = {
    Scheme.SECRETS_MANAGER: "secretsmanager:GetSecretValue",
    Scheme.PARAMETER_STORE: "ssm:GetParameter",
}
#: The statements about entries of stores.
SECRET_SIDS = ("Secrets", "Parameters")
TRACES = ("xray:PutTraceSegments", "xray:PutTelemetryRecords")
#: The service by which a container in AWS Batch has its role.
TASKS = "ecs-tasks.amazonaws.com"
LOGS = ("logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents")

Statement = Mapping[str, object]


def role_of(function: Function, place: DeployTarget, facts: Facts | None = None) -> Role:
    """The role that a function with `create: true` runs under."""
    known = facts or Facts()
    policy = {"Version": "2012-10-17", "Statement": list(_statements(function, place, known))}
    return Role(
        name=role_name(function.name, place.region),
        policy=policy,
        path=function.iam.path,
        boundary=boundary_of(function, place, known),
        assumed_by=place.root_arn if function.on_host and not function.in_batch else "",
        service=TASKS if function.in_batch else "",
        tags=tags_of(function),
    )


def http_role(function: Function, place: DeployTarget, facts: Facts | None = None) -> Role:
    """The role of the function behind a URL: it stores inputs, and reads results and outputs."""
    known, source = facts or Facts(), function.user_input[0]
    inputs = _objects(place, [source.path])
    outputs = [storage.path for storage in function.function.output]
    results = f"{place.bucket_arn(function.intermediate.bucket)}/results/*"
    reads = [_key_of(one, known) for one in (source, *function.function.output)]
    reads.append(known.bucket_keys.get(function.intermediate.bucket, ""))
    lists = [source.path, function.intermediate, *outputs]
    statements = (
        _allow("Inputs", ("s3:GetObject", "s3:PutObject"), inputs),
        _allow("Results", ("s3:GetObject",), (results,)),
        _allow("Outputs", ("s3:GetObject", "s3:GetObjectVersion"), _objects(place, outputs)),
        _allow("Absence", ("s3:ListBucket",), _buckets(place, lists)),
        _allow(
            "Logs", LOGS, (_arn_of_log_group(place, f"/aws/lambda/{http_name(function.name)}"),)
        ),
        _allow("Decryption", ("kms:Decrypt",), [key for key in reads if key]),
        _allow("Encryption", ("kms:GenerateDataKey",), [key for key in reads[:1] if key]),
    )
    return Role(
        name=role_name(http_name(function.name), place.region),
        policy={
            "Version": "2012-10-17",
            "Statement": [one for one in statements if one["Resource"]],
        },
        path=function.iam.path,
        boundary=boundary_of(function, place, known),
        tags=tags_of(function),
    )


def boundary_of(function: Function, place: DeployTarget, facts: Facts | None = None) -> str:
    """The ARN of the policy that limits the role: without one a deployer could make any role."""
    known = facts or Facts()
    declared = function.iam.permissions_boundary
    return declared or known.boundary or place.policy_arn(BOUNDARY_NAME)


def role_name(function: str, region: str) -> str:
    """Unique for each function and region; a name too long for IAM ends with its hash."""
    name = f"{function}-{region}"
    if len(name) <= _NAME_CHARS_MAX:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: _NAME_CHARS_MAX - 9]}-{digest}"


def function_of_role(role: Role) -> str:
    """The function that a role was made for."""
    return role.tags.get(FUNCTION_TAG, role.name)


def uses_interfaces(role: Role) -> bool:
    """Whether Lambda manages network interfaces by the rights of this role."""
    statements = role.policy.get("Statement", ())
    return any(
        statement.get("Effect") == "Allow" and INTERFACES[0] in statement.get("Action", ())
        for statement in statements
    )


def _statements(function: Function, place: DeployTarget, facts: Facts) -> list[Statement]:
    declared = function.function
    reads = [s.path for s in function.user_input]
    writes = [s.path for s in declared.output]
    statements = [
        _allow("Inputs", ("s3:GetObject", "s3:GetObjectVersion"), _objects(place, reads)),
        _allow("Outputs", ("s3:PutObject", "s3:AbortMultipartUpload"), _objects(place, writes)),
        _allow("Logs", LOGS, () if function.in_batch else (_log_group(function, place),)),
    ]
    if function.queued:
        statements += _of_jobs(function, place)
    else:
        statements.append(_failures(place, function.queues[1]))
    lists = [*reads, *([function.intermediate] if function.queued else [])]
    statements.append(_allow("Absence", ("s3:ListBucket",), _buckets(place, lists)))
    if function.on_host:
        packages = place.bucket_arn(declared.deployment.bucket or place.state_bucket)
        statements.append(_allow("Package", ("s3:GetObject",), (f"{packages}/packages/*",)))
    if (archive := _image_of(function)) is not None:
        named = f"{place.bucket_arn(archive.bucket)}/{archive.key}"
        statements.append(_allow("Image", ("s3:GetObject",), (named,)))
    if declared.vpc.subnet_ids:
        statements.append(_allow("Network", INTERFACES, ("*",)))
        statements.append(_not_by_code(function, place))
    mounts = tuple(fs.arn for fs in declared.file_system)
    statements.append(_allow("Files", MOUNT, mounts))
    if declared.tracing == "Active":
        statements.append(_allow("Traces", TRACES, ("*",)))
    statements += _secrets(function, place)
    statements += _keys(function, facts)
    return [statement for statement in statements if statement["Resource"]]


def _image_of(function: Function) -> ImageArchive | None:
    """The object from which a host loads the function's image."""
    return archive_of(function.host.image) if function.host.image else None


def _of_jobs(function: Function, place: DeployTarget) -> list[Statement]:
    bucket = place.bucket_arn(function.intermediate.bucket)
    results = (f"{bucket}/results/*", f"{bucket}/attempts/*")
    staged = (f"{bucket}/staging/{function.name}/*", *results, *_lists_of_files(function, place))
    return [
        _allow("Envelopes", ("s3:GetObject",), staged),
        _allow("Results", ("s3:PutObject",), () if function.foreign else results),
        _allow("Checkpoints", ("s3:DeleteObject",), _checkpoints(function, bucket)),
        _failures(place, function.queues[2]),
    ]


def _checkpoints(function: Function, bucket: str) -> tuple[str, ...]:
    """Removed once the job has its result."""
    has = function.job is not None and function.job.checkpoint_s
    return (f"{bucket}/attempts/*/checkpoint.tar",) if has else ()


def _lists_of_files(function: Function, place: DeployTarget) -> tuple[str, ...]:
    """The objects that name the files of a step's one job."""
    if function.runs_place is None:
        return ()
    return (f"{place.bucket_arn(function.runs_place.bucket)}/runs/*/inputs/{function.name}.json",)


def _failures(place: DeployTarget, queue: str) -> Statement:
    """The right to send Lambda's failure records, which Lambda does as the function's role."""
    return _allow("Failures", ("sqs:SendMessage",), (place.queue_arn(queue),))


def _secrets(function: Function, place: DeployTarget) -> list[Statement]:
    """The right to read exactly the entries that the function names."""
    arns: dict[Scheme, list[str]] = {scheme: [] for scheme in Scheme}
    for reference in function.references:
        if reference.stored:
            arns[reference.scheme] += secret_arns(reference, place)
    named = zip(SECRET_SIDS, _READS.items(), strict=True)
    return [_allow(sid, (action,), arns[scheme]) for sid, (scheme, action) in named]


def secret_arns(reference: SecretReference, place: DeployTarget) -> list[str]:
    """The ARNs that IAM compares with those of an entry.

    An ARN of Secrets Manager ends with six random characters, which neither a name nor a partial
    ARN has; whether an ARN has them cannot be decided by its form.
    """
    name, whole = reference.entry, reference.entry.startswith("arn:")
    where = f"{place.region}:{place.account}"
    if reference.scheme is Scheme.PARAMETER_STORE:
        arn = f"arn:{place.partition}:ssm:{where}:parameter/{name.removeprefix('/')}"
        return [name if whole else arn]
    if whole:
        return [name, f"{name}-??????"]
    return [f"arn:{place.partition}:secretsmanager:{where}:secret:{name}-??????"]


def _keys(function: Function, facts: Facts) -> list[Statement]:
    """KMS: reading needs Decrypt; writing needs a data key, and Decrypt for parts of an upload."""
    inputs, outputs = function.user_input, function.function.output
    between = facts.bucket_keys.get(function.intermediate.bucket, "") if function.queued else ""
    runs = function.runs_place
    listed = facts.bucket_keys.get(runs.bucket, "") if runs is not None else ""
    written = [_key_of(storage, facts) for storage in outputs]
    if not function.foreign:
        written.append(between)
    read = [function.function.kms_key or "", between, listed, *written]
    read += [_key_of(storage, facts) for storage in inputs]
    if (archive := _image_of(function)) is not None:
        read.append(facts.bucket_keys.get(archive.bucket, ""))
    read += [facts.secret_keys.get(str(reference), "") for reference in function.references]
    return [
        _allow("Decryption", ("kms:Decrypt",), [key for key in read if key]),
        _allow("Encryption", ("kms:GenerateDataKey",), [key for key in written if key]),
    ]


def _key_of(storage: Storage, facts: Facts) -> str:
    return storage.kms_key or facts.bucket_keys.get(storage.path.bucket, "")


def _allow(sid: str, actions: Sequence[str], resources: Sequence[str]) -> Statement:
    return {
        "Sid": sid,
        "Effect": "Allow",
        "Action": list(actions),
        "Resource": list(dict.fromkeys(resources)),
    }


def _not_by_code(function: Function, place: DeployTarget) -> Statement:
    return {
        "Sid": "NetworkNotByCode",
        "Effect": "Deny",
        "Action": list(DENIED_TO_CODE),
        "Resource": ["*"],
        "Condition": {
            "ArnEquals": {"lambda:SourceFunctionArn": [place.function_arn(function.name)]}
        },
    }


def _objects(place: DeployTarget, paths: Sequence[Path]) -> list[str]:
    return [f"{place.bucket_arn(path.bucket)}/{path.key_prefix}*" for path in paths]


def _buckets(place: DeployTarget, paths: Sequence[Path]) -> list[str]:
    return [place.bucket_arn(path.bucket) for path in paths]


def _log_group(function: Function, place: DeployTarget) -> str:
    return _arn_of_log_group(place, function.log_group)


def _arn_of_log_group(place: DeployTarget, group: str) -> str:
    where = f"arn:{place.partition}:logs:{place.region}:{place.account}"
    return f"{where}:log-group:{group}:*"

"""Function → its cloud resources. Pure, and total for a document that `lint` passed."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping

from contract.timing import CAP_SLACK_S
from corekit.budget import Budget
from corekit.decode import encode
from corekit.values import Value, replace
from fdl.model import STAGED_DAYS, Function, Gpu, Job, Storage
from fdl.plan import resources as kinds
from fdl.plan.groups import STEPS_FILE
from fdl.plan.resources import QUEUE_URL, DeployTarget, Resource, digest, key_of
from fdl.plan.roles import role_name, role_of
from fdl.plan.workload import workload_of
from gpu_scheduler.model import Request

HANDLER = "lambda_functions.gpu_runner.handler.handle"
#: Role of functions on a cloud that is not AWS and whose file names none.
LOCAL_ROLE = "orchgpu-function"
#: Tag with the zip that an image function runs on a cloud that is not AWS, and that moto's bridge
#: runs for every function (moto serves no zips): s3://bucket/key.
PACKAGE_TAG = "orchgpu:package"
#: Tag with the package's hash, set after the update: without it the update was interrupted.
DEPLOYED_TAG = "orchgpu:deployed"
#: A completion message only wakes an orchestrator; the result itself is in the bucket.
COMPLETION_RETENTION_S = 86400
#: Lambda's smallest MaximumEventAgeInSeconds; an envelope older than this has lost its lease.
EVENT_AGE_S = 60
#: SCAR's key of a log group's retention.
RETENTION = "log_retention_policy_in_days"
#: Lambda takes 50 MB directly, base64 and request included; above this the zip goes through S3.
DIRECT_BYTES_MAX = 32 * 2**20


class Code(Value):
    """The built package of one function."""

    sha256: str  #: hex
    size: int  #: bytes
    contents: str = ""  #: sha256 of the user's own files in it, hex; "" = there are none


class DesiredFunction(Value):
    """All resources of one function, in the order of `resources.ORDER` without ledger."""

    name: str
    resources: tuple[Resource, ...]
    notices: tuple[str, ...] = ()  #: warnings about this deployment


def desired(function: Function, place: DeployTarget, code: Code, budget: Budget) -> DesiredFunction:
    """The resources that `function` needs at `place`."""
    lambda_function = _function(function, place, code)
    parts: list[Resource] = list(_packages(function, place, code))
    parts += [
        kinds.Bucket(name=name, versioned=name in users_buckets(function))
        for name in buckets_of(function)
    ]
    if _makes_role(function, place):
        parts.append(role_of(function, place))
    days = function.cloudwatch.get(RETENTION)
    if isinstance(days, int) and not place.local:
        parts.append(kinds.LogRetention(name=function.name, days=days))
    if function.queued:
        parts.append(_expiry(function))
        parts += _queues(function, place, budget)
        parts += [lambda_function, _invoke_config(function, place)]
    else:
        parts.append(lambda_function)
    parts += _permissions(function, place)
    parts += notifications_of(function, place)
    if function.queued:
        parts.append(_record(function, place, budget, digest(parts), code.contents))
    return DesiredFunction(
        name=function.name, resources=tuple(parts), notices=_notices(function, place)
    )


def buckets_of(function: Function) -> tuple[str, ...]:
    """Names of the buckets of input, intermediate and output, each once, in this order."""
    inputs = [storage.path.bucket for storage in function.user_input]
    between = [function.intermediate.bucket] if function.queued else []
    return tuple(dict.fromkeys([*inputs, *between, *users_buckets(function)]))


def users_buckets(function: Function) -> tuple[str, ...]:
    """Names of the buckets of input and output, each once.

    They are versioned. A bucket of envelopes and results alone is not: for 15 minutes after
    versioning is first enabled S3 may answer 404 for an object that was just written.
    """
    names = [storage.path.bucket for storage in function.user_input]
    names += [storage.path.bucket for storage in function.function.output]
    names += _event_buckets(function)[1:]
    return tuple(dict.fromkeys(names))


def runs_outside_image(function: Function, place: DeployTarget) -> bool:
    """True when an image is declared, but the script will run on this machine's own files."""
    return place.local and function.image is not None


def outputs_of(function: Function) -> list[dict[str, object]]:
    """The outputs in the form of `contract.envelope.Job.outputs`."""
    return [
        {
            "bucket": storage.path.bucket,
            "prefix": storage.path.prefix,
            "suffix": list(storage.suffixes),
            "filter": list(storage.prefixes),
        }
        for storage in function.function.output
    ]


def variables_of(function: Function) -> dict[str, str]:
    """The Lambda process's environment: the declared one and what the runner needs."""
    declared = function.function
    variables = dict(declared.variables)
    variables["ORCHGPU_MODE"] = "job" if function.queued else "plain"
    variables["ORCHGPU_TIMEOUT_THRESHOLD_S"] = str(declared.container.timeout_threshold_s)
    variables["ORCHGPU_LOG_LEVEL"] = declared.log_level
    if declared.init_script is not None:
        variables["ORCHGPU_SCRIPT"] = "script/" + declared.init_script.rsplit("/", 1)[-1]
    if function.foreign:
        variables |= _foreign_variables(function)
    elif declared.handler is not None:
        variables["ORCHGPU_HANDLER"] = declared.handler
    if function.steps:
        variables["ORCHGPU_STEPS"] = STEPS_FILE
    elif not function.queued:
        variables["ORCHGPU_OUTPUTS"] = _compact(outputs_of(function))
        variables["ORCHGPU_VARIABLES"] = _compact(dict(declared.container.variables))
    return dict(sorted(variables.items()))


def _foreign_variables(function: Function) -> dict[str, str]:
    """The user's variables, and for an image SCAR's supervisor's settings, without credentials."""
    declared = function.function
    variables = dict(declared.container.variables)
    if _is_image(function):
        staged = f"{function.intermediate.bucket}/staging/{function.name}"
        settings = {
            "name": function.name,
            "log_level": declared.log_level,
            "execution_mode": "lambda",
            "container": {"timeout_threshold": declared.container.timeout_threshold_s},
            "input": [{"storage_provider": "s3", "path": staged}],
            "output": [_scar_output(storage) for storage in declared.output],
            "storage_providers": {},
        }
        # the supervisor reads YAML, which JSON is
        variables["FDL"] = base64.b64encode(_compact(settings).encode()).decode()
    return variables


def _scar_output(storage: Storage) -> dict[str, object]:
    output: dict[str, object] = {"storage_provider": "s3", "path": str(storage.path)}
    filters = {"suffix": list(storage.suffixes), "prefix": list(storage.prefixes)}
    return output | {key: value for key, value in filters.items() if value}


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _packages(function: Function, place: DeployTarget, code: Code) -> tuple[Resource, ...]:
    state = kinds.Bucket(name=place.state_bucket, versioned=False)
    package = _stored(function, place, code)
    if not _has_package(function, place):
        return (state,)
    if package.bucket != place.state_bucket:
        return (state, kinds.Bucket(name=package.bucket, versioned=False), package)
    by_bucket = place.local or _is_image(function) or code.size > DIRECT_BYTES_MAX
    return (state, package) if by_bucket else (state,)


def _stored(function: Function, place: DeployTarget, code: Code) -> kinds.Package:
    """The location of a zip that goes through a bucket."""
    bucket = function.function.deployment.bucket or place.state_bucket
    return kinds.Package(bucket=bucket, sha256=code.sha256)


def _is_image(function: Function) -> bool:
    return function.function.runtime == "image"


def _has_package(function: Function, place: DeployTarget) -> bool:
    return place.local or not _is_image(function)


def _function(function: Function, place: DeployTarget, code: Code) -> kinds.FunctionResource:
    declared = function.function
    image = _is_image(function)
    package = code.sha256 if _has_package(function, place) else ""
    stored = _stored(function, place, code)
    by_bucket = stored.bucket != place.state_bucket or code.size > DIRECT_BYTES_MAX
    tags = {"createdby": "orchgpu"}
    if place.local and package:
        tags[PACKAGE_TAG] = f"s3://{stored.bucket}/{stored.object_key}"
    if image and package:
        tags[DEPLOYED_TAG] = code.sha256
    return kinds.FunctionResource(
        name=function.name,
        role=_role_arn(function, place),
        memory_mib=declared.memory_mib,
        timeout_s=declared.timeout_s,
        runtime="" if image else declared.runtime,
        handler=(declared.handler if function.foreign else None) or HANDLER if package else "",
        package="" if image else package,
        image=(declared.container.image or "") if image else "",
        code_at=(stored.bucket, stored.object_key) if by_bucket and not image else (),
        architectures=declared.architectures[:1] or ("x86_64",),
        description=declared.description,
        layers=() if image else declared.layers,
        variables=variables_of(function),
        subnet_ids=declared.vpc.subnet_ids,
        security_group_ids=declared.vpc.security_group_ids,
        file_systems=tuple((fs.arn, fs.local_mount_path) for fs in declared.file_system),
        tags=tags,
    )


def _expiry(function: Function) -> kinds.Expiry:
    """The lifecycle rule that deletes envelopes, which are not needed after their attempt."""
    declared = function.job.intermediate if function.job is not None else None
    return kinds.Expiry(
        bucket=function.intermediate.bucket,
        id=f"orchgpu-{function.name}-staging",
        prefix=f"staging/{function.name}/",
        days=declared.expire_days if declared is not None else STAGED_DAYS,
    )


def _makes_role(function: Function, place: DeployTarget) -> bool:
    """True for a role of ours: its own policy allows what it needs, and no other policy names it.

    AWS refuses a policy with the name of a role that was made a moment ago.
    """
    return function.iam.create and not place.local


def _role_arn(function: Function, place: DeployTarget) -> str:
    if _makes_role(function, place):
        return place.role_arn(role_name(function.name))
    return function.iam.role or place.role_arn(LOCAL_ROLE)


def _queues(function: Function, place: DeployTarget, budget: Budget) -> list[Resource]:
    jobs, dead, done = function.queues
    visibility_s = max(1, round(budget.visibility_s))
    retention_s = round((function.job or Job()).queue.retention_s)
    dead_letter = kinds.QueueResource(name=dead, retention_s=retention_s, visibility_s=visibility_s)
    job_queue = kinds.QueueResource(
        name=jobs,
        retention_s=retention_s,
        visibility_s=visibility_s,
        dead_letter_arn=place.queue_arn(dead),
        receives_max=budget.max_receive_count,
        policy=_policy(_from_s3(place, jobs, function.user_input[0].path.bucket)),
    )
    allowed = [_from_s3(place, done, *_event_buckets(function))]
    if not _makes_role(function, place):
        allowed.append(_from_role(place, done, _role_arn(function, place)))
    completion = kinds.QueueResource(
        name=done,
        retention_s=COMPLETION_RETENTION_S,
        visibility_s=visibility_s,
        policy=_policy(*allowed),
    )
    return [dead_letter, job_queue, completion]


def _policy(*statements: Mapping[str, object]) -> dict[str, object]:
    return {"Version": "2012-10-17", "Statement": list(statements)}


def _event_buckets(function: Function) -> tuple[str, ...]:
    """Buckets whose events go to the completion queue."""
    target = function.job.object if function.job is not None else None
    names = (function.intermediate.bucket, *((target.bucket,) if target is not None else ()))
    return tuple(dict.fromkeys(names))


def _from_s3(place: DeployTarget, queue: str, *buckets: str) -> dict[str, object]:
    arns = [place.bucket_arn(bucket) for bucket in buckets]
    return {
        "Sid": "events",
        "Effect": "Allow",
        "Principal": {"Service": "s3.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": place.queue_arn(queue),
        "Condition": {
            "ArnEquals": {"aws:SourceArn": arns[0] if len(arns) == 1 else arns},
            "StringEquals": {"aws:SourceAccount": place.account},
        },
    }


def _from_role(place: DeployTarget, queue: str, role: str) -> dict[str, object]:
    return {
        "Sid": "failures",
        "Effect": "Allow",
        "Principal": {"AWS": role},
        "Action": "sqs:SendMessage",
        "Resource": place.queue_arn(queue),
    }


def _invoke_config(function: Function, place: DeployTarget) -> kinds.InvokeConfig:
    return kinds.InvokeConfig(
        name=function.name,
        retries=0,
        event_age_s=EVENT_AGE_S,
        on_failure_arn=place.queue_arn(function.queues[2]),
    )


def _permissions(function: Function, place: DeployTarget) -> list[Resource]:
    sources = [function.intermediate] if function.queued else [s.path for s in function.user_input]
    return [
        kinds.Permission(
            function=function.name,
            statement="orchgpu-s3-" + bucket.replace(".", "_"),
            source_arn=place.bucket_arn(bucket),
            account=place.account,
        )
        for bucket in dict.fromkeys(path.bucket for path in sources)
    ]


def notifications_of(function: Function, place: DeployTarget) -> list[kinds.Notification]:
    """Rules with stable ids; one per suffix, because an S3 rule takes only one."""
    name = function.name
    if not function.queued:
        target = place.function_arn(name)
        return _rules(f"orchgpu-{name}-invoke", function.user_input, target)
    jobs, _, done = function.queues
    bucket = function.intermediate.bucket
    return [
        *_rules(f"orchgpu-{name}-jobs", function.user_input, place.queue_arn(jobs)),
        kinds.Notification(
            bucket=bucket,
            id=f"orchgpu-{name}-staging",
            target_arn=place.function_arn(name),
            prefix=f"staging/{name}/",
            suffix=".tar.gz" if function.job and function.job.envelope == "tar.gz" else ".zip",
        ),
        kinds.Notification(
            bucket=bucket,
            id=f"orchgpu-{name}-results",
            target_arn=place.queue_arn(done),
            prefix="results/",
            suffix=".json",
        ),
        *_object_rule(function, place.queue_arn(done)),
    ]


def _object_rule(function: Function, target: str) -> list[kinds.Notification]:
    """The rule for the object that ends a job, by the prefix and suffix around placeholders."""
    path = function.job.object if function.job is not None else None
    if path is None:
        return []
    return [
        kinds.Notification(
            bucket=path.bucket,
            id=f"orchgpu-{function.name}-object",
            target_arn=target,
            prefix=path.prefix.partition("{")[0],
            suffix=path.prefix.rpartition("}")[2],
        )
    ]


def _rules(stem: str, inputs: tuple[Storage, ...], target: str) -> list[kinds.Notification]:
    wanted = [(s.path, suffix) for s in inputs for suffix in (s.suffixes or ("",))]
    return [
        kinds.Notification(
            bucket=path.bucket,
            id=stem if n == 0 else f"{stem}-{n + 1}",
            target_arn=target,
            prefix=path.key_prefix,
            suffix=suffix,
        )
        for n, (path, suffix) in enumerate(wanted)
    ]


def _request(function: Function, budget: Budget, contents: str) -> Request:
    """The request of each job; the lease length defaults to the longest that a run can take."""
    asked = (function.gpu or Gpu()).request()
    if asked.workload is None and not function.foreign:
        asked = replace(asked, workload=workload_of(function, contents))
    if asked.lease_s is not None:
        return asked
    longest_s = budget.reserved_ttl_s + budget.connect_by_s + CAP_SLACK_S
    return replace(asked, lease_s=longest_s + function.function.timeout_s)


def _record(
    function: Function, place: DeployTarget, budget: Budget, revision: str, contents: str
) -> kinds.Record:
    assert function.job is None or len(function.user_input) == 1, "lint refuses several inputs"
    source = function.user_input[0]
    jobs, dead, done = function.queues
    gpu, job = function.gpu, function.job or Job()
    body: dict[str, object] = {
        "name": function.name,
        "queue_url": {QUEUE_URL: jobs},
        "dead_letter_url": {QUEUE_URL: dead},
        "completion_url": {QUEUE_URL: done},
        "input_bucket": source.path.bucket,
        "input_prefix": source.path.prefix,
        "input_suffixes": list(source.suffixes),
        "intermediate_bucket": function.intermediate.bucket,
        "outputs": [_output(storage) for storage in function.function.output],
        "middleware": gpu.middleware if gpu is not None else "builtin",
        "timeout_s": float(function.function.timeout_s),
        "attempts_max": job.attempts_max,
        "concurrency_max": job.concurrency_max,
        "envelope": job.envelope,
        "object_bucket": job.object.bucket if job.object is not None else "",
        "object_key": job.object.prefix if job.object is not None else "",
        "on_unavailable": gpu.on_unavailable if gpu is not None else "fail",
        "variables": dict(function.function.container.variables),
        "image": function.image,
        "request": encode(_request(function, budget, contents)),
    }
    body["revision"] = digest([revision, body])
    return kinds.Record(name=function.name, bucket=place.state_bucket, body=body)


def _output(storage: Storage) -> dict[str, object]:
    return {
        "bucket": storage.path.bucket,
        "prefix": storage.path.prefix,
        "name_prefixes": list(storage.prefixes),
        "suffixes": list(storage.suffixes),
    }


def _notices(function: Function, place: DeployTarget) -> tuple[str, ...]:
    if not runs_outside_image(function, place):
        return ()
    where = f"the script runs on this machine's files, not in {function.image}"
    return (f"{function.name}: this cloud starts no containers; {where}",)


def ledger_of(name: str, place: DeployTarget, created: Iterable[str]) -> kinds.Ledger:
    """The ledger of the resources that deploy made for a function."""
    return kinds.Ledger(name=name, bucket=place.state_bucket, created=tuple(sorted(created)))


def owned_keys(wanted: DesiredFunction, place: DeployTarget) -> tuple[str, ...]:
    """Keys a deployment may own: all but the state bucket, the record and log retention."""
    state = key_of(kinds.Bucket(name=place.state_bucket))
    owned = [r for r in wanted.resources if not isinstance(r, kinds.Record | kinds.LogRetention)]
    return tuple(key for key in map(key_of, owned) if key != state)

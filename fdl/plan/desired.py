"""Function → its cloud resources. Pure, and total for a document that `lint` passed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from contract.timing import CAP_SLACK_S
from corekit.budget import Budget
from corekit.decode import encode
from corekit.values import Value, replace
from fdl.model import BUILTIN, RETENTION_S, Function, Intermediate, Job, Storage
from fdl.notified import Notified
from fdl.plan import resources as kinds
from fdl.plan.advance import advance_s
from fdl.plan.data import data_notices, with_data
from fdl.plan.facts import Facts
from fdl.plan.functions import (
    DIRECT_BYTES_MAX,
    Code,
    asked_of,
    function_of,
    has_package,
    host_of,
    is_image,
    makes_role,
    owners_of,
    role_arn,
    stated_of,
    stored_package,
    workload_of,
)
from fdl.plan.resources import QUEUE_URL, DeployTarget, Resource, digest, key_of
from fdl.plan.roles import http_role, role_of
from fdl.plan.schedules import needs_role, schedule_role, schedules_of
from fdl.plan.served import has_url, served_by
from fdl.plan.tags import CREATOR, tags_of
from fdl.plan.uploads import (
    from_s3,
    notifications_of,
    policy_document,
    policy_of_jobs,
    via_of,
    via_resources,
)
from fdl.served import http_name
from gpu_scheduler.model import Request

#: A completion message only wakes an orchestrator; the result itself is in the bucket.
COMPLETION_RETENTION_S = 86400
#: Lambda's smallest MaximumEventAgeInSeconds; an envelope older than this has lost its lease.
EVENT_AGE_S = 60
#: Of a function without jobs: Lambda's own defaults for an asynchronous event.
DIRECT_RETRIES, DIRECT_EVENT_AGE_S = 2, 21600
#: SCAR's key of a log group's retention.
RETENTION = "log_retention_policy_in_days"
#: Parts of an upload that was cut off are deleted after this.
UPLOAD_DAYS = 7


class DesiredFunction(Value):
    """All resources of a function or workflow, in the order of `resources.ORDER` without ledger."""

    name: str
    resources: tuple[Resource, ...]
    notices: tuple[str, ...] = ()  #: warnings about this deployment

    @property
    def workflow(self) -> kinds.WorkflowRecord | None:
        """The record of a workflow; None: this is a function."""
        found = (one for one in self.resources if isinstance(one, kinds.WorkflowRecord))
        return next(found, None)


def desired(
    function: Function,
    place: DeployTarget,
    code: Code,
    budget: Budget,
    facts: Facts | None = None,
) -> DesiredFunction:
    """The resources that `function` needs at `place`."""
    known = facts or Facts()
    parts: list[Resource] = list(_packages(function, place, code))
    parts += [_bucket(name, function, place) for name in buckets_of(function)]
    if makes_role(function, place):
        parts.append(role_of(function, place, known))
    days = function.cloudwatch.get(RETENTION)
    if isinstance(days, int) and not place.local:
        if function.log_group != function.host.log_group:
            parts.append(_log_retention(function, days))
        if has_url(function):
            parts.append(
                kinds.LogRetention(name=http_name(function.name), days=days, tags=tags_of(function))
            )
    parts += _upload_expiries(function)
    if function.queued:
        parts += _expiries(function)
        parts += _queues(function, place, budget, known)
    else:
        parts += _dead_letters(function, place, budget, known)
    if function.in_lambda:
        parts += [function_of(function, place, code, known), _invoke_config(function, place)]
        parts += _permissions(function, place)
    parts += notifications_of(function, place)
    if function.queued:
        parts.append(_record(function, place, budget, digest(parts), code, known))
    parts += schedules_of(function, place, known)
    parts += served_by(function, place, code, known, results_days(function))
    return DesiredFunction(
        name=function.name,
        resources=tuple(part for part in parts if part.kind not in place.lacks),
        notices=(*_notices(function, place), *data_notices(function, known)),
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


def _bucket(name: str, function: Function, place: DeployTarget) -> kinds.Bucket:
    sources = [*_event_buckets(function), *(s.path.bucket for s in function.user_input)]
    return kinds.Bucket(
        name=name,
        versioned=name in users_buckets(function) and "versioning" not in place.lacks,
        owner=owners_of(function).get(name, ""),
        region=place.region if name in sources else "",
        tags=tags_of(function),
    )


def _log_retention(function: Function, days: int) -> kinds.LogRetention:
    group = function.function.logging.group or ""
    return kinds.LogRetention(
        name=function.name, days=days, group_name=group, tags=tags_of(function)
    )


def runs_outside_image(function: Function, place: DeployTarget) -> bool:
    """True when an image is declared, but the script will run on this machine's own files."""
    return place.local and function.image is not None


def _packages(function: Function, place: DeployTarget, code: Code) -> tuple[Resource, ...]:
    state = kinds.Bucket(
        name=place.state_bucket, versioned=False, region=place.region, tags=CREATOR
    )
    package = stored_package(function, place, code)
    if not has_package(function, place) and not has_url(function):
        return (state,)
    if package.bucket != place.state_bucket:
        named = kinds.Bucket(
            name=package.bucket, versioned=False, region=place.region, tags=CREATOR
        )
        return (state, named, package)
    by_bucket = place.local or is_image(function) or code.size > DIRECT_BYTES_MAX
    return (state, package) if by_bucket or function.on_host else (state,)


def _expiries(function: Function) -> list[Resource]:
    """The lifecycle rules that delete envelopes after their attempt, and old results."""
    ages = (
        ("staging", f"staging/{function.name}/", _between(function).expire_days),
        ("results", "results/", results_days(function)),
        ("attempts", "attempts/", results_days(function)),
    )
    return [
        kinds.Expiry(
            bucket=function.intermediate.bucket,
            id=f"orchgpu-{function.name}-{word}",
            prefix=prefix,
            days=age_days,
        )
        for word, prefix, age_days in ages
    ]


def _between(function: Function) -> Intermediate:
    declared = function.job.intermediate if function.job is not None else None
    return declared or Intermediate(path=function.intermediate)


def results_days(function: Function) -> int:
    """The days for which results and reports are kept."""
    return _between(function).results_days


def _upload_expiries(function: Function) -> list[Resource]:
    """The lifecycle rules that delete the parts of outputs whose upload was cut off."""
    paths = [storage.path for storage in function.function.output if storage.owner is None]
    stem = f"orchgpu-{function.name}-uploads"
    return [
        kinds.Expiry(
            bucket=path.bucket,
            id=stem if number == 1 else f"{stem}-{number}",
            prefix=path.key_prefix,
            uploads_days=UPLOAD_DAYS,
        )
        for number, path in enumerate(dict.fromkeys(paths), start=1)
    ]


def _queues(
    function: Function, place: DeployTarget, budget: Budget, facts: Facts
) -> list[Resource]:
    jobs, dead, done = function.queues
    tags = tags_of(function)
    visibility_s = max(1, round(budget.visibility_s))
    retention_s = round((function.job or Job()).queue.retention_s)
    dead_letter = kinds.QueueResource(
        name=dead, retention_s=retention_s, visibility_s=visibility_s, tags=tags
    )
    job_queue = kinds.QueueResource(
        name=jobs,
        retention_s=retention_s,
        visibility_s=visibility_s,
        dead_letter_arn=place.queue_arn(dead),
        receives_max=budget.max_receive_count,
        policy=policy_of_jobs(function, place, jobs),
        tags=tags,
    )
    allowed = [from_s3(function, place, done, *_event_buckets(function))]
    if not makes_role(function, place):
        allowed.append(_from_role(place, done, role_arn(function, place, facts)))
    completion = kinds.QueueResource(
        name=done,
        retention_s=COMPLETION_RETENTION_S,
        visibility_s=visibility_s,
        policy=policy_document(*allowed),
        tags=tags,
    )
    return [dead_letter, job_queue, completion, *via_resources(function, place)]


def _dead_letters(
    function: Function, place: DeployTarget, budget: Budget, facts: Facts
) -> list[Resource]:
    """The queue of events that a function without jobs could not run."""
    name = function.queues[1]
    allowed: list[Mapping[str, object]] = []
    if not makes_role(function, place):
        allowed.append(_from_role(place, name, role_arn(function, place, facts)))
    queue = kinds.QueueResource(
        name=name,
        retention_s=round(RETENTION_S),
        visibility_s=max(1, round(budget.visibility_s)),
        policy=policy_document(*allowed) if allowed else {},
        tags=tags_of(function),
    )
    return [queue]


def _event_buckets(function: Function) -> tuple[str, ...]:
    """Buckets whose events go to the completion queue."""
    target = function.job.object if function.job is not None else None
    names = (function.intermediate.bucket, *((target.bucket,) if target is not None else ()))
    return tuple(dict.fromkeys(names))


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
        retries=0 if function.queued else DIRECT_RETRIES,
        event_age_s=EVENT_AGE_S if function.queued else DIRECT_EVENT_AGE_S,
        on_failure_arn=place.queue_arn(function.queues[2 if function.queued else 1]),
    )


def _permissions(function: Function, place: DeployTarget) -> list[Resource]:
    sources = [function.intermediate] if function.queued else [s.path for s in function.user_input]
    return [
        kinds.Permission(
            function=function.name,
            statement="orchgpu-s3-" + bucket.replace(".", "_"),
            source_arn=place.bucket_arn(bucket),
            account=owners_of(function).get(bucket) or place.account,
        )
        for bucket in dict.fromkeys(path.bucket for path in sources)
    ]


def _request(function: Function, budget: Budget, contents: str, facts: Facts) -> Request:
    """The request of each job; the lease length defaults to the longest that a run can take."""
    asked = asked_of(function)
    asked = with_data(asked, function, facts) if function.data else asked
    if asked.workload is None and not function.foreign:
        asked = replace(asked, workload=workload_of(function, contents))
    if asked.lease_s is not None or function.gpu is None:
        return asked
    longest_s = budget.reserved_ttl_s + budget.connect_by_s + CAP_SLACK_S
    return replace(asked, lease_s=longest_s + function.function.timeout_s)


def _record(
    function: Function,
    place: DeployTarget,
    budget: Budget,
    revision: str,
    code: Code,
    facts: Facts,
) -> kinds.Record:
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
        "middleware": gpu.middleware if gpu is not None else BUILTIN,
        "timeout_s": float(function.function.timeout_s),
        "attempts_max": job.attempts_max,
        "concurrency_max": _in_hand_max(function),
        "envelope": job.envelope,
        "start": job.start or ("event" if function.foreign else "invoke"),
        **({"advance_s": float(ahead_s)} if (ahead_s := advance_s(function)) else {}),
        "object_bucket": job.object.bucket if job.object is not None else "",
        "object_key": job.object.prefix if job.object is not None else "",
        "on_unavailable": gpu.on_unavailable if gpu is not None else "fail",
        "variables": dict(function.function.container.variables),
        "image": function.image,
        "owners": {
            name: owners_of(function).get(name) or place.account for name in buckets_of(function)
        },
        "request": encode(_request(function, budget, code.contents, facts)),
        "package_sha256": code.sha256 if has_package(function, place) else "",
        "memory_mib": function.function.memory_mib,
        **stated_of(function),
        **host_of(function, place, code, facts),
        # no search for uploads without a job: those of a step are jobs of its run alone
        **({"deployed_at_s": 0.0} if function.workflow else {}),
        **notify_of(function.notify),
    }
    body["revision"] = digest([revision, body])
    return kinds.Record(name=function.name, bucket=place.state_bucket, body=body)


def notify_of(notified: Sequence[Notified]) -> dict[str, object]:
    """Part of a record; empty without a target."""
    return {"notify": [one.record for one in notified]} if notified else {}


def _in_hand_max(function: Function) -> int | None:
    """The limit of jobs; without a device no more than Lambda runs at once."""
    declared = None if function.job is None else function.job.concurrency_max
    if function.gpu is not None or declared is not None:
        return declared
    return function.function.reserved_concurrency


def _output(storage: Storage) -> dict[str, object]:
    return {
        "bucket": storage.path.bucket,
        "prefix": storage.path.prefix,
        "name_prefixes": list(storage.prefixes),
        "suffixes": list(storage.suffixes),
    }


def further_roles(
    function: Function, place: DeployTarget, facts: Facts | None = None
) -> list[kinds.Role]:
    """The roles on AWS beside the function's own, in deploys with and without roles to make."""
    made = [schedule_role(function, place, facts)] if needs_role(function) else []
    return [*made, http_role(function, place, facts)] if has_url(function) else made


def _notices(function: Function, place: DeployTarget) -> tuple[str, ...]:
    found = []
    if place.local and has_url(function):
        where = f"`orchgpu web` serves /v1/functions/{function.name}/jobs"
        found.append(f"{function.name}: its URL is made on AWS alone; here {where}")
    if function.service is not None:
        has = f"its container has ORCHGPU_STATE_BUCKET={place.state_bucket}"
        found.append(f"{function.name}: {function.service.url} runs it; {has}")
    if runs_outside_image(function, place):
        where = f"the script runs on this machine's files, not in {function.image}"
        found.append(f"{function.name}: this cloud starts no containers; {where}")
    if function.user_input and via_of(function, place) != function.user_input[0].via:
        service = {"sns": "SNS"}.get(function.user_input[0].via, "EventBridge")
        text = f"{service} is used on AWS alone: here S3 itself sends the events of uploads"
        found.append(f"{function.name}: {text}")
    if not function.queued and function.user_input:
        found.append(
            f"{function.name}: its objects become no jobs: Lambda tries an event three times"
            f" within six hours, and then moves it to {function.queues[1]}; there is no list of"
            " them, no result, no cancel, and no search for lost events"
        )
    if function.gpu is not None and function.gpu.warm_min:
        loads = ", ".join(function.gpu.warm_loads) or "what the last job on the same host loaded"
        text = f"hosts keep at least {function.gpu.warm_min} of its workers loaded ({loads})"
        found.append(
            f"{function.name}: {text}, while an orchestrator serves it; see `orchgpu gpus`"
        )
    return tuple(found)


def ledger_of(
    name: str, place: DeployTarget, created: Iterable[str], owners: Mapping[str, str]
) -> kinds.Ledger:
    """The ledger of the resources that deploy made for a function."""
    return kinds.Ledger(
        name=name, bucket=place.state_bucket, created=tuple(sorted(created)), owners=owners
    )


def foreign_owners(wanted: DesiredFunction) -> dict[str, str]:
    """The accounts of a function's buckets in other accounts."""
    buckets = [r for r in wanted.resources if isinstance(r, kinds.Bucket)]
    return {bucket.name: bucket.owner for bucket in buckets if bucket.owner}


def owned_keys(wanted: DesiredFunction, place: DeployTarget) -> tuple[str, ...]:
    """Keys a deployment may own: all but the state bucket, a function's record, log retention."""
    state = key_of(kinds.Bucket(name=place.state_bucket))
    never = (kinds.Record.kind, kinds.LogRetention.kind)
    owned = [resource for resource in wanted.resources if resource.kind not in never]
    return tuple(key for key in map(key_of, owned) if key != state)

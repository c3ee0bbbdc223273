"""Ways of a new object from an input to its function: rules, topics, policies of queues. Pure.

S3 sends the event to the queue of jobs itself, by default; with `via:` a rule of EventBridge does,
or a topic of SNS. The orchestrator reads all three forms of the event.
"""

from __future__ import annotations

from collections.abc import Mapping

from corekit.values import replace
from fdl.model import Function, Storage
from fdl.plan import resources as kinds
from fdl.plan.functions import owners_of
from fdl.plan.resources import EVENT_BRIDGE, DeployTarget, Resource

#: EventBridge's limit of a rule's name.
RULE_CHARACTERS_MAX = 64


def via_of(function: Function, place: DeployTarget) -> str:
    """The way of its uploads' events at this place; of a workflow's step S3's own."""
    (source, *_) = function.user_input
    return "s3" if place.local or function.workflow else source.via


def via_resources(function: Function, place: DeployTarget) -> list[Resource]:
    """The topic, or the rule of EventBridge, between the input and the queue of jobs."""
    queue, source = function.queues[0], function.user_input[0]
    match via_of(function, place):
        case "sns":
            allowed = _from_bucket(function, place, source.path.bucket)
            arn = place.topic_arn(queue)
            statement = {**allowed, "Action": "sns:Publish", "Resource": arn}
            return [kinds.Topic(name=queue, queue=queue, policy=policy_document(statement))]
        case "eventbridge":
            return [kinds.EventRule(name=queue, queue=queue, pattern=_pattern(source))]
    return []


def _pattern(source: Storage) -> dict[str, object]:
    """The events of EventBridge about new objects of an input."""
    before = source.path.key_prefix
    keys = [_key_pattern(before, suffix) for suffix in source.suffixes or ("",)]
    detail: dict[str, object] = {"bucket": {"name": [source.path.bucket]}}
    if before or source.suffixes:
        detail["object"] = {"key": keys}
    return {"source": ["aws.s3"], "detail-type": ["Object Created"], "detail": detail}


def _key_pattern(prefix: str, suffix: str) -> dict[str, str]:
    if not suffix:
        return {"prefix": prefix}
    if not prefix:
        return {"suffix": suffix}
    escaped = (text.replace("\\", "\\\\").replace("*", "\\*") for text in (prefix, suffix))
    return {"wildcard": "*".join(escaped)}


def policy_of_jobs(function: Function, place: DeployTarget, queue: str) -> dict[str, object]:
    """Uploads become jobs; jobs of a step are sent by the orchestrator, by its own rights.

    S3 itself stays admitted beside another way: it checks all rules of a bucket at each write of
    one, also that which names the queue until the way has changed.
    """
    if function.workflow:
        return {}
    own = from_s3(function, place, queue, function.user_input[0].path.bucket)
    match via_of(function, place):
        case "sns":
            service, arn = "sns.amazonaws.com", place.topic_arn(queue)
        case "eventbridge":
            service, arn = "events.amazonaws.com", place.rule_arn(queue)
        case _:
            return policy_document(own)
    statement = {
        "Sid": "events",
        "Effect": "Allow",
        "Principal": {"Service": service},
        "Action": "sqs:SendMessage",
        "Resource": place.queue_arn(queue),
        "Condition": {"ArnEquals": {"aws:SourceArn": arn}},
    }
    return policy_document(statement, {**own, "Sid": "s3"})


def policy_document(*statements: Mapping[str, object]) -> dict[str, object]:
    return {"Version": "2012-10-17", "Statement": list(statements)}


def from_s3(
    function: Function, place: DeployTarget, queue: str, *buckets: str
) -> dict[str, object]:
    """The statement by which these buckets' events reach a queue."""
    statement = _from_bucket(function, place, *buckets)
    return {**statement, "Action": "sqs:SendMessage", "Resource": place.queue_arn(queue)}


def _from_bucket(function: Function, place: DeployTarget, *buckets: str) -> dict[str, object]:
    arns = [place.bucket_arn(bucket) for bucket in buckets]
    owners = owners_of(function)
    accounts = list(dict.fromkeys(owners.get(bucket) or place.account for bucket in buckets))
    return {
        "Sid": "events",
        "Effect": "Allow",
        "Principal": {"Service": "s3.amazonaws.com"},
        "Condition": {
            "ArnEquals": {"aws:SourceArn": arns[0] if len(arns) == 1 else arns},
            "StringEquals": {"aws:SourceAccount": accounts[0] if len(accounts) == 1 else accounts},
        },
    }


def notifications_of(function: Function, place: DeployTarget) -> list[kinds.Notification]:
    """Rules with stable ids. Files reach a step of a workflow by the orchestrator instead."""
    name = function.name
    if not function.queued:
        target = place.function_arn(name)
        return notification_rules(f"orchgpu-{name}-invoke", function.user_input, target)
    done = function.queues[2]
    target, bucket = place.queue_arn(done), function.intermediate.bucket

    def ours(word: str, prefix: str, suffix: str = ".json") -> kinds.Notification:
        """A rule of the intermediate bucket, for the completion queue."""
        return kinds.Notification(
            bucket=bucket,
            id=f"orchgpu-{name}-{word}",
            target_arn=place.function_arn(name) if word == "staging" else target,
            prefix=prefix,
            suffix=suffix,
        )

    form = ".tar.gz" if function.job and function.job.envelope == "tar.gz" else ".zip"
    rules = [] if function.workflow else _rules_of_uploads(function, place)
    rules += [ours("staging", f"staging/{name}/", form)] if function.in_lambda else []
    rules.append(ours("results", "results/"))
    if function.gpu is None and not function.foreign:
        # claims and reports of attempts without a device, which no session reports
        rules.append(ours("attempts", "attempts/"))
    ends = function.job.object if function.job is not None else None
    if ends is not None:
        # the object that ends a job, by the prefix and suffix around its placeholders
        before, after = ends.prefix.partition("{")[0], ends.prefix.rpartition("}")[2]
        rules.append(replace(ours("object", before, after), bucket=ends.bucket))
    return rules


def _rules_of_uploads(function: Function, place: DeployTarget) -> list[kinds.Notification]:
    queue, via = function.queues[0], via_of(function, place)
    if via == "eventbridge":
        bucket = function.user_input[0].path.bucket
        return [kinds.Notification(bucket=bucket, id=EVENT_BRIDGE, target_arn="", events=())]
    target = place.topic_arn(queue) if via == "sns" else place.queue_arn(queue)
    return notification_rules(f"orchgpu-{function.name}-jobs", function.user_input, target)


def notification_rules(
    stem: str, inputs: tuple[Storage, ...], target: str
) -> list[kinds.Notification]:
    """Rules about new objects of inputs, one for each suffix: an S3 rule takes only one."""
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

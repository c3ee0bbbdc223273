"""KMS keys of buckets and queues: usable, and by everything that reads and writes. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from fdl.plan.desired import buckets_of
from orchgpu.inspection.model import (
    Call,
    Finding,
    Reason,
    Refusal,
    Steps,
    Subject,
    attempted,
    good,
    unknown,
    wrong,
)
from orchgpu.inspection.simulation import simulated
from orchgpu.permissions.model import Statement

_ACTIONS = ("kms:Decrypt", "kms:GenerateDataKey")
#: Its policy cannot be changed, so S3 can never send to the queue.
_SQS_KEY = "alias/aws/sqs"


class Encryption:
    """Keys of customers; AWS's own and S3's need nothing."""

    title = "encryption keys"

    def examine(self, subject: Subject) -> Steps[list[Finding]]:
        findings: list[Finding] = []
        keys: dict[str, str] = {}
        for inspected in subject.functions:
            for bucket in buckets_of(inspected.function):
                findings += yield from _of_bucket(bucket, keys)
            for queue in inspected.function.queues if inspected.deployed else ():
                findings += yield from _of_queue(queue, keys)
        for key, where in keys.items():
            findings += yield from _usable(subject, key, where)
        return findings or [good("buckets and queues", "none has a KMS key of its own")]


def _of_bucket(bucket: str, keys: dict[str, str]) -> Steps[list[Finding]]:
    call = Call(service="s3", operation="GetBucketEncryption", arguments={"Bucket": bucket})
    answer = yield from attempted(call)
    where = f"bucket {bucket}"
    if isinstance(answer, Refusal):
        return [] if answer.reason is Reason.ABSENT else [unknown(answer, where)]
    rules = answer["ServerSideEncryptionConfiguration"]["Rules"]
    for rule in rules:
        default = rule.get("ApplyServerSideEncryptionByDefault", {})
        key = default.get("KMSMasterKeyID")
        if str(default.get("SSEAlgorithm", "")).startswith("aws:kms") and key:
            keys.setdefault(str(key), where)
    return []


def _of_queue(queue: str, keys: dict[str, str]) -> Steps[list[Finding]]:
    where = f"queue {queue}"
    attributes = yield from attempted(_url(queue))
    if not isinstance(attributes, Refusal):
        arguments = {
            "QueueUrl": attributes["QueueUrl"],
            "AttributeNames": ["KmsMasterKeyId"],
        }
        attributes = yield from attempted(
            Call(service="sqs", operation="GetQueueAttributes", arguments=arguments)
        )
    if isinstance(attributes, Refusal):
        return [] if attributes.reason is Reason.ABSENT else [unknown(attributes, where)]
    found: Mapping[str, object] = attributes.get("Attributes", {})
    key = str(found.get("KmsMasterKeyId", ""))
    if key == _SQS_KEY:
        remedy = "use SSE-SQS, or a key of yours whose policy allows s3.amazonaws.com"
        return [wrong(where, f"S3 cannot send to a queue encrypted with {key}", remedy)]
    if key:
        keys.setdefault(key, where)
    return []


def _url(queue: str) -> Call:
    return Call(service="sqs", operation="GetQueueUrl", arguments={"QueueName": queue})


def _usable(subject: Subject, key: str, where: str) -> Steps[list[Finding]]:
    answer = yield from attempted(
        Call(service="kms", operation="DescribeKey", arguments={"KeyId": key})
    )
    if isinstance(answer, Refusal):
        if answer.reason is Reason.ABSENT:
            return [wrong(where, f"its key {key} does not exist", "choose another key")]
        return [unknown(answer, where)]
    data = answer["KeyMetadata"]
    if data.get("KeyState", "Enabled") != "Enabled":
        message = f"its key {key} is {data['KeyState']}"
        return [wrong(where, message, f"aws kms enable-key --key-id {data['KeyId']}")]
    if data.get("KeyManager") == "AWS":
        return [good(where, f"{key} is AWS's own and enabled")]
    findings = [good(where, f"{key} is enabled")]
    statement = Statement(sid="Keys", actions=_ACTIONS, resources=(str(data["Arn"]),))
    for name, role in _roles(subject):
        remedy = f"allow {' and '.join(_ACTIONS)} on {data['Arn']} in that role, and in the key"
        findings += yield from simulated(f"{where}, {name}", role, [statement], remedy)
    return findings


def _roles(subject: Subject) -> list[tuple[str, str]]:
    named = [(f"function {f.name}", f.role) for f in subject.functions if f.role]
    if subject.orchestrator_role:
        named.append(("orchestrator", subject.orchestrator_role))
    return [
        (name, role if role.startswith("arn:") else subject.place.role_arn(role))
        for name, role in dict(named).items()
    ]


CHECK = Encryption()

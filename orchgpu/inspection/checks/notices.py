"""Targets of `notify:`: queues, topics and signing secrets exist, webhooks are encrypted. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from corekit.errors import AppError, ErrorCode
from fdl.notified import Notified
from orchgpu.inspection.checks.secrets import described
from orchgpu.inspection.model import (
    Check,
    Finding,
    Read,
    ReadCall,
    Subject,
    good,
    refused,
    unknown,
    warning,
    wrong,
)


def _notices(subject: Subject, read: Read) -> Iterator[Finding]:
    """The rights of the orchestrator on them are simulated with its other ones."""
    functions = [inspected.function for inspected in subject.functions]
    for target in dict.fromkeys(one for f in functions for one in (*f.notify, *f.run_notify)):
        yield from _target(subject, target, read)


def _target(subject: Subject, target: Notified, read: Read) -> Iterator[Finding]:
    if target.queue:
        arguments = {"QueueName": target.queue}
        call = ReadCall(service="sqs", operation="GetQueueUrl", arguments=arguments)
        remedy = f"aws sqs create-queue --queue-name {target.queue}"
        yield _existence(f"notify, queue {target.queue}", call, remedy, read)
    elif target.topic:
        arguments = {"TopicArn": target.topic}
        call = ReadCall(service="sns", operation="GetTopicAttributes", arguments=arguments)
        remedy = f"aws sns create-topic --name {target.topic.rpartition(':')[2]}"
        yield _existence(f"notify, {target.topic}", call, remedy, read)
    else:
        yield from _webhook(subject, target, read)


def _existence(where: str, call: ReadCall, remedy: str, read: Read) -> Finding:
    try:
        read(call)
    except AppError as error:
        if error.code is not ErrorCode.NOT_FOUND:
            return refused(error, where)
        return wrong(where, "does not exist, and deploy does not make it", remedy)
    return good(where, "exists")


def _webhook(subject: Subject, target: Notified, read: Read) -> Iterator[Finding]:
    """The path of a webhook may hold a secret of its receiver, so it is not shown."""
    where = f"notify, {'/'.join(target.webhook.split('/', 3)[:3])}"
    if target.webhook.startswith("https://"):
        yield good(where, "is encrypted on its way")
    else:
        yield warning(where, "http is not encrypted on its way", "write https")
    secret = target.secret
    if secret is None:
        return
    where = f"{where}, {secret}"
    if not secret.stored:
        yield unknown(where, "is a file of the orchestrators' machines", "check that it is there")
        return
    entry = described(where, secret, subject.place, read)
    yield entry if isinstance(entry, Finding) else good(where, "exists")


CHECK = Check(title="notices", examine=_notices)

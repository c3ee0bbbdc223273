"""Errors of `notify:`: ends that there are not, and queues that have other readers."""

from __future__ import annotations

from collections.abc import Iterator

from fdl.diagnostics import Finding, Severity
from fdl.model import Document, Function
from fdl.notified import Notified
from fdl.plan.workflows import queues_of

_E, _W = Severity.ERROR, Severity.WARNING


def notify_findings(document: Document, functions: tuple[Function, ...]) -> Iterator[Finding]:
    """`functions`: those that a deploy makes; a group is one."""
    ours = {queue for function in functions for queue in function.queue_names}
    ours |= {queue for workflow in document.workflows for queue in queues_of(workflow.name)}
    for function in document.functions.aws:
        path = f"{function.path}.notify"
        if function.notify and not function.queued:
            yield _E, path, "only jobs have ends, and this function has no jobs"
        yield from _targets(path, function.notify, ours)
    for workflow in document.workflows:
        yield from _targets(f"{workflow.path}.notify", workflow.notify, ours)


def _targets(path: str, listed: tuple[Notified, ...], ours: set[str]) -> Iterator[Finding]:
    for at, one in enumerate(listed):
        if _place(one) in map(_place, listed[:at]):
            yield _E, f"{path}[{at}]", "is listed twice; keep one"
        if one.queue in ours:
            message = f"{one.queue} is a queue of this file, which the orchestrator reads itself"
            yield _E, f"{path}[{at}].queue", message
        if one.webhook.startswith("http://"):
            message = "http is not encrypted on its way; write https"
            yield _W, f"{path}[{at}].webhook", message


def _place(one: Notified) -> tuple[str, str, str]:
    return one.queue, one.topic, one.webhook

"""Warnings about requests of a definition that no known device could ever hold."""

from __future__ import annotations

from collections.abc import Sequence

from corekit.errors import AppError
from fdl.diagnostics import Diagnostic, Severity
from fdl.model import Document, Function
from fdl.plan.groups import deployed
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import RefusalKind
from gpu_scheduler.protocol.answers import ExplainAnswer
from orchgpu.cli.scheduler import NO_ANSWER, ask, scheduler_or_none


def capacity_notes(document: Document, scheduler: str | None) -> tuple[Diagnostic, ...]:
    """A warning for each function, or group, whose request no known device could hold.

    Without `scheduler` the configured one is asked, if there is one. A refusal by the scheduler (it
    requires a key, for example) becomes a warning. Raises UNAVAILABLE when `scheduler` was given
    and does not answer.
    """
    with_device = [f for f in deployed(document) if f.gpu is not None]
    address = scheduler_or_none(scheduler) if with_device else None
    if address is None:
        return ()
    try:
        refused = _refused(with_device, address)
    except AppError as error:
        if error.code in NO_ANSWER:
            if scheduler is not None:
                raise
            return ()
        text = f"the scheduler {address} did not check this request: {error.message}"
        return (_note(document, with_device[0], text),)
    return tuple(
        _note(document, function, f"no known device could do this: {sentence}")
        for function, sentence in refused
    )


def _refused(functions: Sequence[Function], address: str) -> list[tuple[Function, str]]:
    """The permanently infeasible functions, each with the scheduler's own sentence."""

    async def explained(client: SchedulerClient) -> list[ExplainAnswer]:
        requests = [function.gpu.request() for function in functions if function.gpu is not None]
        return [await client.explain(request=request) for request in requests]

    answers = ask(address, explained)
    return [
        (function, answer.explanation.sentence)
        for function, answer in zip(functions, answers, strict=True)
        if answer.outcome.value == RefusalKind.IMPOSSIBLE.value
    ]


def _note(document: Document, function: Function, message: str) -> Diagnostic:
    path = f"{function.path}.gpu"
    return Diagnostic(
        severity=Severity.WARNING, path=path, at=document.location(path), message=message
    )

"""Asks the scheduler whether any known device could ever do what a definition wants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corekit.errors import AppError, ErrorCode
from fdl.lint.diagnostics import Diagnostic, Severity
from fdl.model import Document, Function
from fdl.plan.groups import deployed
from gpu_scheduler.model import RefusalKind
from orchgpu.cli.scheduler import ask, scheduler_or_none

if TYPE_CHECKING:
    from gpu_scheduler.client import SchedulerClient
    from gpu_scheduler.protocol.answers import ExplainAnswer

#: What says that nobody is there to ask; of anything else a warning tells.
_ABSENT = (ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT)


def capacity_notes(document: Document, scheduler: str | None) -> tuple[Diagnostic, ...]:
    """A warning for each function, or group, whose request no known device could hold.

    Without `scheduler` the one that is known anyway is asked, and none is no error. One that
    answers something else (it wants a key, say) stops nobody: a warning says so. Raises UNAVAILABLE
    when `scheduler` was given and does not answer.
    """
    lending = [f for f in deployed(document) if f.gpu is not None]
    address = scheduler_or_none(scheduler) if lending else None
    if address is None:
        return ()
    try:
        refused = _refused(lending, address)
    except AppError as error:
        if error.code in _ABSENT:
            if scheduler is not None:
                raise
            return ()
        said = (
            f"the scheduler {address} was asked whether any device could do this: {error.message}"
        )
        return (_note(document, lending[0], said),)
    return tuple(
        _note(document, function, f"no known device could do this: {sentence}")
        for function, sentence in refused
    )


def _refused(functions: Sequence[Function], address: str) -> list[tuple[Function, str]]:
    """The functions that would be refused for ever, each with the scheduler's own sentence."""

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

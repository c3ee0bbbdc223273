"""Findings about requests of a definition by a scheduler: what no known device could ever hold, no
host run, and waits that its parameters shorten."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from corekit.errors import AppError
from fdl.diagnostics import Diagnostic, Severity
from fdl.model import Document, Function
from fdl.plan.advance import asked_advance_s, why_not_ahead
from fdl.plan.functions import asked_of, request_on_host
from fdl.plan.groups import deployed
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import Request
from gpu_scheduler.parameters import Parameters
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import Outcome
from gpu_scheduler.verdicts import Explanation, NoFit
from orchgpu.cloud_services import Address
from orchgpu.core.job import cpu_fallback
from orchgpu.jobs.scheduler import DEFAULT_CLOUD, NO_ANSWER, ask, scheduler_address


def capacity_notes(
    document: Document,
    scheduler: str | None,
    cloud: Address = DEFAULT_CLOUD,
    *,
    elsewhere: bool = False,
) -> tuple[Diagnostic, ...]:
    """An error for each function, or group, whose request no known device could ever hold, and a
    warning for each `advance` that is longer than the scheduler allows.

    A request that falls back to a CPU gets a warning. So does the first one when they were not
    checked: no scheduler is known, the configured one does not answer, or it refuses to (it
    requires a key, for example). Raises UNAVAILABLE when `scheduler` was given and does not answer,
    unless `elsewhere`: it is an address that functions reach, and this machine need not.
    """
    with_device = [function for function in deployed(document) if function.gpu is not None]
    if not with_device:
        return ()
    try:
        address = scheduler_address(scheduler, cloud)
        explained, parameters = ask(address, lambda client: _asked(client, with_device))
    except AppError as error:
        if error.code in NO_ANSWER and scheduler is not None and not elsewhere:
            raise
        text = f"not checked whether a device can hold this request: {error.message}"
        return (_note(document, with_device[0], Severity.WARNING, text),)
    infeasible = (
        note
        for function, answers in zip(with_device, explained, strict=True)
        for note in (
            *_infeasible(document, function, answers),
            *_in_lambda(document, function, answers),
        )
    )
    return (*infeasible, *_cut_waits(document, with_device, parameters))


async def _asked(
    client: SchedulerClient, functions: list[Function]
) -> tuple[list[list[Explanation | None]], Parameters]:
    found = await client.ask(ops.ParametersOf())
    return await _explained(client, functions), found.parameters


def _cut_waits(
    document: Document, functions: Iterable[Function], parameters: Parameters
) -> Iterator[Diagnostic]:
    """A warning for each wait ahead of a device that the scheduler shortens."""
    most_s = parameters.advance_s_max
    for function in functions:
        asked_s = asked_advance_s(function)
        if asked_s is not None and asked_s > most_s and not why_not_ahead(function):
            text = f"the scheduler lets functions wait for {most_s:g} s at most: `ssgm set"
            text += f" advance_s_max {asked_s:g}`, or ask for less"
            path = f"{function.path}.job.advance"
            where = document.location(path)
            yield Diagnostic(severity=Severity.WARNING, path=path, at=where, message=text)


async def _explained(
    client: SchedulerClient, functions: list[Function]
) -> list[list[Explanation | None]]:
    found: list[list[Explanation | None]] = []
    for function in functions:
        answers = [await client.explain(request=request) for request in _requests(function)]
        found.append(
            [one.explanation if one.outcome is Outcome.IMPOSSIBLE else None for one in answers]
        )
    return found


def _requests(function: Function) -> tuple[Request, ...]:
    """Its request; that of its fallback to a CPU; that of an attempt of `auto` on a host."""
    assert function.gpu is not None, "only functions with a device are checked"
    request = asked_of(function)
    fallback = (cpu_fallback(request),) if function.gpu.on_unavailable == "cpu" else ()
    on_host = (request_on_host(function),) if function.execution == "auto" else ()
    return request, *fallback, *on_host


def _in_lambda(
    document: Document, function: Function, answers: list[Explanation | None]
) -> Iterator[Diagnostic]:
    """A warning for a function of `auto` that no known host could run."""
    if function.execution == "auto" and answers[0] is None and answers[-1] is not None:
        text = f"all its jobs run in Lambda: no known host could run it: {answers[-1].sentence}"
        yield _note(document, function, Severity.WARNING, text, of="execution")


def _infeasible(
    document: Document, function: Function, answers: list[Explanation | None]
) -> Iterator[Diagnostic]:
    first = answers[0]
    if first is None:
        return
    if function.execution == "auto":
        answers = answers[:-1]
    message = f"no known device could do this: {first.sentence}"
    key = "" if first.short is None else _KEYS.get(first.short.what, "")
    if len(answers) == 1:
        yield _note(document, function, Severity.ERROR, message, key)
    elif answers[1] is None:
        fallback = "; its jobs get a device of kind cpu (on_unavailable: cpu)"
        yield _note(document, function, Severity.WARNING, message + fallback, key)
    else:
        fallback = f"; nor its fallback: {answers[1].sentence}"
        yield _note(document, function, Severity.ERROR, message + fallback, key)


#: The keys of names that no host has; other requirements are shown at their block.
_KEYS = {NoFit.DATA: ".data", NoFit.PROGRAM: ".programs"}


def _note(
    document: Document,
    function: Function,
    severity: Severity,
    message: str,
    key: str = "",
    of: str = "gpu",
) -> Diagnostic:
    path = f"{function.path}.{of}{key}"
    return Diagnostic(severity=severity, path=path, at=document.location(path), message=message)

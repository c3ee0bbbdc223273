"""Errors of promises: jobs that no scheduler could promise, each with the reason."""

from __future__ import annotations

from collections.abc import Iterator

from fdl.diagnostics import Finding, Severity
from fdl.model import Function

_E = Severity.ERROR


def own_promise_findings(function: Function) -> Iterator[Finding]:
    """Errors of `gpu: {slo: …}`, the promise of each job of a function."""
    if function.workflow:
        message = (
            f"{function.name} is a step of the workflow {function.workflow}, whose runs are"
            " promised as a whole: write `slo` there"
        )
        yield _E, f"{function.path}.gpu.slo", message
        return
    yield from promised_findings(function)


def promised_findings(function: Function) -> Iterator[Finding]:
    """Errors of a function whose jobs are promised, by itself or as a step of a workflow."""
    for path, storage in function.storages:
        if storage.each and ".output[" not in path:
            message = "a promise needs the number of jobs before a run begins: leave it out"
            yield _E, f"{path}.each", message
    gpu = function.gpu
    if gpu is None:
        return
    path, request = f"{function.path}.gpu", gpu.request
    if request.count > 1:
        yield _E, f"{path}.count", "a promised job has one device"
    if gpu.on_unavailable != "fail":
        message = "a promised job has its device booked, or is refused at once: leave it out"
        yield _E, f"{path}.on_unavailable", message
    if request.max_wait_s is not None:
        message = "a promised job waits for the device that is booked for it: leave it out"
        yield _E, f"{path}.max_wait", message

"""The registry of deployed functions, and calls to the cloud model that weather refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from corekit.values import Value, replace
from gpu_scheduler.model import Request
from local_cloud.model.errors import CloudError
from orchgpu.core.function import Function
from orchgpu.core.runs.workflow import Workflow

T = TypeVar("T")
#: Errors of the cloud model that a repetition may not meet again.
_PASSING = ("OperationAborted", "TooManyRequestsException", "SlowDown", "InternalError")


class Verdict(Value):
    """The outcome of one seed."""

    seed: int
    trace: str
    jobs: int
    preempted: int  #: attempts whose lease ended for another request, or was withdrawn
    outcomes: dict[str, int]
    decisions: int
    virtual_s: float
    runs: dict[str, int] = {}  #: of the workflow: states of its runs
    ahead: dict[str, int] = {}  #: leases granted ahead, booked, that gave way, withdrawn
    floors: dict[str, int] = {}  #: warm floors that were declared, workers that hosts loaded
    machines: dict[str, int] = {}  #: of the fleet: launched, never joined, taken, noticed, stopped


class Deployed:
    """The registry of deployed functions, of all orchestrators."""

    def __init__(self, functions: Sequence[Function], workflows: Sequence[Workflow] = ()) -> None:
        self._functions = {one.name: one for one in functions}
        self._workflows = {one.name: one for one in workflows}

    async def functions(self) -> dict[str, Function]:
        return self._functions

    def workflows(self) -> dict[str, Workflow]:
        return self._workflows

    def redeploy(self, name: str, like: str) -> None:
        """Deploy a function again: with the device of another one, or without if it has one."""
        now = self._functions.get(name)
        if now is not None:
            asked = Request(count=0) if now.with_device else self._functions[like].request
            self._functions[name] = replace(now, request=asked)


def settled(call: Callable[[], T]) -> T:
    """The value of a call to the cloud model, repeated at once while weather refuses it."""
    while True:
        try:
            return call()
        except CloudError as error:
            if error.code not in _PASSING:
                raise

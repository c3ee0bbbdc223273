"""A Parsl executor for apps that are functions of orchgpu: values go, no code is pickled.

import parsl
from parsl_orchgpu import OrchgpuExecutor

parsl.load(parsl.Config(executors=[OrchgpuExecutor()]))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from parsl.executors.base import ParslExecutor
from parsl.executors.errors import InvalidResourceSpecification
from parsl.utils import RepresentationMixin

import orchgpu

__all__ = ["OrchgpuExecutor", "function_of"]

#: The key of an app's resource specification that names the function.
FUNCTION = "function"
#: The keyword by which Parsl passes that specification on to the app.
_SPECIFICATION = "parsl_resource_specification"


class OrchgpuExecutor(ParslExecutor, RepresentationMixin):
    """Runs apps as jobs of deployed functions; `orchgpu.Executor` has the rules of values."""

    def __init__(
        self,
        label: str = "orchgpu",
        *,
        again: bool = False,
        at_once: int = 8,
        scheduler: str | None = None,
        endpoint_url: str | None = None,
        region: str | None = None,
    ) -> None:
        """The arguments of `orchgpu.Executor`."""
        ParslExecutor.__init__(self)
        self.label = label
        self.again, self.at_once = again, at_once
        self.scheduler, self.endpoint_url, self.region = scheduler, endpoint_url, region
        self._executor: orchgpu.Executor | None = None

    def start(self) -> None:
        """Connect. Raises AppError(UNAVAILABLE) when a configured scheduler does not answer."""
        self._executor = orchgpu.Executor(
            again=self.again,
            at_once=self.at_once,
            scheduler=self.scheduler,
            endpoint_url=self.endpoint_url,
            region=self.region,
        )

    def submit(
        self,
        func: Callable[..., Any],
        resource_specification: Mapping[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> Future[Any]:
        """The future of one job. Raises TypeError for code that is not deployed, or several values,
        and InvalidResourceSpecification.
        """
        assert self._executor is not None, "Parsl starts its executors"
        kwargs.pop(_SPECIFICATION, None)
        unknown = set(resource_specification) - {FUNCTION}
        if unknown:
            raise InvalidResourceSpecification(
                unknown, "gpu: of the function's definition has them"
            )
        return self._executor.submit(function_of(func, resource_specification), *args, **kwargs)

    def shutdown(self) -> None:
        """Return when every job has ended."""
        if self._executor is not None:
            self._executor.shutdown()
        super().shutdown()

    def monitor_resources(self) -> bool:
        """No process of this machine does the work."""
        return False


def function_of(
    func: Callable[..., Any], resource_specification: Mapping[str, Any]
) -> str | Callable[..., Any]:
    """The deployed function of an app: the one that its specification names, or its own code."""
    named = resource_specification.get(FUNCTION)
    return func if named is None else str(named)

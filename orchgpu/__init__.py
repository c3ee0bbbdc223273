"""The life of a job, from the S3 event to the deleted message, over every crash in between.

`core` decides and is pure; `ports` declares what it needs; `adapters` implement that; `replica`
serves the jobs; `deploy` executes FDL plans; `cli` is the `orchgpu` command.

For users' programs: `orchgpu.function` declares a function beside its code, `orchgpu.workflow`
several as the steps of a workflow, `orchgpu.map` runs a deployed one on files, `orchgpu.Executor`
and `orchgpu.call` on values. This module and `declaration` are in every function's package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchgpu.declaration import function as function
    from orchgpu.declaration import workflow as workflow
    from orchgpu.executor import Executor as Executor
    from orchgpu.executor import JobFailed as JobFailed
    from orchgpu.executor import JobFuture as JobFuture
    from orchgpu.executor import call as call
    from orchgpu.mapping import map as map  # noqa: A004 - what it is named for

__all__ = ["Executor", "JobFailed", "JobFuture", "call", "function", "map", "workflow"]


def __getattr__(name: str) -> object:
    """The public names, imported on first use: a function's package has no `map`."""
    if name == "function":
        from orchgpu.declaration import function

        return function
    if name == "workflow":
        from orchgpu.declaration import workflow

        return workflow
    if name == "map":
        from orchgpu.mapping import map  # noqa: A004

        return map
    if name in ("Executor", "JobFailed", "JobFuture", "call"):
        from orchgpu import executor

        return getattr(executor, name)
    raise AttributeError(f"module 'orchgpu' has no attribute {name!r}")

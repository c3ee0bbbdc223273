"""The records of functions and workflows that a deploy of a file would write; nothing is deployed.

Urls of queues that do not exist yet are their names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from corekit.decode import decode_known
from corekit.errors import AppError, ErrorCode, invalid
from corekit.suggest import one_of_known
from fdl.plan.desired import DesiredFunction
from fdl.plan.resources import QUEUE_URL, Record, WorkflowRecord
from orchgpu.core.function import Function
from orchgpu.core.runs.workflow import Workflow

T = TypeVar("T")


def functions_of(wanted: Sequence[DesiredFunction]) -> dict[str, Function]:
    """The functions that orchestrators would serve, by name."""
    records = [
        one
        for desired in wanted
        for one in desired.resources
        if isinstance(one, Record) and not isinstance(one, WorkflowRecord)
    ]
    return {record.name: _decoded(Function, record) for record in records}


def workflows_of(wanted: Sequence[DesiredFunction]) -> dict[str, Workflow]:
    """The workflows that orchestrators would follow, by name."""
    records = [one.workflow for one in wanted if one.workflow is not None]
    return {record.name: _decoded(Workflow, record) for record in records}


def named(
    name: str | None, functions: Mapping[str, Function], workflows: Mapping[str, Workflow]
) -> Function | Workflow:
    """The function or workflow of that name; without a name the only one of the file.

    A workflow comes before its steps. Raises INVALID, or NOT_FOUND.
    """
    known: dict[str, Function | Workflow] = {**functions, **workflows}
    if name is not None:
        if name in known:
            return known[name]
        text = f"the file has no function with jobs, and no workflow, named {name!r}"
        raise AppError(ErrorCode.NOT_FOUND, text + one_of_known(name, known))
    only: list[Function | Workflow] = [*workflows.values()] or [*functions.values()]
    if len(only) != 1:
        raise invalid(f"give --name, one of: {', '.join(known) or 'none: there are no jobs'}")
    return only[0]


def _decoded(kind: type[T], record: Record) -> T:
    urls = {
        value[QUEUE_URL]: value[QUEUE_URL]
        for value in record.body.values()
        if isinstance(value, Mapping) and set(value) == {QUEUE_URL}
    }
    return decode_known(kind, record.resolved(urls).body)[0]

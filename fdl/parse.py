"""Text → `model.Document`: composed, older shapes rewritten, then read key by key."""

from __future__ import annotations

from corekit.values import replace
from fdl.keys.document import DOCUMENT
from fdl.keys.reference import placement_hint
from fdl.migrate.migrate import migrate
from fdl.model import Document
from fdl.schema.schema import Faulty, Reading
from fdl.text.compose import Composed, compose
from fdl.text.nodes import Node


def parse(data: bytes | str, name: str = "fdl.yaml") -> Document:
    """The declared document. Raises AppError(INVALID) with file:line:column and an excerpt.

    `name` is the name of the file in messages. Nothing else is raised, whatever `data` holds.
    """
    return read(compose(data, name))[0]


def read(composed: Composed) -> tuple[Document, Node]:
    """The document and the nodes it was read from. Raises as `parse` does."""
    reading = Reading(source=composed.source, placement_hint=placement_hint)
    try:
        root, rewrites = migrate(composed.root, reading)
        document: Document = DOCUMENT.read(root, "", reading)
        reading.end(0)
        document = _with_steps(_with_sandboxes(document))
    except Faulty:
        raise reading.combined_error() from None
    document = replace(
        document,
        source=composed.source,
        locations=dict(reading.locations),
        rewrites=rewrites,
        origins=dict(reading.origins),
        ignored=tuple(reading.ignored),
    )
    return document, root


def _with_sandboxes(document: Document) -> Document:
    """The same with the steps of each shared sandbox in a group of its name."""
    shared = tuple(one for one in document.workflows if one.sandbox == "shared")
    if not shared:
        return document
    groups = {step: workflow.name for workflow in reversed(shared) for step in workflow.steps}
    functions = tuple(
        replace(function, group=function.group or groups.get(function.name))
        for function in document.functions.aws
    )
    return replace(
        document,
        functions=replace(document.functions, aws=functions),
        workflows=tuple(one for one in document.workflows if one not in shared),
        sandboxes=shared,
    )


def _with_steps(document: Document) -> Document:
    """The same with the workflow of each function."""
    workflows = {step: workflow.name for workflow in document.workflows for step in workflow.steps}
    if not workflows:
        return document
    functions = tuple(
        replace(function, workflow=workflows.get(function.group or function.name, ""))
        for function in document.functions.aws
    )
    return replace(document, functions=replace(document.functions, aws=functions))

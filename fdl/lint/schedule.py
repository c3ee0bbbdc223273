"""Errors of `schedule:`: names that are taken, and functions that take no uploads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fdl.diagnostics import NO_FILE, FileFacts, Finding, Severity
from fdl.graph.graph import feeding
from fdl.model import Document, Function
from fdl.plan.schedules import NAME_CHARACTERS_MAX, schedule_name

_E = Severity.ERROR


def schedule_findings(document: Document, functions: tuple[Function, ...]) -> Iterator[Finding]:
    """`functions`: those that a deploy makes; a group is one."""
    for function in functions:
        steps = [one for one in functions if one.workflow == function.workflow]
        later = bool(function.workflow and feeding(function, steps))
        if function.schedule and later:
            text = f"a run of {function.workflow} begins at its first step: schedule that one"
            yield _E, f"{function.path}.schedule", text
        elif function.schedule and not function.user_input:
            yield _E, f"{function.path}.schedule", "an object needs an input, and there is none"
        names = [schedule_name(function, one) for one in function.schedule]
        for at, name in enumerate(names):
            path = f"{function.path}.schedule[{at}]"
            if name in names[:at]:
                yield _E, path, f"{name} is here twice: give each a `name`"
            if len(name) > NAME_CHARACTERS_MAX:
                text = f"EventBridge takes {NAME_CHARACTERS_MAX} characters, and it is named"
                yield _E, path, f"{text} {name}"
    made = {function.path for function in functions}
    for step in document.functions.aws:
        if step.schedule and step.path not in made:
            text = f"jobs of the group {step.group} start at its first step: schedule that one"
            yield _E, f"{step.path}.schedule", text


def object_findings(function: Function, files: Mapping[str, FileFacts]) -> Iterator[Finding]:
    """Files of objects that are not there."""
    for at, one in enumerate(function.schedule):
        problem = files.get(one.input_file, NO_FILE).problem
        if one.input_file and problem:
            text = f"{one.input_file!r} {problem} (paths start at this file's folder)"
            yield _E, f"{function.path}.schedule[{at}].input_file", text

"""A workflow as a state machine in the Amazon States Language (JSONPath).

A state gets `{"files": [{"bucket", "key", …}]}`, the input of the machine as well, and its function
returns the same with the files that it wrote. Branches that fork and join are `Parallel` states,
`each: true` is a `Map`, and a step that would get no file is passed over by a `Choice`, as a run
skips it. Only graphs made of series and of branches can be expressed, whose steps take every file
of those before them. What a machine cannot express is refused, not approximated. Source:
https://states-language.net/spec.html.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from corekit.errors import invalid
from corekit.values import Value
from fdl.diagnostics import Diagnostic, Finding, Severity
from fdl.graph.graph import feeding, order
from fdl.model import Document, Function, Job, Storage, Workflow

States = dict[str, dict[str, Any]]

_INVOKE = "arn:aws:states:::lambda:invoke"
#: Of the outputs of branches, and of the items of a `Map`: all their files.
_ALL_FILES = {"files.$": "$[*].files[*]"}
_E = Severity.ERROR
#: Fields of a workflow that no machine has → their key, and the reason.
_WORKFLOW_ONLY = {
    "slo": ("slo", "Step Functions gives no promises"),
    "max_cost_usd": ("max_cost", "Step Functions has no cap of cost"),
    "notify": ("notify", "add a state that sends it, or a rule of EventBridge"),
}


class Leaf(Value):
    """One step."""

    name: str


class Series(Value):
    """Parts that follow each other: each takes all files of the one before it."""

    parts: tuple[Part, ...]


class Branches(Value):
    """Parts side by side: each takes all files of what comes before them."""

    parts: tuple[Part, ...]


Part = Leaf | Series | Branches


def machine(
    document: Document, workflow: Workflow, functions: Sequence[Function]
) -> dict[str, Any]:
    """The state machine of one workflow of a document. `functions`: as deployed.

    Raises INVALID with every part that cannot be expressed, and its line.
    """
    steps = order([function for function in functions if function.workflow == workflow.name])
    edges = {
        step.name: frozenset(writer.name for writer, _ in feeding(step, steps)) for step in steps
    }
    findings = [*_not_expressed(workflow, steps)]
    part = composed([step.name for step in steps], edges)
    if part is None and not findings:
        text = (
            "its branches do not fork and join as a whole: a state machine cannot wait for some"
            " branches alone, nor pass files on beside a state"
        )
        findings.append((_E, f"{workflow.path}.steps", text))
    if findings or part is None:
        lines = (_line(document, *finding) for finding in findings)
        raise invalid("\n".join(lines))
    built = _Machine({step.name: step for step in steps})
    states = built.states(part, first=True)
    limit = {} if workflow.deadline_s is None else {"TimeoutSeconds": round(workflow.deadline_s)}
    return {
        "Comment": f"{workflow.name}: each function takes and returns a list of `files`",
        "StartAt": next(iter(states)),
        **limit,
        "States": states,
    }


def _line(document: Document, severity: Severity, path: str, message: str) -> str:
    at = document.location(path)
    shown = Diagnostic(severity=severity, path=document.written(path), at=at, message=message)
    return shown.text(document.source.name)


# ---------------------------------------------------------------------- what is refused


def _not_expressed(workflow: Workflow, steps: Sequence[Function]) -> Iterator[Finding]:
    for field, (key, why) in _WORKFLOW_ONLY.items():
        if getattr(workflow, field, None):
            yield _E, f"{workflow.path}.{key}", f"a state machine cannot express it: {why}"
    for step in steps:
        if step.gpu is not None:
            text = "a state machine cannot express it: the lease of a device is the orchestrator's"
            yield _E, f"{step.path}.gpu", text
        yield from _partial_feeds(step, steps)


def _partial_feeds(step: Function, steps: Sequence[Function]) -> Iterator[Finding]:
    """A step that takes some of the files of another one only."""
    for at, source in enumerate(step.function.input):
        if getattr(source, "when", None):
            text = "a state machine cannot express it: the run decides it from a result"
            yield _E, f"{step.path}.lambda.input[{at}].when", text
    for writer in {writer.name: writer for writer, _ in feeding(step, steps)}.values():
        left = [one for one in writer.function.output if not _taken(one, step.user_input)]
        if left:
            text = (
                f"{step.name} takes only some of the files of {writer.name} (not {left[0].path}),"
                " and a state gets all that the one before it returned"
            )
            yield _E, f"{step.path}.lambda.input", text


def _taken(output: Storage, inputs: Sequence[Storage]) -> bool:
    """Whether every file of an output is taken."""
    return any(
        output.path.bucket == source.path.bucket
        and output.path.key_prefix.startswith(source.path.key_prefix)
        and (
            not source.suffixes
            or (
                bool(output.suffixes)
                and all(suffix.endswith(source.suffixes) for suffix in output.suffixes)
            )
        )
        for source in inputs
    )


# ---------------------------------------------------------------------- series and branches


def composed(names: Sequence[str], feeders: Mapping[str, frozenset[str]]) -> Part | None:
    """The graph of these steps as series and branches; None where it is none.

    `names`: in an order in which each comes after its feeders. A series is cut where every last
    step before feeds every first step after, and nothing else crosses: in every order of that kind
    the steps before the cut come first.
    """
    if len(names) == 1:
        return Leaf(name=names[0])
    islands = _islands(names, feeders)
    if len(islands) > 1:
        parts = [composed(island, feeders) for island in islands]
        known = tuple(part for part in parts if part is not None)
        return Branches(parts=known) if len(known) == len(parts) else None
    for cut in range(1, len(names)):
        if _cuts(names[:cut], names[cut:], feeders):
            before, after = composed(names[:cut], feeders), composed(names[cut:], feeders)
            if before is None or after is None:
                return None
            return Series(parts=(*_parts(before), *_parts(after)))
    return None


def _parts(part: Part) -> tuple[Part, ...]:
    return part.parts if isinstance(part, Series) else (part,)


def _cuts(
    before: Sequence[str], after: Sequence[str], feeders: Mapping[str, frozenset[str]]
) -> bool:
    fed = frozenset[str]().union(*(feeders[name] for name in before))
    lasts = frozenset(name for name in before if name not in fed)
    inside = frozenset(after)
    return all(
        feeders[name] == lasts or (feeders[name] & inside and feeders[name] <= inside)
        for name in after
    )


def _islands(names: Sequence[str], feeders: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Steps that no edge among them connects, each island in the order of the names."""
    island = {name: name for name in names}
    for name in names:
        for feeder in feeders[name]:
            if feeder in island and island[feeder] != island[name]:
                old, new = island[name], island[feeder]
                island = {one: new if of == old else of for one, of in island.items()}
    roots = dict.fromkeys(island[name] for name in names)
    return [[name for name in names if island[name] == root] for root in roots]


# ---------------------------------------------------------------------- states


class _Machine:
    """The states; their names are unique in the whole machine."""

    def __init__(self, steps: Mapping[str, Function]) -> None:
        self._steps = steps
        self._branches = 0

    def states(self, part: Part, *, first: bool) -> States:
        """The states of a part, the first one first; every way ends it.

        `first`: there is a file, the machine's input; else a step without files is passed over.
        """
        found: States = {}
        parts = _parts(part)
        names = [self._name(one) for one in parts]
        ends = f"{names[0]}: done"
        for at, one in enumerate(parts):
            after = {"Next": f"files for {names[at + 1]}"} if at + 1 < len(parts) else {"End": True}
            if at or not first:
                found[f"files for {names[at]}"] = {
                    "Type": "Choice",
                    "Choices": [{"Variable": "$.files[0]", "IsPresent": True, "Next": names[at]}],
                    "Default": ends,
                }
            found[names[at]] = self._state(one) | after
        if any(state["Type"] == "Choice" for state in found.values()):
            found[ends] = {"Type": "Pass", "End": True}  # nothing is left to do
        return found

    def _name(self, part: Part) -> str:
        if isinstance(part, Leaf):
            return part.name
        self._branches += 1
        return f"branches {self._branches}"

    def _state(self, part: Part) -> dict[str, Any]:
        if isinstance(part, Leaf):
            return _state_of(self._steps[part.name])
        branches = [self.states(one, first=True) for one in part.parts]
        return {
            "Type": "Parallel",
            "Branches": [{"StartAt": next(iter(one)), "States": one} for one in branches],
            "ResultSelector": dict(_ALL_FILES),
        }


def _state_of(step: Function) -> dict[str, Any]:
    task = {
        "Type": "Task",
        "Resource": _INVOKE,
        "Parameters": {"FunctionName": step.name, "Payload": {"files.$": "$.files"}},
        "ResultSelector": {"files.$": "$.Payload.files"},
        "TimeoutSeconds": step.function.timeout_s,
        **_retry((step.job or Job()).attempts_max),
    }
    if not any(source.each for source in step.user_input):
        return task
    name = f"{step.name}: one file"
    return {
        "Type": "Map",
        "ItemsPath": "$.files",
        "ItemSelector": {"files.$": "States.Array($$.Map.Item.Value)"},
        "ItemProcessor": {
            "ProcessorConfig": {"Mode": "INLINE"},
            "StartAt": name,
            "States": {name: {**task, "End": True}},
        },
        "ResultSelector": dict(_ALL_FILES),
    }


def _retry(attempts: int) -> dict[str, Any]:
    if attempts < 2:
        return {}
    retrier = {"ErrorEquals": ["States.ALL"], "MaxAttempts": attempts - 1, "BackoffRate": 2.0}
    return {"Retry": [{**retrier, "IntervalSeconds": 1, "JitterStrategy": "FULL"}]}

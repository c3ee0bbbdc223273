"""`fdl export --format asl`: the machine is valid, and does what a run does."""
# ruff: noqa: E501  (one line per message, as people see it)

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.states import RunState, StepState
from corekit.errors import AppError
from fdl.graph.asl import composed, machine
from fdl.lint.lint import lint
from fdl.parse import parse
from fdl.plan.groups import deployed
from orchgpu.core.runs.workflow import WorkflowStep
from tests.unit.fdl.definitions import LOCAL
from tests.unit.orchgpu.runs.run_world import Function, World, step, workflow

NAME_CHARS_MAX = 80  #: of a state
Files = list[dict[str, str]]
FILM = """\
functions:
  aws:
  - lambda: {name: cut, init_script: s, timeout: 60, input: [{path: film/in}], output: [{path: film/parts}]}
  - lambda: {name: left, init_script: s, input: [{path: film/parts, each: true}], output: [{path: film/left}]}
  - lambda: {name: right, init_script: s, input: [{path: film/parts}], output: [{path: film/right}]}
    job: {attempts: 1}
  - lambda: {name: join, init_script: s, input: [{path: film/left}, {path: film/right}], output: [{path: film/out}]}
workflows:
  film: {steps: [cut, left, right, join], deadline: 10m}
"""


def made(text: str) -> dict[str, Any]:
    document = parse(text, "f")
    (of,) = document.workflows
    return machine(document, of, deployed(document))


def refused(text: str) -> list[str]:
    with pytest.raises(AppError) as error:
        made(text)
    return error.value.message.splitlines()


# ---------------------------------------------------------------------- what a machine must be


def machines(states: dict[str, Any], start: str) -> Iterator[tuple[dict[str, Any], str]]:
    """A machine, and those in its states."""
    yield states, start
    for state in states.values():
        inner = [*state.get("Branches", ()), *filter(None, [state.get("ItemProcessor")])]
        for one in inner:
            yield from machines(one["States"], one["StartAt"])


def is_valid(whole: dict[str, Any]) -> None:
    """The rules of the States Language for the states that are used."""
    names = []
    for states, start in machines(whole["States"], whole["StartAt"]):
        names += list(states)
        reached, left = set(), [start]
        while left:
            name = left.pop()
            if name not in reached:
                reached.add(name)
                left += _following(states[name])
        assert reached == set(states), "every state is reached, and every next one exists"
        assert any(state.get("End") for state in states.values())
    assert len(names) == len(set(names)), "names are unique in the whole machine"
    assert all(len(name) <= NAME_CHARS_MAX for name in names)


def _following(state: dict[str, Any]) -> list[str]:
    if state["Type"] == "Choice":
        assert not {"Next", "End", "Retry"} & state.keys()
        return [state["Default"], *(one["Next"] for one in state["Choices"])]
    assert ("Next" in state) != ("End" in state), "exactly one of the two"
    assert state["Type"] in ("Task", "Map", "Parallel", "Pass")
    for retrier in state.get("Retry", ()):
        assert retrier["ErrorEquals"] == ["States.ALL"]
        assert retrier["MaxAttempts"] >= 1
    return [state["Next"]] if "Next" in state else []


def runs(states: dict[str, Any], start: str, files: Files, call: Any) -> Files:
    """What the service does with the states that are used."""
    name = start
    while True:
        state = states[name]
        if state["Type"] == "Choice":
            (choice,) = state["Choices"]
            assert choice["Variable"] == "$.files[0]"
            name = choice["Next"] if files else state["Default"]
            continue
        files = _output(state, files, call)
        if state.get("End"):
            return files
        name = state["Next"]


def _output(state: dict[str, Any], files: Files, call: Any) -> Files:
    match state["Type"]:
        case "Task":
            return list(call(state["Parameters"]["FunctionName"], files))
        case "Parallel":
            outputs = [
                runs(one["States"], one["StartAt"], files, call) for one in state["Branches"]
            ]
        case "Map":
            one = state["ItemProcessor"]
            outputs = [runs(one["States"], one["StartAt"], [file], call) for file in files]
        case _:
            return files
    assert state["ResultSelector"] == {"files.$": "$[*].files[*]"}
    return [file for output in outputs for file in output]


# ---------------------------------------------------------------------- cases


def test_a_map_beside_a_branch_and_their_join() -> None:
    film = made(FILM)
    is_valid(film)
    assert (film["StartAt"], film["TimeoutSeconds"]) == ("cut", 600)
    assert film["States"]["cut"] == {
        "Type": "Task",
        "Resource": "arn:aws:states:::lambda:invoke",
        "Parameters": {"FunctionName": "cut", "Payload": {"files.$": "$.files"}},
        "ResultSelector": {"files.$": "$.Payload.files"},
        "TimeoutSeconds": 60,
        "Retry": [
            {
                "ErrorEquals": ["States.ALL"],
                "MaxAttempts": 2,
                "BackoffRate": 2.0,
                "IntervalSeconds": 1,
                "JitterStrategy": "FULL",
            }
        ],
        "Next": "files for branches 1",
    }
    left, right = film["States"]["branches 1"]["Branches"]
    assert left["States"]["left"]["Type"] == "Map"
    assert "Retry" not in right["States"]["right"]
    assert film["States"]["join"]["End"] is True


#: A change of `FILM` → what is refused, with its line.
REFUSED = {
    (
        "[{path: film/right}]}",
        "[{path: film/right}]}\n    gpu: {kinds: [cpu]}",
    ): "f:6:5: error: functions.aws[2].gpu: a state machine cannot express it: the lease of a device is the orchestrator's",
    (
        "[{path: film/parts}], output: [{path: film/right}]",
        "[{path: film/parts, suffix: [.x]}], output: [{path: film/right}]",
    ): "f:5:43: error: functions.aws[2].lambda.input: right takes only some of the files of cut (not film/parts), and a state gets all that the one before it returned",
    (
        "deadline: 10m",
        "max_cost: 1",
    ): "f:9:43: error: workflows.film.max_cost: a state machine cannot express it: Step Functions has no cap of cost",
    (
        "deadline: 10m",
        "slo: {latency: 20s}",
    ): "f:9:43: error: workflows.film.slo: a state machine cannot express it: Step Functions gives no promises",
    (
        "{path: film/right}], output: [{path: film/out}",
        "{path: film/right}, {path: film/parts}], output: [{path: film/out}",
    ): "f:9:10: error: workflows.film.steps: its branches do not fork and join as a whole: a state machine cannot wait for some branches alone, nor pass files on beside a state",
}


@pytest.mark.parametrize("change", REFUSED)
def test_what_a_machine_cannot_express_is_refused_with_its_line(change: tuple[str, str]) -> None:
    old, new = change
    assert old in FILM
    assert REFUSED[change] in refused(FILM.replace(old, new))


# ---------------------------------------------------------------------- any graph


@st.composite
def parts(draw: st.DrawFn, depth: int = 2) -> Any:
    """A series-parallel graph: "step", ("series", …) or ("branches", …)."""
    if depth == 0 or draw(st.booleans()):
        return "step"
    kind = draw(st.sampled_from(["series", "branches"]))
    return (kind, [draw(parts(depth - 1)) for _ in range(draw(st.integers(2, 3)))])


def graph(part: Any, feeders: list[str], found: dict[str, list[str]]) -> list[str]:
    """Add the steps of a part, after these feeders; its last ones."""
    if part == "step":
        name = f"s{len(found)}"
        found[name] = feeders
        return [name]
    kind, inner = part
    if kind == "branches":
        return [last for one in inner for last in graph(one, feeders, found)]
    for one in inner:
        feeders = graph(one, feeders, found)
    return feeders


def text_of(feeders: dict[str, list[str]], maps: set[str]) -> str:
    lines = ["functions:", "  aws:"]
    for name, of in feeders.items():
        each = ", each: true" if name in maps and of else ""
        inputs = ", ".join(f"{{path: work/{one}{each}}}" for one in of or ["in"])
        lines.append(
            f"  - lambda: {{name: {name}, init_script: s, input: [{inputs}], output: [{{path: work/{name}}}]}}"
        )
    return "\n".join([*lines, "workflows:", f"  w: {{steps: [{', '.join(feeders)}]}}", ""])


@settings(max_examples=40)
@given(parts(), st.sets(st.sampled_from([f"s{n}" for n in range(1, 12)])), st.integers(0, 2**32))
def test_a_machine_runs_the_steps_that_a_run_runs(part: Any, maps: set[str], seed: int) -> None:
    """Steps with and without files, in any series and branches: the same steps run as often."""
    feeders: dict[str, list[str]] = {}
    graph(("series", ["step", part]), [], feeders)
    text = text_of(feeders, maps)
    document = parse(text, "f")
    assert not [one for one in lint(document, place=LOCAL) if "workflows" in one.path]
    built = machine(document, document.workflows[0], deployed(document))
    is_valid(built)

    def count(name: str) -> int:
        return random.Random(f"{seed}{name}").choice([0, 1, 1, 2])

    calls: dict[str, int] = {}

    def call(name: str, files: Files) -> Files:
        assert files, "no function is called without files"
        calls[name] = calls.get(name, 0) + 1
        return [{"bucket": "w", "key": f"{name}/{calls[name]}.{n}"} for n in range(count(name))]

    runs(built["States"], built["StartAt"], [{"bucket": "w", "key": "in/a"}], call)

    steps: list[WorkflowStep] = [
        step(name, *of, each=name in maps and bool(of)) for name, of in feeders.items()
    ]

    def function_of(name: str) -> Function:
        return Function(lambda job, _n: [f"{job}.{n}" for n in range(count(name))])

    functions = {name: function_of(name) for name in feeders}
    world = World(workflow(*steps), functions)
    world.settle()
    assert world.ended is not None
    assert world.ended[0].state is RunState.SUCCEEDED
    ended = world.state().steps.values()
    assert calls == {one.name: len(one.jobs) for one in ended if one.state is StepState.DONE}


@st.composite
def any_graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    names = [f"s{n}" for n in range(draw(st.integers(2, 7)))]
    return {
        name: sorted(draw(st.sets(st.sampled_from(names[:at]), min_size=1))) if at else []
        for at, name in enumerate(names)
    }


@settings(max_examples=40)
@given(any_graphs())
def test_any_graph_is_expressed_exactly_or_refused(feeders: dict[str, list[str]]) -> None:
    """Each call of a machine gets the files of exactly the steps that feed it."""
    document = parse(text_of(feeders, set()), "f")
    edges = {name: frozenset(of) for name, of in feeders.items()}
    if composed(list(feeders), edges) is None:
        (line,) = refused(text_of(feeders, set()))
        assert "do not fork and join" in line
        return
    built = machine(document, document.workflows[0], deployed(document))
    is_valid(built)
    got: dict[str, list[str]] = {}

    def call(name: str, files: Files) -> Files:
        got[name] = sorted(file["key"] for file in files)
        return [{"bucket": "w", "key": name}]

    runs(built["States"], built["StartAt"], [{"bucket": "w", "key": "in"}], call)
    assert got == {name: of or ["in"] for name, of in feeders.items()}

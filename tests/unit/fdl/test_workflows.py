"""`workflows:`: reading, lint with its places, order of steps, resources and their removal."""
# ruff: noqa: E501  (one line per message, as people see it)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.budget import Budget
from corekit.decode import decode
from corekit.errors import AppError, ErrorCode
from fdl.graph.graph import feeding, order
from fdl.lint.lint import lint
from fdl.model import Function, Lambda, Path, Storage
from fdl.parse import parse
from fdl.plan.desired import DesiredFunction, desired
from fdl.plan.groups import deployed
from fdl.plan.placeholders import at_place
from fdl.plan.plan import Observed, plan, removal
from fdl.plan.resources import (
    DeployTarget,
    Ledger,
    Notification,
    QueueResource,
    Record,
    WorkflowRecord,
    key_of,
)
from fdl.plan.roles import role_of
from fdl.plan.workflows import desired_workflows, queues_of
from orchgpu.core.runs.workflow import Feed, Workflow, WorkflowStep
from tests.unit.fdl.definitions import AWS, CODE, LOCAL, errors

STEPS = """\
functions:
  aws:
  - lambda: {name: prepare, init_script: s, input: [{path: photos/in, suffix: [.png]}], output: [{path: photos/small}]}
  - lambda: {name: resnet, init_script: s, input: [{path: photos/small}], output: [{path: photos/votes}]}
  - lambda: {name: vgg, init_script: s, input: [{path: photos/small, each: true}], output: [{path: photos/votes}]}
  - lambda: {name: combine, init_script: s, input: [{path: photos/votes}], output: [{path: photos/labels}]}
"""
LABEL = STEPS + "workflows:\n  label: {steps: [combine, prepare, resnet, vgg], deadline: 10m}\n"


def findings(text: str) -> list[str]:
    return [note.text("f") for note in lint(parse(text, "f"), place=LOCAL)]


def wanted(text: str, place: DeployTarget = LOCAL) -> list[DesiredFunction]:
    document = parse(text, "f")
    functions = [at_place(one, place) for one in deployed(document)]
    made = [desired(one, place, CODE, Budget()) for one in functions]
    return made + desired_workflows(document, functions, place, Budget())


def applied(text: str) -> Observed:
    """What exists after a deploy of a file."""
    steps = plan(wanted(text), Observed(), LOCAL).steps
    resources = {step.key: step.resource for step in steps}
    ledgers = [one for one in resources.values() if isinstance(one, Ledger)]
    workflows = [one for one in resources.values() if isinstance(one, WorkflowRecord)]
    rules = [one for one in resources.values() if isinstance(one, Notification)]
    return Observed(
        resources={key: one for key, one in resources.items() if one.kind != "ledger"},
        ledgers={one.name: one for one in ledgers},
        workflows=tuple(workflows),
        rules=tuple(rules),
    )


# ---------------------------------------------------------------------- reading and lint


def test_a_workflow_is_read_and_is_no_error() -> None:
    document = parse(LABEL, "f")
    (label,) = document.workflows
    assert (label.name, label.path, label.deadline_s) == ("label", "workflows.label", 600.0)
    assert label.steps == ("combine", "prepare", "resnet", "vgg")
    assert {one.workflow for one in document.functions.aws} == {"label"}
    assert findings(LABEL) == []


def test_max_cost_is_in_the_records_where_it_is_stated() -> None:
    text = LABEL.replace("deadline: 10m", "max_cost: 0.02").replace(
        "output: [{path: photos/small}]}\n",
        "output: [{path: photos/small}]}\n    gpu: {kinds: [cpu], max_cost: 0.004}\n",
    )
    document = parse(text, "f")
    assert document.workflows[0].max_cost_usd == 0.02
    (gpu,) = [one.gpu for one in document.functions.aws if one.gpu is not None]
    assert gpu.max_cost_usd == 0.004
    records = [r for one in wanted(text) for r in one.resources if isinstance(r, Record)]
    caps = {one.name: one.body.get("max_cost_usd") for one in records}
    assert caps == {"prepare": 0.004, "resnet": None, "vgg": None, "combine": None, "label": 0.02}
    (workflow,) = [one.workflow for one in wanted(text) if one.workflow]
    assert workflow.body["max_cost_usd"] == 0.02
    assert "max_cost_usd" not in str(wanted(LABEL))


@pytest.mark.parametrize("cost", ["0", "-1", "1e7", "'2'", ".nan"])
def test_max_cost_is_a_positive_number_of_dollars(cost: str) -> None:
    with pytest.raises(AppError, match=r"workflows\.label\.max_cost"):
        parse(LABEL.replace("deadline: 10m", f"max_cost: {cost}"), "f")


@pytest.mark.parametrize("cost", ["max_cost: 0.02", "slo: {cost: 0.02}", "slo: {latency: 1h}"])
def test_a_step_in_batch_has_no_price_for_a_cost_of_runs(cost: str) -> None:
    batch = "    execution: host\n    host: {batch: {queue: gpus, definition: fold}}\n"
    text = LABEL.replace("deadline: 10m", cost).replace("small}]}\n", f"small}}]}}\n{batch}", 1)
    found = [one for one in errors(text) if "step prepare runs in AWS Batch" in one]
    assert bool(found) is ("0.02" in cost), errors(text)


ALL = "  label: {steps: [prepare, resnet, vgg, combine]}\n"
#: Lines after those of `STEPS` and `workflows:` → their findings.
FAULTS = {
    "  label: {steps: [prepare, resnet, vgg, combin]}\n": "f:8:41: error: workflows.label.steps[3]: no function or group is named 'combin'; did you mean 'combine'?",
    ALL
    + "  again: {steps: [combine]}\n": "f:9:19: error: workflows.again.steps[0]: combine is a step of the workflow label already",
    "  label: {steps: [prepare, resnet, vgg, combine, vgg]}\n": "f:8:50: error: workflows.label.steps[4]: vgg is a step of the workflow label already",
    "  prepare: {steps: [prepare, resnet, vgg, combine]}\n": "f:8:3: error: workflows.prepare: a function or group has this name too; choose another one",
    "  label: {steps: [prepare, resnet, combine]}\n": "f:5:49: error: functions.aws[2].lambda.input[0]: the files there stay inside of the workflow label, for resnet: make vgg a step of it, or write another path",
    "  label: {steps: [resnet, vgg, combine]}\n": "f:8:27: error: workflows.label.steps[1]: no step writes to the input of vgg, so no run reaches it: the workflow begins with resnet already",
}


@pytest.mark.parametrize("lines", FAULTS)
def test_a_graph_that_no_run_can_follow_is_an_error(lines: str) -> None:
    assert FAULTS[lines] in findings(STEPS + "workflows:\n" + lines)


#: Functions in place of those of `STEPS` → errors of the workflow `w` of all of them.
GRAPHS = {
    "a loop": (
        "a in:x out:y, b in:y out:z, c in:z out:y",
        "functions.aws[1].lambda.output: what it writes triggers b again through c; change a prefix",
    ),
    "a second input without a writer": (
        "a in:x out:y, b in:y,other out:z",
        "functions.aws[1].lambda.input: no step of the workflow w writes to buc/other, and a step takes files of its own run alone",
    ),
    "two inputs of the first step": (
        "a in:x,w out:y, b in:y out:z",
        "functions.aws[0].lambda.input: a is the first step of the workflow w, and a run begins with one input, not 2",
    ),
    "each at the first step": (
        "a in:x! out:y, b in:y out:z",
        "functions.aws[0].lambda.input: `each` has no effect at a, the first step: its run has one input",
    ),
    "each at one of two inputs": (
        "a in:x out:y, b in:y out:z, c in:y!,z out:end",
        "functions.aws[2].lambda.input: `each` differs among the inputs of c: write it at all of them",
    ),
}


def _file(shape: str, more: str = "") -> str:
    lines, names = [], []
    for function in shape.split(", "):
        name, inputs, outputs = function.split()
        places = [
            f"{{path: buc/{place.rstrip('!')}{', each: true' if place.endswith('!') else ''}}}"
            for place in inputs.removeprefix("in:").split(",")
        ]
        written = [f"{{path: buc/{place}}}" for place in outputs.removeprefix("out:").split(",")]
        lines.append(
            f"  - lambda: {{name: {name}, init_script: s, input: [{', '.join(places)}], output: [{', '.join(written)}]}}\n"
        )
        names.append(name)
    steps = f"workflows:\n  w: {{steps: [{', '.join(names)}]}}\n"
    return "functions:\n  aws:\n" + "".join(lines) + more + steps


@pytest.mark.parametrize("name", GRAPHS)
def test_a_fault_of_a_graph_is_named_where_it_is(name: str) -> None:
    shape, message = GRAPHS[name]
    assert message in errors(_file(shape))


def test_a_step_takes_several_inputs_and_files_go_to_several_steps() -> None:
    assert errors(_file("a in:x out:y,z, b in:y out:p, c in:y,z out:q, d in:p,q out:end")) == []


def test_a_function_outside_must_not_write_into_a_workflow() -> None:
    outside = (
        "  - lambda: {name: o, init_script: s, input: [{path: other}], output: [{path: buc/y}]}\n"
    )
    assert errors(_file("a in:x out:y, b in:y out:z", outside)) == [
        "functions.aws[2].lambda.output[0]: a step of the workflow w reads there, and takes files of its own run alone: make o a step too, or write another path"
    ]


def test_each_without_a_workflow_is_an_error() -> None:
    assert errors(STEPS.replace("photos/small}]}\n  - lambda: {name: combine", "photos/x")) != []
    one = "functions:\n  aws:\n  - lambda: {name: f, init_script: s, input: [{path: buc, each: true}], output: [{path: out, each: true}]}\n"
    assert errors(one) == [
        "functions.aws[0].lambda.input[0].each: f is not a step of a workflow: each object is a job of its own",
        "functions.aws[0].lambda.output[0].each: it is for inputs: write it at the step that reads there",
    ]


WHEN = LABEL.replace(
    "input: [{path: photos/votes}]", "input: [{path: photos/votes, when: document.sure < `0.9`}]"
)


def test_a_condition_is_read_and_is_in_the_record() -> None:
    assert findings(WHEN) == []
    (record,) = [one.workflow for one in wanted(WHEN) if one.workflow]
    record = record.resolved(dict.fromkeys(queues_of("label"), "url"))
    steps = {one.name: one for one in decode(Workflow, record.body).steps}
    assert {feed.when for feed in steps["combine"].feeds} == {"document.sure < `0.9`"}
    assert {feed.when for feed in steps["vgg"].feeds} == {""}
    (before,) = [one.workflow for one in wanted(LABEL) if one.workflow]
    assert "when" not in str(before.body), "plans of before stay"


@pytest.mark.parametrize(
    ("when", "column", "message"),
    [
        ("document.sure < 0.9", 96, "not a JMESPath expression: column 17; a number is written in backticks, as in `0.9`"),
        ("sure < `0.9`", 80, "the result has no 'sure'; known are attempt, device, document, exit_code, files, notes, times"),
        ("'document.x && lengt(files)'", 95, "no function 'lengt'; did you mean 'length'?"),
    ],
)  # fmt: skip
def test_a_condition_that_is_none_is_an_error_at_its_column(
    when: str, column: int, message: str
) -> None:
    text = WHEN.replace("document.sure < `0.9`", when)
    with pytest.raises(AppError) as caught:
        parse(text, "f")
    path = "functions.aws[3].lambda.input[0].when"
    assert caught.value.message.startswith(f"f:6:{column}: error: {path}: {message}\n")


def test_a_condition_is_for_inputs_of_steps_that_a_step_feeds() -> None:
    first = LABEL.replace("suffix: [.png]", "suffix: [.png], when: document.ok")
    assert errors(first) == [
        "functions.aws[0].lambda.input: no step writes to the input of prepare, so `when` has no result to look at"
    ]
    one = "functions:\n  aws:\n  - lambda: {name: f, init_script: s, input: [{path: buc, when: document.ok}], output: [{path: out, when: document.ok}]}\n"
    assert errors(one) == [
        "functions.aws[0].lambda.input[0].when: f is not a step of a workflow: no step's result comes in",
        "functions.aws[0].lambda.output[0].when: it is for inputs: write it at the step that reads there",
    ]


def test_a_group_is_a_step() -> None:
    text = _file("a in:x out:y, b in:y out:z").replace(
        "  - lambda: {name: b", "  - group: g\n    lambda: {name: b"
    )
    assert "b is in the group g: name the group" in "".join(errors(text))
    text = text.replace("steps: [a, b]", "steps: [a, g]")
    assert errors(text) == []
    assert [one.name for one in wanted(text)] == ["a", "g", "w"]


# ---------------------------------------------------------------------- graphs


@st.composite
def graphs(draw: st.DrawFn) -> list[Function]:
    """Steps in any order; each but the first reads from some of those before it."""
    count = draw(st.integers(1, 8))
    made = []
    for at in range(count):
        feeders = draw(st.sets(st.integers(0, at - 1), min_size=1)) if at else set()
        inputs = [f"from{feeder}" for feeder in sorted(feeders)] or ["root"]
        function = Lambda(
            name=f"s{at}",
            input=tuple(Storage(path=Path(bucket="buc", prefix=place)) for place in inputs),
            output=(Storage(path=Path(bucket="buc", prefix=f"from{at}")),),
        )
        made.append(Function(function=function, workflow="w"))
    return draw(st.permutations(made))


@given(graphs())
def test_every_step_comes_after_those_that_feed_it(steps: list[Function]) -> None:
    ordered = order(steps)
    assert sorted(one.name for one in ordered) == sorted(one.name for one in steps)
    for at, step in enumerate(ordered):
        assert all(writer in ordered[:at] for writer, _ in feeding(step, steps))


# ---------------------------------------------------------------------- plans


def test_the_record_is_what_the_orchestrator_reads() -> None:
    (label,) = (one for one in wanted(LABEL) if one.workflow)
    assert label.workflow is not None
    urls = {"label-runs": "http://q/label-runs", "label-runs-dlq": "http://q/label-runs-dlq"}
    read = decode(Workflow, label.workflow.resolved(urls).body, "record")
    small = Feed(step="prepare", bucket="photos", prefix="small")
    assert read.steps == (
        WorkflowStep(name="prepare"),
        WorkflowStep(name="resnet", feeds=(small,)),
        WorkflowStep(name="vgg", feeds=(small,), each=True),
        WorkflowStep(
            name="combine",
            feeds=tuple(
                Feed(step=name, bucket="photos", prefix="votes") for name in ("resnet", "vgg")
            ),
        ),
    )
    assert (read.input_bucket, read.input_prefix, read.input_suffixes) == (
        "photos",
        "in",
        (".png",),
    )
    assert (read.bucket, read.deadline_s) == ("prepare-intermediate", 600.0)
    assert read.queue_url == "http://q/label-runs"
    assert set(read.owners) == {"photos", *(f"{s.name}-intermediate" for s in read.steps)}


def test_only_the_input_of_the_run_notifies() -> None:
    rules = [
        one
        for function in wanted(LABEL)
        for one in function.resources
        if isinstance(one, Notification) and one.bucket == "photos"
    ]
    assert [(rule.id, rule.prefix, rule.suffix) for rule in rules] == [
        ("orchgpu-label-runs", "in/", ".png")
    ]
    assert rules[0].target_arn == LOCAL.queue_arn("label-runs")
    queues = [r for f in wanted(LABEL) for r in f.resources if isinstance(r, QueueResource)]
    assert {queue.name for queue in queues if queue.policy} >= {"label-runs"}
    assert not any(queue.policy for queue in queues if queue.name.endswith("-jobs"))


def test_uploads_to_a_step_are_searched_by_no_orchestrator() -> None:
    """Its record says that it was never deployed; one of a function outside says nothing."""
    bodies = [r.body for f in wanted(LABEL) for r in f.resources if type(r) is Record]
    assert [body["deployed_at_s"] for body in bodies] == [0.0] * 4
    plain = [r.body for f in wanted(STEPS) for r in f.resources if isinstance(r, Record)]
    assert not any("deployed_at_s" in body for body in plain)


def test_a_step_may_read_the_lists_of_its_files() -> None:
    steps = {one.name: one for one in deployed(parse(LABEL, "f"))}
    (envelopes,) = (
        s for s in role_of(steps["combine"], AWS).policy["Statement"] if s["Sid"] == "Envelopes"
    )
    assert "arn:aws:s3:::prepare-intermediate/runs/*/inputs/combine.json" in envelopes["Resource"]


def test_the_record_is_written_last_and_removed_first() -> None:
    steps = plan(wanted(LABEL), Observed(), LOCAL).steps
    assert [step.key for step in steps if step.resource.kind != "ledger"][-1] == "workflow/label"
    exists = applied(LABEL)
    assert plan(wanted(LABEL), exists, LOCAL).empty
    names = [one.name for one in wanted(LABEL)]
    gone = [step.key for step in removal(names, exists, LOCAL).steps]
    assert gone[0] == "workflow/label"
    assert {
        "queue/label-runs",
        "queue/label-runs-dlq",
        "expiry/prepare-intermediate/orchgpu-label-runs-runs",
    } & set(gone)
    rest = {key for key in exists.resources if key not in gone}
    assert all(key.startswith(("bucket/", "package/")) for key in rest)


def test_rules_of_an_older_deploy_are_taken_away_before_the_new_one_is_made() -> None:
    apart = STEPS.replace("small, each: true", "small2")  # two readers are an error without one
    steps = plan(wanted(LABEL), applied(apart), LOCAL).steps
    changes = [(s.action.value, s.key) for s in steps if s.key.startswith("notification/photos/")]
    assert changes[-1] == ("create", "notification/photos/orchgpu-label-runs")
    assert set(changes[:-1]) == {
        ("delete", f"notification/photos/orchgpu-{name}-jobs")
        for name in ("prepare", "resnet", "vgg", "combine")
    }
    back = plan(wanted(apart), _without_workflow(applied(LABEL)), LOCAL).steps
    assert ("create", "notification/photos/orchgpu-vgg-jobs") in [
        (s.action.value, s.key) for s in back
    ]


def _without_workflow(observed: Observed) -> Observed:
    """After `orchgpu rm label`."""
    removed = {step.key for step in removal(["label"], observed, LOCAL).steps}
    resources = {key: one for key, one in observed.resources.items() if key not in removed}
    rules = tuple(rule for rule in observed.rules if key_of(rule) not in removed)
    ledgers = {name: one for name, one in observed.ledgers.items() if name != "label"}
    return Observed(resources=resources, rules=rules, ledgers=ledgers)


def test_steps_of_a_deployed_workflow_cannot_leave_it_unseen() -> None:
    exists = applied(LABEL)
    apart = STEPS.replace("small, each: true", "small2")
    with pytest.raises(
        AppError, match="prepare is a step of the deployed workflow 'label'"
    ) as caught:
        plan(wanted(apart), exists, LOCAL)
    assert caught.value.code is ErrorCode.CONFLICT
    other_way = apart.replace("suffix: [.png]}", "suffix: [.png], via: eventbridge}")
    with pytest.raises(AppError, match="prepare is a step of the deployed workflow 'label'"):
        plan(wanted(other_way, AWS), Observed(workflows=exists.workflows), AWS)
    with pytest.raises(AppError, match="vgg: a step of the workflow 'label'; remove that first"):
        removal(["vgg"], exists, LOCAL)
    assert removal(["vgg"], exists, LOCAL, force=True).steps
    assert removal(["label"], exists, LOCAL).steps


def test_a_function_cannot_take_the_name_of_a_deployed_workflow() -> None:
    other = "functions:\n  aws:\n  - lambda: {name: label, init_script: s, input: [{path: xyz}]}\n"
    with pytest.raises(AppError, match="a workflow 'label' is deployed; choose another name"):
        plan(wanted(other), applied(LABEL), LOCAL)

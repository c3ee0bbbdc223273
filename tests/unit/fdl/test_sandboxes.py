"""`sandbox: shared`: a workflow that is one group, with its own request; what cannot be one."""
# ruff: noqa: E501  (one line per message, as people see it)

from __future__ import annotations

import json

import pytest

from corekit.budget import Budget
from fdl.lint.lint import lint
from fdl.parse import parse
from fdl.plan.groups import deployed, steps_json
from fdl.plan.workflows import desired_workflows
from gpu_scheduler.model import DeviceKind
from tests.unit.fdl.definitions import LOCAL, errors

STEPS = """\
functions:
  aws:
  - lambda: {name: split, init_script: s, timeout: 60, input: [{path: films/in}], output: [{path: inner/frames}]}
    gpu: {memory: 256, kinds: [cpu]}
  - lambda: {name: faces, init_script: s, timeout: 60, input: [{path: inner/frames, each: true}], output: [{path: answers/faces}]}
    gpu: {memory: 512, kinds: [cpu]}
workflows:
"""
SHARED = STEPS + "  film: {steps: [faces, split], sandbox: shared}\n"


def test_the_steps_of_a_shared_sandbox_are_one_function_of_its_name() -> None:
    assert errors(SHARED) == []
    document = parse(SHARED, "f")
    assert document.workflows == ()
    assert [one.name for one in document.sandboxes] == ["film"]
    (film,) = deployed(document)
    assert (film.name, film.workflow, film.function.timeout_s) == ("film", "", 120)
    assert film.gpu is not None
    assert film.gpu.request.memory_mib == 768
    assert [step["name"] for step in json.loads(steps_json(film))] == ["split", "faces"]
    assert desired_workflows(document, (film,), LOCAL, Budget()) == []


def test_its_own_request_is_added() -> None:
    text = SHARED.replace("shared}", "shared, gpu: {memory: 100, kinds: [cpu]}}")
    assert errors(text) == []
    (film,) = deployed(parse(text, "f"))
    assert film.gpu is not None
    assert (film.gpu.request.memory_mib, film.gpu.request.kinds) == (868, (DeviceKind.CPU,))
    alone = "\n".join(line for line in text.splitlines() if not line.startswith("    gpu:"))
    (film,) = deployed(parse(alone, "f"))
    assert film.gpu is not None
    assert film.gpu.request.memory_mib == 100


def test_its_targets_are_notified_of_its_jobs_and_its_cap_belongs_to_the_steps() -> None:
    notified = SHARED.replace("shared}", "shared, notify: [{queue: done}]}")
    (film,) = deployed(parse(notified, "f"))
    assert [one.queue for one in film.notify] == ["done"]
    capped = SHARED.replace("shared}", "shared, max_cost: 0.5}")
    assert "write it in `gpu:` of each step" in errors(capped)[0]


def test_own_is_the_default_and_changes_nothing() -> None:
    before = parse(STEPS + "  film: {steps: [faces, split]}\n", "f")
    written = parse(STEPS + "  film: {steps: [faces, split], sandbox: own}\n", "f")
    assert deployed(before) == deployed(written)
    assert before.workflows == written.workflows


#: Replacements in `SHARED` → the finding, with its place.
FAULTS = {
    ("[faces, split]", "[faces, splitt]"): "f:8:25: error: workflows.film.steps[1]: no function is named 'splitt'; did you mean 'split'?",
    ("[faces, split]", "[faces, split, faces]"): "f:8:32: error: workflows.film.steps[2]: faces is named twice",
    ("sandbox: shared}", "sandbox: shared, deadline: 5m}"): "f:8:50: error: workflows.film.deadline: steps of one sandbox are one job, not a run: it is for runs alone",
    (", each: true", ""): "f:5:56: error: functions.aws[1].lambda.input: a sandbox runs faces once for each file, and never with all of them: write `each: true`, or leave out `sandbox`",
    ("each: true", "each: true, when: document.ok"): "f:5:56: error: functions.aws[1].lambda.input: `when` has nothing to look at: steps of one sandbox have one result, at their end: let the code decide",
    ("films/in", "films/in, each: true"): "f:3:56: error: functions.aws[0].lambda.input: `each` has no effect at split, the first step",
    ("each: true}", "each: true}, {path: films/more}"): "f:5:56: error: functions.aws[1].lambda.input: no step of film writes to films/more, and one step begins it",
    ("inner/frames, each", "inner/others, each"): "f:5:5: error: functions.aws[1]: a group begins with one step, whose input no other step writes: split begins it too",
    ("sandbox: shared}", "sandbox: shared, gpu: {memory: 100, kinds: [cuda]}}"): "f:8:69: error: workflows.film.gpu.kinds: kinds differs from split's: a group has one sandbox and one lease",
    ("sandbox: shared}", "gpu: {memory: 100}}"): "f:8:33: error: workflows.film.gpu: each step has a lease of its own: write it there, or `sandbox: shared`",
    ("  - lambda: {name: faces", "  - group: other\n    lambda: {name: faces"): "f:9:18: error: workflows.film.steps[0]: faces is in the group other already",
}  # fmt: skip


@pytest.mark.parametrize(("old", "new"), FAULTS)
def test_what_no_group_can_express_is_an_error_at_its_line(old: str, new: str) -> None:
    found = [note.text("f") for note in lint(parse(SHARED.replace(old, new), "f"), place=LOCAL)]
    assert FAULTS[old, new] in found


def test_a_step_is_of_one_sandbox_and_of_no_run_beside_it() -> None:
    more = SHARED + "  again: {steps: [split], sandbox: shared}\n"
    assert "workflows.again.steps[0]: split is in the group film already" in errors(more)
    more = SHARED + "  again: {steps: [split]}\n"
    assert "workflows.again.steps[0]: split is in the group film: name the group" in errors(more)
    assert errors(SHARED + "  whole: {steps: [film]}\n") == []

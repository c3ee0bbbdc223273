"""Errors of `workflows:`: graphs that no run could follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from corekit.suggest import one_of_known
from fdl.diagnostics import Finding, Severity
from fdl.graph.graph import feeding, overlap
from fdl.lint.promises import own_promise_findings, promised_findings
from fdl.model import Document, Function, Workflow
from fdl.plan.workflows import queues_of

_E = Severity.ERROR


def run_findings(document: Document, functions: tuple[Function, ...]) -> Iterator[Finding]:
    """Errors of the workflows of a file, and of `each` and `when` outside of them.

    `functions`: those that a deploy makes; a group is one.
    """
    yield from _each(document)
    for function in functions:
        if function.gpu is not None and function.gpu.slo is not None:
            yield from own_promise_findings(function)
    named = {function.name: function for function in functions}
    taken: dict[str, str] = {}  # step → the workflow that has it
    for workflow in document.workflows:
        if workflow.gpu is not None:
            message = "each step has a lease of its own: write it there, or `sandbox: shared`"
            yield _E, f"{workflow.path}.gpu", message
        yield from _names(workflow, functions)
        steps = []
        for at, name in enumerate(workflow.steps):
            path = f"{workflow.path}.steps[{at}]"
            if name not in named:
                yield _E, path, _unknown(name, document, named)
            elif name in taken:
                yield _E, path, f"{name} is a step of the workflow {taken[name]} already"
            else:
                taken[name] = workflow.name
                steps.append(named[name])
                yield from _able(named[name], path)
        if workflow.slo is not None:
            for step in steps:
                yield from promised_findings(step)
        yield from _without_price(workflow, steps)
        yield from _roots(workflow, steps)
        yield from _writers(workflow, steps, functions)


def _without_price(workflow: Workflow, steps: Sequence[Function]) -> Iterator[Finding]:
    """A cap or an objective of cost over steps whose machines have no price."""
    objective = workflow.slo is not None and workflow.slo.cost_usd is not None
    for step in steps:
        if step.in_batch and (objective or workflow.max_cost_usd is not None):
            key = "slo.cost" if objective else "max_cost"
            message = f"step {step.name} runs in AWS Batch, whose machines have no price here"
            yield _E, f"{workflow.path}.{key}", f"{message}: leave the cost out"


def _names(workflow: Workflow, functions: Sequence[Function]) -> Iterator[Finding]:
    for function in functions:
        if function.name == workflow.name:
            yield _E, workflow.path, "a function or group has this name too; choose another one"
        for queue in queues_of(workflow.name):
            if queue in function.queue_names:
                message = f"{function.name} has the queue {queue!r}, the name of the workflow's own"
                yield _E, workflow.path, message


def _unknown(name: str, document: Document, known: dict[str, Function]) -> str:
    for function in document.functions.aws:
        if function.name == name and function.group:
            return f"{name} is in the group {function.group}: name the group"
    return f"no function or group is named {name!r}{one_of_known(name, known)}"


def _able(function: Function, path: str) -> Iterator[Finding]:
    """A step must have jobs that end with a result of ours, and be declared as such."""
    if not function.queued:
        yield _E, path, f"{function.name} has no jobs, and a step is a job: give it an input"
    elif function.foreign:
        message = f"{function.name} commits no result (`completion: object`), so nothing follows it"
        yield _E, path, message


def _roots(workflow: Workflow, steps: list[Function]) -> Iterator[Finding]:
    """A workflow begins with one step; every other input is written by a step."""
    firsts = [step for step in steps if not feeding(step, steps)]
    for step in firsts[1:]:
        at = workflow.steps.index(step.name)
        message = (
            f"no step writes to the input of {step.name}, so no run reaches it: the workflow"
            f" begins with {firsts[0].name} already"
        )
        yield _E, f"{workflow.path}.steps[{at}]", message
    for step in steps:
        yield from _inputs(workflow, step, steps)


def _inputs(workflow: Workflow, step: Function, steps: list[Function]) -> Iterator[Finding]:
    sources = [source for source in step.user_input if source not in _written(step, steps)]
    if sources and feeding(step, steps):
        message = (
            f"no step of the workflow {workflow.name} writes to {sources[0].path}, and a step"
            " takes files of its own run alone"
        )
        yield _E, f"{step.path}.lambda.input", message
    each = {source.each for source in step.user_input}
    if len(each) > 1:
        message = f"`each` differs among the inputs of {step.name}: write it at all of them"
        yield _E, f"{step.path}.lambda.input", message
    if len(step.user_input) > 1 and not feeding(step, steps):
        message = (
            f"{step.name} is the first step of the workflow {workflow.name}, and a run begins with"
            f" one input, not {len(step.user_input)}"
        )
        yield _E, f"{step.path}.lambda.input", message
    if any(source.when for source in step.user_input) and not feeding(step, steps):
        message = f"no step writes to the input of {step.name}, so `when` has no result to look at"
        yield _E, f"{step.path}.lambda.input", message
    if True in each and not feeding(step, steps):
        message = f"`each` has no effect at {step.name}, the first step: its run has one input"
        yield _E, f"{step.path}.lambda.input", message


def _written(step: Function, steps: Sequence[Function]) -> list[object]:
    return [source for _, source in feeding(step, steps)]


def _writers(
    workflow: Workflow, steps: Sequence[Function], functions: Sequence[Function]
) -> Iterator[Finding]:
    """Functions outside that write where a step inside reads: no run would take their files."""
    inside = [source for step in steps if feeding(step, steps) for source in step.user_input]
    for function in functions:
        if function in steps:
            continue
        for at, output in enumerate(function.function.output):
            if any(overlap(output, source) for source in inside):
                message = (
                    f"a step of the workflow {workflow.name} reads there, and takes files of its"
                    f" own run alone: make {function.name} a step too, or write another path"
                )
                yield _E, f"{function.path}.lambda.output[{at}]", message


def _each(document: Document) -> Iterator[Finding]:
    sandboxes = {one.name for one in document.sandboxes}
    for function in document.functions.aws:
        if function.group in sandboxes:
            continue  # see `sandbox_findings`
        for path, storage in function.storages:
            for key in ("each", "when"):
                if getattr(storage, key) and ".output[" in path:
                    message = "it is for inputs: write it at the step that reads there"
                    yield _E, f"{path}.{key}", message
            if ".output[" in path or function.workflow:
                continue
            if storage.when:
                message = f"{function.name} is not a step of a workflow: no step's result comes in"
                yield _E, f"{path}.when", message
            if storage.each:
                message = (
                    f"{function.name} is not a step of a workflow: each object is a job of its own"
                )
                yield _E, f"{path}.each", message


def sandbox_findings(document: Document) -> Iterator[Finding]:
    """Errors of workflows with `sandbox: shared` that no group of steps can express."""
    named = {function.name: function for function in document.functions.aws}
    for sandbox in document.sandboxes:
        for key, value in (("deadline", sandbox.deadline_s), ("slo", sandbox.slo)):
            if value is not None:
                message = "steps of one sandbox are one job, not a run: it is for runs alone"
                yield _E, f"{sandbox.path}.{key}", message
        if sandbox.max_cost_usd is not None:
            message = "steps of one sandbox are one job, not a run: write it in `gpu:` of each step"
            yield _E, f"{sandbox.path}.max_cost", message
        for at, name in enumerate(sandbox.steps):
            path = f"{sandbox.path}.steps[{at}]"
            if name not in named:
                yield _E, path, f"no function is named {name!r}{one_of_known(name, named)}"
            elif named[name].group != sandbox.name:
                yield _E, path, f"{name} is in the group {named[name].group} already"
            elif name in sandbox.steps[:at]:
                yield _E, path, f"{name} is named twice"
        steps = [one for one in document.functions.aws if one.group == sandbox.name]
        for step in steps:
            if step.name not in sandbox.steps:
                message = f"{sandbox.name} is a workflow of one sandbox: name {step.name} there"
                yield _E, f"{step.path}.group", message
            yield from _in_sandbox(sandbox, step, steps)


def _in_sandbox(sandbox: Workflow, step: Function, steps: list[Function]) -> Iterator[Finding]:
    path, fed = f"{step.path}.lambda.input", _written(step, steps)
    for source in step.user_input:
        if source.when:
            message = "steps of one sandbox have one result, at their end: let the code decide"
            yield _E, path, f"`when` has nothing to look at: {message}"
        if not fed and source.each:
            yield _E, path, f"`each` has no effect at {step.name}, the first step"
        elif fed and source not in fed:
            message = f"no step of {sandbox.name} writes to {source.path}, and one step begins it"
            yield _E, path, message
        elif fed and not source.each:
            message = (
                f"a sandbox runs {step.name} once for each file, and never with all of them: write"
                " `each: true`, or leave out `sandbox`"
            )
            yield _E, path, message

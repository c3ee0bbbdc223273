"""Groups: steps that share one sandbox are one function with the sum of their needs.

After KNIX's sandboxes (one per workflow): the steps run one after the other in one job and on one
lease, and what a step writes where another one's input is goes there as a file. Memory, of the
function and of the device, and guarantees of compute add up, because warm data of all the steps
stays; times add up too. Settings that a sandbox has only once must be equal in all steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, TypeVar

from corekit.errors import AppError
from corekit.units import percent_of, permille_of
from corekit.values import replace
from fdl.diagnostics import Finding, Severity
from fdl.graph.graph import feeding, overlap
from fdl.model import (
    LAMBDA_MEMORY_MIB_MAX,
    LAMBDA_TIMEOUT_S_MAX,
    Document,
    Function,
    Gpu,
    Lambda,
    Path,
    Storage,
    Workflow,
    words_of_a_file,
)
from gpu_scheduler.request_options import REQUEST_OPTIONS

#: The file of the package that lists a group's steps, below the task root.
STEPS_FILE = "script/steps.json"
#: Keys of `lambda` that a sandbox has once.
_SAME_LAMBDA = (
    "runtime",
    "architectures",
    "region",
    "boto_profile",
    "log_level",
    "layers",
    "variables",
    "deployment",
    "extra_payload",
    "vpc",
    "file_system",
    "ephemeral_storage_mib",
    "reserved_concurrency",
    "kms_key",
    "logging",
    "tracing",
    "tags",
)
#: Fields of requests that are merged; all others must be equal in all steps.
_MERGED = (
    "count",
    "memory_mib",
    "memory_pct",
    "memory_max_mib",
    "compute_guarantee_pct",
    "compute_limit_pct",
    "data",
    "programs",
    "priority",
    "max_wait_s",
    "deadline_s",
    "lease_s",
)
_E = Severity.ERROR
_Number = TypeVar("_Number", int, float)


def deployed(document: Document) -> tuple[Function, ...]:
    """The functions that a deploy makes: each group is one; in the order of the file.

    Total for a document that `lint` passed.
    """
    made: dict[str, Function] = {}
    for function in document.functions.aws:
        if function.group is None:
            made[f"function {function.name}"] = function
        elif f"group {function.group}" not in made:
            sandbox = _sandbox(document, function.group)
            made[f"group {function.group}"] = _merged(_members(document, function.group), sandbox)
    functions = tuple(made.values())
    return tuple(_with_runs(function, functions, document.workflows) for function in functions)


def _with_runs(
    function: Function, functions: tuple[Function, ...], workflows: tuple[Workflow, ...]
) -> Function:
    """The same with the place of its runs, the bucket of its workflow's first step, and with who
    is notified of their ends."""
    if not function.workflow:
        return function
    steps = [one for one in functions if one.workflow == function.workflow]
    first = next((one for one in steps if not feeding(one, steps)), function)
    targets = [
        one
        for workflow in workflows
        if workflow.name == function.workflow
        for one in workflow.notify
    ]
    place = Path(bucket=first.intermediate.bucket)
    return replace(function, runs_place=place, run_notify=tuple(targets))


def listed(storage: Storage) -> dict[str, object]:
    """An output, or an input of a step, in the form of `contract.envelope.Job.outputs`."""
    return {
        "bucket": storage.path.bucket,
        "prefix": storage.path.prefix,
        "suffix": list(storage.suffixes),
        "filter": list(storage.prefixes),
    }


def steps_json(function: Function) -> bytes:
    """The list of steps for the runner; see `lambda_functions/gpu_runner/script/steps.py`."""
    first = function.steps[0]
    steps = [
        {
            "name": step.name,
            "folder": f"script/{step.name}",
            "script": _script_of(step),
            "handler": step.function.handler or "",
            "inputs": [] if step is first else [listed(place) for place in step.function.input],
            "outputs": [listed(place) for place in step.function.output],
            "variables": dict(step.function.container.variables),
        }
        for step in function.steps
    ]
    return (json.dumps(steps, indent=1, ensure_ascii=False) + "\n").encode()


def _script_of(step: Function) -> str:
    script = step.function.init_script
    return f"script/{step.name}/{script.rsplit('/', 1)[-1]}" if script else ""


def _members(document: Document, group: str) -> tuple[Function, ...]:
    """The first step first, the others as in the file."""
    members = [f for f in document.functions.aws if f.group == group]
    firsts = [f for f in members if not _fed(f, members)]
    return tuple(sorted(members, key=lambda f: f not in firsts[:1]))


def _sandbox(document: Document, group: str) -> Workflow | None:
    """The workflow whose shared sandbox the group is; None for a `group:` of steps."""
    return next((one for one in document.sandboxes if one.name == group), None)


def _fed(function: Function, members: list[Function]) -> bool:
    written = [o for f in members if f is not function for o in f.function.output]
    return any(overlap(o, s) for o, s in product(written, function.user_input))


def _merged(members: tuple[Function, ...], sandbox: Workflow | None) -> Function:
    first, own = members[0], None if sandbox is None else sandbox.gpu
    inside = [place for step in members[1:] for place in step.function.input]
    outputs = [o for step in members for o in step.function.output]
    container = first.function.container
    lambda_ = replace(
        first.function,
        name=str(first.group),
        memory_mib=sum(step.function.memory_mib for step in members),
        timeout_s=sum(step.function.timeout_s for step in members),
        description=first.function.description or "steps: " + ", ".join(f.name for f in members),
        init_script=None,
        handler=None,
        container=replace(
            container,
            variables={},
            timeout_threshold_s=max(
                step.function.container.timeout_threshold_s for step in members
            ),
        ),
        output=tuple(dict.fromkeys(o for o in outputs if not _inner(o, inside))),
        preheat=any(step.function.preheat for step in members),
    )
    of_steps = (one for step in members for one in step.notify)
    targets = dict.fromkeys((*of_steps, *(() if sandbox is None else sandbox.notify)))
    return replace(
        first,
        function=lambda_,
        gpu=_gpu(members, own),
        secrets={},
        data={name: one for step in members for name, one in step.data.items()},
        steps=members,
        notify=tuple(targets),
    )


def _inner(output: Storage, inside: list[Storage]) -> bool:
    """Whether steps of the group consume every file of an output, so that none is uploaded."""
    return any(
        output.path.bucket == place.path.bucket
        and output.path.key_prefix.startswith(place.path.key_prefix)
        and (
            not place.suffixes
            or (output.suffixes and all(s.endswith(place.suffixes) for s in output.suffixes))
        )
        for place in inside
    )


def _gpu(members: tuple[Function, ...], own: Gpu | None) -> Gpu | None:
    """One request for all: sums of memory and guarantee, else the largest or the strictest."""
    asking = (*(step.gpu for step in members), own)
    blocks = [gpu for gpu in asking if gpu is not None]
    if not blocks:
        return None
    asked = [gpu.request for gpu in blocks]
    lengths = [one.lease_s for one in asked]
    merged: dict[str, Any] = {
        "count": max(one.count for one in asked),
        "memory_mib": sum(one.memory_mib for one in asked),
        "memory_pct": percent_of(sum(permille_of(one.memory_pct) for one in asked)),
        "memory_max_mib": _least(one.memory_max_mib for one in asked),
        "compute_guarantee_pct": percent_of(sum(one.compute_guarantee_permille for one in asked)),
        "compute_limit_pct": max(one.compute_limit_pct for one in asked),
        "data": tuple(dict.fromkeys(name for one in asked for name in one.data)),
        "programs": tuple(dict.fromkeys(name for one in asked for name in one.programs)),
        "priority": max(one.priority for one in asked),
        "max_wait_s": _least(one.max_wait_s for one in asked),
        "deadline_s": _least(one.deadline_s for one in asked),
        "lease_s": None if None in lengths else sum(length or 0.0 for length in lengths),
    }
    with words_of_a_file():
        return replace(blocks[0], request=replace(asked[0], **merged))


def _least(values: Iterator[_Number | None]) -> _Number | None:
    return min((value for value in values if value is not None), default=None)


# ---------------------------------------------------------------------- errors of groups


def check(document: Document) -> Iterator[Finding]:
    """Errors of groups that cannot be one sandbox, one job, one lease."""
    functions = document.functions.aws
    names = {f.name for f in functions if f.group is None}
    for group in dict.fromkeys(f.group for f in functions if f.group is not None):
        members = [f for f in functions if f.group == group]
        if group in names:
            yield _E, f"{members[0].path}.group", f"a function is named {group!r} too"
        yield from _first(members)
        for other in members[1:]:
            yield from _same(members[0], other)
        own = _sandbox(document, group)
        with_gpu = [f for f in (*members, *_as_step(own, members[0])) if f.gpu is not None]
        for other in with_gpu[1:]:
            yield from _same_gpu(with_gpu[0], other)
        yield from _sums(members, None if own is None else own.gpu)


def _as_step(sandbox: Workflow | None, step: Function) -> list[Function]:
    """A shared sandbox with its own request, in the form of a step."""
    return [] if sandbox is None else [replace(step, gpu=sandbox.gpu, path=sandbox.path)]


def _first(members: list[Function]) -> Iterator[Finding]:
    """Errors of a group without exactly one first step, whose input no other step writes."""
    firsts = [f for f in members if not _fed(f, members)]
    if len(firsts) != 1:
        why = "nothing comes into it" if not firsts else f"{firsts[0].name} begins it too"
        message = f"a group begins with one step, whose input no other step writes: {why}"
        yield _E, f"{(firsts or members)[-1].path}.group", message
        return
    for step in members:
        if step.foreign:
            yield _E, f"{step.path}.job.completion", "a group runs under our runner; write result"
        if step is not firsts[0] and step.job is not None:
            yield _E, f"{step.path}.job", f"jobs of the group start at {firsts[0].name}"


def _same(first: Function, other: Function) -> Iterator[Finding]:
    for key in _SAME_LAMBDA:
        if getattr(first.function, key) != getattr(other.function, key):
            written = _WRITTEN.get(key, key)
            yield _E, f"{other.path}.lambda.{written}", _DIFFERS.format(written, first.name)
    if first.image != other.image:
        yield _E, f"{other.path}.lambda.container", _DIFFERS.format("image", first.name)
    for key in ("execution", "host", "service"):
        if getattr(first, key) != getattr(other, key):
            yield _E, f"{other.path}.{key}", _DIFFERS.format(key, first.name)
    if first.iam != other.iam:
        yield _E, f"{other.path}.iam", _DIFFERS.format("iam", first.name)


def _same_gpu(first: Function, other: Function) -> Iterator[Finding]:
    assert first.gpu is not None, "the caller compares blocks"
    assert other.gpu is not None, "the caller compares blocks"
    mine, theirs = first.gpu.request, other.gpu.request
    differ = [
        option.key
        for option in REQUEST_OPTIONS
        if option.field not in _MERGED
        and getattr(mine, option.field) != getattr(theirs, option.field)
    ]
    if first.gpu.on_unavailable != other.gpu.on_unavailable:
        differ.append("on_unavailable")
    if first.gpu.max_cost_usd != other.gpu.max_cost_usd:
        differ.append("max_cost")
    if other.gpu.slo not in (None, first.gpu.slo):
        differ.append("slo")
    if other.gpu.times and other.gpu.times != first.gpu.times:
        differ.append("times")
    if (other.gpu.warm_min, other.gpu.warm_loads) != (first.gpu.warm_min, first.gpu.warm_loads):
        differ.append("warm_min")
    for key in differ:
        yield _E, f"{other.path}.gpu.{key}", _DIFFERS.format(key, first.name)


_DIFFERS = "{} differs from {}'s: a group has one sandbox and one lease"
#: Keys whose name in a file is another one.
_WRITTEN: Mapping[str, str] = {
    "variables": "environment",
    "ephemeral_storage_mib": "ephemeral_storage",
}


def _sums(members: list[Function], own: Gpu | None) -> Iterator[Finding]:
    path = f"{members[0].path}.group"
    lambdas: list[Lambda] = [f.function for f in members]
    memory, timeout = sum(f.memory_mib for f in lambdas), sum(f.timeout_s for f in lambdas)
    on_host = members[0].on_host or members[0].service is not None
    if memory > LAMBDA_MEMORY_MIB_MAX and not on_host:
        message = f"its steps need {memory} MB together; Lambda has {LAMBDA_MEMORY_MIB_MAX}"
        yield _E, path, message
    if timeout > LAMBDA_TIMEOUT_S_MAX and not on_host:
        message = f"its steps may take {timeout} s together; Lambda has {LAMBDA_TIMEOUT_S_MAX}"
        yield _E, path, message
    try:
        _gpu(tuple(members), own)
    except AppError as error:
        yield _E, path, f"the request of its steps together is invalid: {error.message}"

"""Errors between functions: two triggers for one object, loops, edges that lead nowhere."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from itertools import combinations, product

from corekit.values import replace
from fdl.diagnostics import Finding, Severity
from fdl.graph.graph import cycle, feeding, overlap
from fdl.model import Function, Storage
from fdl.plan.resources import DeployTarget

_E, _W = Severity.ERROR, Severity.WARNING
_OWN = "write `job: {queue: NAME}` with a name of its own"


def workflow_findings(
    functions: tuple[Function, ...], place: DeployTarget | None
) -> Iterator[Finding]:
    """Errors between the functions, or steps, of a file as they are written."""
    rules_alone = place is not None and place.local  # it has no EventBridge
    for left, right in combinations(functions, 2):
        if left.name == right.name:
            yield _E, f"{right.path}.lambda.name", f"{right.name!r} is declared twice"
        if left.group is not None and left.group == right.group:
            continue  # files go from step to step, to as many as want them
        if left.workflow and left.workflow == right.workflow:
            continue  # the orchestrator delivers their files, to as many as want them
        for mine, theirs in product(_triggers(right), _triggers(left)):
            if overlap(mine[1], theirs[1]):
                rules = rules_alone or "eventbridge" not in (mine[1].via, theirs[1].via)
                yield from _shared(left, right, theirs[0], mine[0], functions, rules=rules)
    yield from _cycles(functions)
    yield from _nowhere(functions)


def _shared(
    left: Function,
    right: Function,
    of_left: str,
    of_right: str,
    functions: tuple[Function, ...],
    *,
    rules: bool,
) -> Iterator[Finding]:
    """The error of two functions that take the same objects. `rules`: both by a rule of S3."""
    for step, other, path in ((left, right, of_right), (right, left, of_left)):
        steps = [one for one in functions if one.workflow and one.workflow == step.workflow]
        if feeding(step, steps):
            message = (
                f"the files there stay inside of the workflow {step.workflow}, for {step.name}:"
                f" make {other.name} a step of it, or write another path"
            )
            yield _E, path, message
            return
    if rules:
        message = (
            f"objects there start {left.name} too, and S3 notifies only one function per"
            " object: write another path, or a `suffix` that keeps their objects apart"
        )
        yield _E, of_right, message


def _twice(function: Function) -> Iterator[Finding]:
    """S3 takes no two rules for one object, not even of one function."""
    rules = [
        (path, storage, suffix)
        for path, storage in _triggers(function)
        for suffix in storage.suffixes or ("",)
    ]
    for (_, left, mine), (path, right, theirs) in combinations(rules, 2):
        one = replace(left, suffixes=(mine,)) if mine else left
        other = replace(right, suffixes=(theirs,)) if theirs else right
        if overlap(one, other):
            shown = " and ".join(
                f"{s.path}*{suffix}" for s, suffix in ((one, mine), (other, theirs))
            )
            message = f"{shown} take the same objects: S3 takes one rule for each; keep the wider"
            yield _E, path, message
            return


def deployment_findings(functions: tuple[Function, ...]) -> Iterator[Finding]:
    """Errors about queues, buckets and rules that deployed functions (a group is one) share."""
    for function in functions:
        yield from _twice(function)
        names = function.queue_names
        for queue in dict.fromkeys(name for name in names if names.count(name) > 1):
            message = f"{queue!r} is named for two of its queues; each needs a name of its own"
            yield _E, f"{function.path}.job.queue", message
    for left, right in combinations(functions, 2):
        for queue in right.queue_names:
            if queue in left.queue_names:
                message = f"{left.name} uses the queue {queue!r} too; {_OWN}"
                yield _E, f"{right.path}.job.queue", message
    for function in functions:
        if function.queued:
            yield from _intermediate(function, functions)


def _triggers(function: Function) -> list[tuple[str, Storage]]:
    job = function.job is not None and bool(function.job.input)
    path = f"{function.path}.job.input" if job else f"{function.path}.lambda.input"
    return [(f"{path}[{i}]", storage) for i, storage in enumerate(function.user_input)]


def _intermediate(function: Function, functions: tuple[Function, ...]) -> Iterator[Finding]:
    place, path = function.intermediate, f"{function.path}.job.intermediate"
    for other in functions:
        used = {s.path.bucket for s in (*other.user_input, *other.function.output)}
        if other is not function and other.queued:
            used.add(other.intermediate.bucket)
        if place.bucket in used:
            whose = "this function" if other is function else other.name
            message = (
                f"the bucket {place.bucket!r} is used by {whose} too; envelopes need their own:"
                " write `job: {intermediate: BUCKET}`"
            )
            yield _E, path, message
    if place.prefix:
        yield _W, path, f"the prefix {place.prefix!r} is not used; envelopes have keys of their own"
    declared = function.job.intermediate if function.job is not None else None
    job_input = function.job is not None and bool(function.job.input)
    triggers = function.function.input if declared is not None and job_input else ()
    if declared is not None and triggers and triggers[0].path != declared.path:
        message = "with job.input this is the intermediate place, but job.intermediate differs"
        yield _E, f"{function.path}.lambda.input", message


def _cycles(functions: tuple[Function, ...]) -> Iterator[Finding]:
    """Outputs that lead back to the function's own input, directly or through others."""
    feeders = _feeders(functions)
    while ring := cycle(feeders):
        for position, index in enumerate(ring):
            function, others = functions[index], ring[position + 1 :] + ring[:position]
            through = ", ".join(functions[other].name for other in others)
            way = f" through {through}" if through else ""
            message = f"what it writes triggers {function.name} again{way}; change a prefix"
            yield _E, f"{function.path}.lambda.output", message
        feeders = {at: [one for one in feeders[at] if one not in ring] for at in feeders}


def _feeders(functions: tuple[Function, ...]) -> dict[int, list[int]]:
    """Function → the ones whose outputs may start it."""
    return {
        at: [
            writer
            for writer, other in enumerate(functions)
            if any(overlap(o, s) for o, s in product(other.function.output, function.user_input))
        ]
        for at, function in enumerate(functions)
    }


def _nowhere(functions: tuple[Function, ...]) -> Iterator[Finding]:
    """Outputs without a reader whose path is almost the input of a function without a writer."""
    feeders = _feeders(functions)
    starved = [
        (i, storage)
        for i, reader in enumerate(functions)
        for storage in reader.user_input
        if not any(overlap(o, storage) for f in functions for o in f.function.output)
    ]
    for w, writer in enumerate(functions):
        for index, output in enumerate(writer.function.output):
            if any(overlap(output, s) for f in functions for s in f.user_input):
                continue
            path = f"{writer.path}.lambda.output[{index}]"
            for r, storage in starved:
                upstream = cycle({**feeders, r: [*feeders[r], w]})
                if not upstream and (why := _missed(output, storage)):
                    name = functions[r].name
                    yield _W, path, f"no function reads it, and {name} waits for {why}"
                    break


def _missed(output: Storage, storage: Storage) -> str:
    """The reason why an output just misses an input without a writer; empty = it is not close."""
    if output.path == storage.path:
        wanted = ", ".join(storage.suffixes)
        return f"other names there: only {wanted}"
    if output.path.bucket != storage.path.bucket:
        return ""
    close = difflib.get_close_matches(str(output.path), [str(storage.path)], n=1, cutoff=0.85)
    return f"{storage.path}; is that the same path?" if close else ""

"""Deploys, rollbacks and removals of functions: a plan is prepared, then executed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from corekit.budget import Budget
from corekit.errors import AppError, invalid
from corekit.values import Value
from fdl.diagnostics import Diagnostic, Severity
from fdl.lint.lint import lint
from fdl.model import Document
from fdl.plan import plan as planning
from fdl.plan.desired import DesiredFunction, desired
from fdl.plan.groups import deployed
from fdl.plan.placeholders import at_place
from fdl.plan.plan import Action, Plan, Step
from fdl.plan.resources import FunctionResource, Ledger
from fdl.plan.workflows import desired_workflows
from fdl.written import Written, written
from orchgpu.deploy.files import (
    facts_of,
    known_middlewares,
    located,
    name_of,
    read_document,
    with_objects,
)
from orchgpu.deploy.package import PackedFile, build
from orchgpu.deploy.ports import Cloud
from orchgpu.deploy.revisions import chosen, digest_of, package_of, revision_of
from orchgpu.deploy.visits import VisitSettings, check, desired_visits, visits_name
from orchgpu.deploy.visits_package import build as build_visits

#: Called before each step: its number from 1, the number of steps, the step.
Progress = Callable[[int, int, Step], None]
#: Called with a sentence while a step waits for the cloud.
Notice = Callable[[str], None]


class Drift(Value):
    """The difference between a function's newest revision and the cloud."""

    name: str  #: the function's
    revision: int
    steps: tuple[Step, ...]  #: would restore the revision


class Prepared(Value):
    """A plan with the packages that its steps need."""

    plan: Plan
    names: tuple[str, ...]  #: of the functions
    packages: Mapping[str, bytes]  #: sha256 → zip
    notes: tuple[Diagnostic, ...] = ()
    rewritten: bool = False  #: parts of the file are read as newer keys
    preheated: tuple[str, ...] = ()  #: functions to call once after a change
    wanted: tuple[DesiredFunction, ...] = ()  #: the desired state; empty for a removal
    packed: Mapping[str, tuple[PackedFile, ...]] = {}  #: function → the user's files in its package
    note: str = ""  #: of the revisions that the plan makes
    written: Mapping[str, Written] = {}  #: function → its part of the file
    drift: tuple[Drift, ...] = ()  #: changes outside of deploys, where requested


def validate(path: Path) -> tuple[Document, tuple[Diagnostic, ...]]:
    """Parse and lint a file without any cloud. Raises INVALID or NOT_FOUND."""
    document = read_document(path)
    return document, lint(
        document, files=facts_of(document, path.parent), middlewares=known_middlewares()
    )


def prepare(
    path: Path,
    cloud: Cloud,
    budget: Budget,
    document: Document | None = None,
    *,
    outside: bool = False,
    visits: VisitSettings | None = None,
) -> Prepared:
    """Plan a deploy of a file; changes nothing. Raises INVALID with every error found.

    `document`: the parsed file, where it was read before (standard input can be read once).
    `outside`: packages may have files from outside of the definition's folder. `visits`: an
    orchestrator without a server is deployed with it.
    """
    document = document or read_document(path)
    notes = lint(
        document,
        files=facts_of(document, path.parent),
        place=cloud.place,
        middlewares=known_middlewares(),
    )
    errors = [note for note in notes if note.severity is Severity.ERROR]
    if errors:
        raise invalid("\n".join(note.text(name_of(path)) for note in errors))
    functions = [
        at_place(
            with_objects(located(function, path.parent), path.parent, outside=outside), cloud.place
        )
        for function in deployed(document)
    ]
    facts = cloud.facts(functions)
    built = [build(function, path.parent, outside=outside) for function in functions]
    wanted = [
        desired(function, cloud.place, package.code, budget, facts)
        for function, package in zip(functions, built, strict=True)
    ]
    wanted += desired_workflows(document, functions, cloud.place, budget)
    packages = {package.sha256: package.data for package in built}
    if visits is not None:
        for function in functions:
            check(function, cloud.place, visits)
        for function in functions:
            architecture = next(iter(function.function.architectures), "x86_64")
            code, data = build_visits(
                local=cloud.place.local, architecture=architecture, ca=visits.ca
            )
            packages[code.sha256] = data
            wanted.append(desired_visits(function, cloud.place, code, budget, visits))
    names = tuple(one.name for one in wanted)
    observed = cloud.observe(names, [r for function in wanted for r in function.resources])
    return Prepared(
        plan=planning.plan(wanted, observed, cloud.place),
        names=names,
        packages=packages,
        notes=notes,
        rewritten=bool(document.rewrites),
        preheated=tuple(f.name for f in functions if f.function.preheat),
        packed={f.name: package.files for f, package in zip(functions, built, strict=True)},
        wanted=tuple(wanted),
        written={name: part for name in names if (part := written(document, name)) is not None},
    )


def prepare_rollback(name: str, number: int | None, cloud: Cloud) -> Prepared:
    """Plan a rollback to revision `number`, or to the one before the newest. Changes nothing.

    Raises NOT_FOUND for an unknown function or revision.
    """
    revision = chosen(name, cloud.revisions(name), number)
    wanted = revision.wanted()
    packages = {revision.package: cloud.kept_package(revision)} if revision.package else {}
    observed = cloud.observe([name], wanted.resources)
    return Prepared(
        plan=planning.plan([wanted], observed, cloud.place),
        names=(name,),
        packages=packages,
        wanted=(wanted,),
        note=f"rollback to {revision.number}",
        written={} if revision.written is None else {name: revision.written},
    )


def drifts(names: Sequence[str], cloud: Cloud) -> tuple[Drift, ...]:
    """Find changes made outside since each function's newest revision; changes nothing."""
    found = []
    for name in names:
        kept = cloud.revisions(name)
        if kept:
            wanted = kept[-1].wanted()
            observed = cloud.observe([name], wanted.resources)
            plan = planning.plan([wanted], observed, cloud.place)
            steps = tuple(s for s in plan.steps if not isinstance(s.resource, Ledger))
            if steps:
                found.append(Drift(name=name, revision=kept[-1].number, steps=steps))
    return tuple(found)


def prepare_removal(names: Sequence[str], cloud: Cloud, *, force: bool = False) -> Prepared:
    """Plan the removal of functions; changes nothing. CONFLICT while queues hold messages."""
    visits = [visits_name(name) for name in names]
    observed = cloud.observe([*names, *visits], (), count=not force)
    removed = (*names, *(name for name in visits if name in observed.ledgers))
    plan = planning.removal(removed, observed, cloud.place, force=force)
    return Prepared(plan=plan, names=removed, packages={})


def names_of(target: str) -> tuple[str, ...]:
    """The names of the functions and workflows that a FILE declares, or the NAME itself."""
    path = Path(target)
    if path.is_file() or target.endswith((".yaml", ".yml", ".py")):
        document = read_document(path)
        workflows = (workflow.name for workflow in document.workflows)
        return (*(function.name for function in deployed(document)), *workflows)
    return (target,)


def warm_up(prepared: Prepared, cloud: Cloud) -> tuple[str, ...]:
    """Call every changed function with `preheat` once; a notice for each failure."""
    changed = [
        step.resource.name
        for step in prepared.plan.steps
        if isinstance(step.resource, FunctionResource) and step.action is not Action.DELETE
    ]
    notices = []
    for name in prepared.preheated:
        try:
            if name in changed:
                cloud.warm(name)
        except AppError as error:
            notices.append(f"{name} was not preheated: {error.message}")
    return tuple(notices)


def execute(
    prepared: Prepared, cloud: Cloud, progress: Progress, notice: Notice = lambda _text: None
) -> None:
    """Do every step in order, then keep the state as a revision. The first failure ends it, with
    the step in its message.

    A second run plans again from what exists. `notice` gets a sentence while a step waits.
    """
    _execute(prepared, cloud, progress, notice)
    for wanted in prepared.wanted:
        _keep(wanted, prepared, cloud)
    for name in () if prepared.wanted else prepared.names:
        cloud.forget_revisions(name)


def _keep(wanted: DesiredFunction, prepared: Prepared, cloud: Cloud) -> None:
    kept = cloud.revisions(wanted.name)
    if kept and kept[-1].digest == digest_of(wanted):
        return
    package = package_of(wanted)
    revision = revision_of(
        wanted,
        number=kept[-1].number + 1 if kept else 1,
        at_s=time.time(),
        note=prepared.note,
        plan=prepared.plan,
        package=package,
        written=prepared.written.get(wanted.name),
    )
    cloud.keep(revision, prepared.packages.get(package))


def _execute(prepared: Prepared, cloud: Cloud, progress: Progress, notice: Notice) -> None:
    steps = prepared.plan.steps
    for number, step in enumerate(steps, start=1):
        progress(number, len(steps), step)
        try:
            cloud.apply(step, prepared.packages, notice)
        except AppError as error:
            done = f"step {number} of {len(steps)} ({step.sentence()}) failed: {error.message}"
            hint = "; completed steps stay: run the command again to continue"
            raise AppError(error.code, done + hint, **error.details) from error

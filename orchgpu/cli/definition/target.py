"""Support of commands that deploy: their cloud, their options, and the output of their steps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from corekit.aio.environment import budget_from_environment
from corekit.cli.screen import counted, echo, echo_json
from corekit.cli.text import printable
from corekit.errors import AppError, ErrorCode, invalid
from corekit.units import format_bytes
from corekit.values import replace
from fdl.diagnostics import Diagnostic, Severity
from fdl.model import Document
from fdl.plan.plan import Plan, Step
from orchgpu.cli.definition.capacity import capacity_notes
from orchgpu.cloud_services import Address, DeployCloud
from orchgpu.deploy.deployment import Prepared, execute, prepare
from orchgpu.deploy.files import name_of
from orchgpu.deploy.on_stack import check_names, in_network, network_of, without_network
from orchgpu.deploy.visits import VisitSettings
from orchgpu.infra.outputs import found_stack, record_of
from orchgpu.jobs.provider import provider
from orchgpu.local.home import default_home
from orchgpu.local.stack import STACK_VARIABLE, StackRecord, stack_in_use

#: Packed files that are named in one line; `--json` has all.
_PACKED_MAX = 8


def open_target(
    address: Address, document: Document | None = None
) -> AbstractContextManager[DeployCloud]:
    """The cloud to deploy to; closed with the block."""
    return provider().deploy_cloud(address, declared_address(document))


def declared_address(document: Document | None) -> Address:
    """The region and profile that all functions of a file share."""
    functions = [f.function for f in document.functions.aws] if document is not None else []
    regions = dict.fromkeys(f.region for f in functions if f.region)
    profiles = dict.fromkeys(f.boto_profile for f in functions if f.boto_profile)
    for name, values in (("region", regions), ("boto_profile", profiles)):
        if len(values) > 1:
            raise invalid(f"one deploy has one {name}, but the file names {', '.join(values)}")
    return Address(region=next(iter(regions), None), profile=next(iter(profiles), None))


def stack_of(target: DeployCloud) -> StackRecord | None:
    """The stack that functions are deployed for: the one in use, if it is at the target.

    Raises NOT_FOUND for a named one that the target does not have.
    """
    place, named = target.cloud.place, os.environ.get(STACK_VARIABLE)
    kept = stack_in_use(default_home())
    if kept is not None and (kept.account, kept.region) == (place.account, place.region):
        return kept
    if named:
        if target.stacks is None:
            raise invalid(f"this cloud has no stacks ({target.where})")
        return record_of(found_stack(target.stacks, named), place)
    if kept is not None and not place.local:
        where = f"{kept.account}, {kept.region}, not in {place.account}, {place.region}"
        echo(f"note: the stack {kept.name} is in {where}: it is not used", err=True)
    return None


def prepared_plan(
    file: Path,
    document: Document,
    target: DeployCloud,
    scheduler: str | None,
    address: Address,
    *,
    outside: bool,
    visits: VisitSettings | None = None,
) -> Prepared:
    """A plan, with the scheduler's refusals of its requests as errors among the findings.

    Functions of a stack get its network. Raises INVALID for names that its roles do not reach.
    """
    budget, stack = budget_from_environment(), stack_of(target)
    placed = document if stack is None else in_network(document, stack)
    if stack is not None and visits is not None:
        visits = replace(visits, network=network_of(stack))
    prepared = prepare(file, target.cloud, budget, placed, outside=outside, visits=visits)
    if stack is not None:
        check_names(document, stack, name_of(file))
    if stack is not None and (inside := without_network(document, stack)):
        notice = f"{', '.join(inside)}: in the network of the stack {stack.name}"
        plan = replace(prepared.plan, notices=(*prepared.plan.notices, notice))
        prepared = replace(prepared, plan=plan)
    there = run_address(target, address, document)
    capacity = capacity_notes(document, scheduler, there, elsewhere=visits is not None)
    return replace(prepared, notes=(*prepared.notes, *capacity))


def run_address(target: DeployCloud, address: Address, document: Document) -> Address:
    """The address at which the functions of a file run, once they are deployed to a target."""
    place = target.cloud.place
    profile = None if place.local else declared_address(document).profile
    return Address(
        endpoint_url=address.endpoint_url,
        region=place.region,
        profile=address.profile or profile,
    )


def refuse_infeasible(prepared: Prepared, *, with_reasons: bool) -> None:
    """Raise IMPOSSIBLE when a request of the plan is among the findings as an error.

    `with_reasons`: False where the findings have been printed.
    """
    errors = [note for note in prepared.notes if note.severity is Severity.ERROR]
    if errors:
        reasons = (f"{note.path}: {note.message}" if with_reasons else note.path for note in errors)
        message = (
            f"nothing was deployed, because of {'; '.join(reasons)}. Ask for less, add hosts with"
            " such devices, data (`gpud --data`) or programs (`gpud --program`), declare devices"
            " (`ssgmd --capacity`), or deploy nevertheless with --allow-infeasible"
        )
        raise AppError(ErrorCode.IMPOSSIBLE, message)


def execute_shown(
    prepared: Prepared,
    target: DeployCloud,
    *,
    as_json: bool,
    one_line: bool = False,
    aside: bool = False,
) -> None:
    """Execute a plan and print its steps. `one_line`: of JSON, which is followed by more.

    `aside`: standard output is for something else: nothing of JSON, text on standard error.
    """

    def progress(number: int, count: int, step: Step) -> None:
        if not as_json:
            echo(f"[{number}/{count}] {step.sentence()}", err=aside)

    if not as_json:
        echo_notices(prepared, err=aside)
    execute(prepared, target.cloud, progress, lambda text: echo(f"  {text}", err=True))
    if as_json and not aside:
        indent = None if one_line else 2
        echo_json(plan_json(prepared, target.where, applied=True), indent=indent)


def plan_json(prepared: Prepared, where: str, *, applied: bool) -> dict[str, object]:
    drift = [
        {
            "function": found.name,
            "revision": found.revision,
            "steps": Plan(steps=found.steps).as_json()["steps"],
        }
        for found in prepared.drift
    ]
    return {
        "drift": drift,
        "functions": list(prepared.names),
        "packed": {
            name: [{"name": one.name, "size": one.size, "source": one.source} for one in files]
            for name, files in prepared.packed.items()
        },
        "where": where,
        "applied": applied,
        "plan": prepared.plan.as_json(),
        "notes": [note_json(note) for note in prepared.notes],
    }


def note_json(note: Diagnostic) -> dict[str, object]:
    return {
        "severity": note.severity.value,
        "path": note.path,
        "line": note.at.line,
        "column": note.at.column,
        "message": note.message,
    }


def echo_notes(notes: Sequence[Diagnostic], file: str) -> None:
    """Print findings on standard error, one per line."""
    for note in notes:
        echo(note.text(file), err=True)


def echo_warnings(prepared: Prepared, file: Path) -> None:
    """Findings that need an action; mere notes are left to `fdl validate`."""
    worth_doing = [note for note in prepared.notes if note.severity is not Severity.NOTE]
    echo_notes(worth_doing, name_of(file))
    if prepared.rewritten:
        echo(f"note: `orchgpu fdl migrate {file}` prints the file as it is read", err=True)


def echo_packed(prepared: Prepared) -> None:
    """The user's files in each package: what leaves this machine."""
    for name, files in prepared.packed.items():
        named = [printable(one.name) for one in files[:_PACKED_MAX]]
        more = f" and {len(files) - len(named)} more" if len(files) > len(named) else ""
        size = format_bytes(sum(one.size for one in files))
        if files:
            echo(f"{name}: packs {counted(len(files), 'file')}, {size}: {', '.join(named)}{more}")


def echo_notices(prepared: Prepared, *, err: bool = False) -> None:
    for notice in prepared.plan.notices:
        echo(f"note: {notice}", err=err)

"""The deploy of a file, for every command that does one: and what it prints."""

from __future__ import annotations

from pathlib import Path

from corekit.cli.screen import echo
from corekit.errors import invalid
from fdl.graph.graph import feeding
from fdl.model import Document
from fdl.plan.groups import deployed
from orchgpu.cli.definition.target import (
    echo_warnings,
    execute_shown,
    open_target,
    prepared_plan,
    refuse_infeasible,
    run_address,
)
from orchgpu.cli.options import Deploying
from orchgpu.cloud_services import Address
from orchgpu.deploy.deployment import warm_up
from orchgpu.deploy.visits import VisitSettings


def runnable(document: Document) -> str:
    """The name of the function or workflow that a run of a file starts: its only one.

    Functions whose inputs another one of the file writes are its further steps. Raises INVALID
    when there is none, or several.
    """
    functions = deployed(document)
    firsts = [f.name for f in functions if f.queued and not feeding(f, functions)]
    names = [workflow.name for workflow in document.workflows] or firsts
    if not names:
        raise invalid("the file has no function with jobs: runs of `job: none` cannot be followed")
    if len(names) > 1:
        raise invalid(
            f"the file has several to run: {', '.join(names)}; `orchgpu deploy` deploys all of"
            " them, then `orchgpu run NAME` runs one"
        )
    return names[0]


def deploy(
    file: Path,
    document: Document,
    address: Address,
    scheduler: str | None,
    deploying: Deploying,
    *,
    as_json: bool,
    visits: VisitSettings | None = None,
    one_line: bool = False,
    aside: bool = False,
) -> Address:
    """Deploy what is new of a file; the address at which its functions run.

    `visits`: as of `prepare`; `one_line`, `aside`: as of `execute_shown`. Raises IMPOSSIBLE when no
    known device could ever hold a request of the file.
    """
    with open_target(address, document) as target:
        target.guard(deploying.yes_real_aws)
        outside = deploying.allow_outside
        prepared = prepared_plan(
            file, document, target, scheduler, address, outside=outside, visits=visits
        )
        echo_warnings(prepared, file)
        if not deploying.allow_infeasible:
            refuse_infeasible(prepared, with_reasons=as_json)
        execute_shown(prepared, target, as_json=as_json, one_line=one_line, aside=aside)
        for notice in warm_up(prepared, target.cloud):
            echo(f"note: {notice}", err=True)
        if not as_json:
            done = "deployed" if not prepared.plan.empty else "already deployed"
            echo(f"{', '.join(prepared.names)}: {done} ({target.where})", err=aside)
        return run_address(target, address, document)

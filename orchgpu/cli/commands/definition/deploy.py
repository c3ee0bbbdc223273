"""Deploy the functions of a file."""

from __future__ import annotations

from pathlib import Path

import click

from corekit.cli.screen import echo
from fdl.model import Document
from orchgpu.cli.completing import definition
from orchgpu.cli.definition.target import (
    cloud_options,
    echo_warnings,
    execute_shown,
    open_target,
    prepared_plan,
    refuse_infeasible,
)
from orchgpu.cli.definition.watch import watch
from orchgpu.cli.scheduler import scheduler_option
from orchgpu.cloud_services import Address
from orchgpu.deploy.deployment import warm_up
from orchgpu.deploy.files import read_document


@click.command("deploy")
@click.argument("file", type=click.Path(path_type=Path), shell_complete=definition)
@cloud_options
@scheduler_option
@click.option(
    "--allow-infeasible",
    is_flag=True,
    help="Deploy also what no known device could ever hold; its jobs are rejected until one can.",
)
@click.option(
    "--watch", "watched", is_flag=True, help="Deploy again when FILE or one of its files changes."
)
@click.option("--yes-real-aws", is_flag=True, help="Create resources on real AWS.")
def command(
    file: Path,
    address: Address,
    scheduler: str | None,
    as_json: bool,
    allow_infeasible: bool,
    watched: bool,
    yes_real_aws: bool,
) -> None:
    """Create or update everything that FILE declares. Repeating it changes nothing.

    Nothing is deployed, and the command ends with 7, when no known device could ever hold a request
    of FILE. Without an answer of the scheduler it deploys with a warning.

    FILE may be `-` (standard input). With --watch the command continues until Ctrl-C and deploys
    after every change of FILE, a script, a handler or extra_payload; errors are printed, and the
    next change is awaited. With --json each deploy is one line.

    \b
    Example:  orchgpu deploy fdl.yaml
    """

    def deploy(document: Document) -> None:
        with open_target(address, document) as target:
            target.guard(yes_real_aws)
            prepared = prepared_plan(file, document, target, scheduler)
            echo_warnings(prepared, file)
            if not allow_infeasible:
                refuse_infeasible(prepared, with_reasons=as_json)
            execute_shown(prepared, target, as_json=as_json, one_line=watched)
            for notice in warm_up(prepared, target.cloud):
                echo(f"note: {notice}", err=True)
            if not as_json:
                done = "deployed" if not prepared.plan.empty else "already deployed"
                echo(f"{', '.join(prepared.names)}: {done} ({target.where})")

    if watched:
        watch(file, deploy, as_json=as_json)
    else:
        deploy(read_document(file))

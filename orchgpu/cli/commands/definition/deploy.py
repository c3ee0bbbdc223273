"""Deploy the functions of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from corekit.cli.screen import echo
from corekit.errors import invalid
from fdl.model import Document
from fdl.plan.groups import deployed
from orchgpu.cli.commands.jobs import run
from orchgpu.cli.completing import definition
from orchgpu.cli.definition.target import (
    cloud_options,
    echo_warnings,
    execute_shown,
    open_target,
    outside_option,
    prepared_plan,
    refuse_infeasible,
)
from orchgpu.cli.definition.watch import watch
from orchgpu.cli.options import scheduler_option
from orchgpu.cloud_services import Address
from orchgpu.deploy.deployment import warm_up
from orchgpu.deploy.files import read_document
from orchgpu.deploy.visits import VisitSettings
from orchgpu.jobs.scheduler import scheduler_address


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
@click.option(
    "--run",
    "inputs",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="After the deploy run FILE (repeatable) by the first function with jobs, and wait.",
)
@outside_option
@click.option(
    "--serverless",
    is_flag=True,
    help="Also deploy an orchestrator that runs as functions, and calls --scheduler's address.",
)
@click.option("--visits-role", metavar="ARN", help="Their role: see `orchgpu iam visits`.")
@click.option(
    "--key-secret",
    metavar="REFERENCE",
    help="Entry of a secret store with their key: secretsmanager:NAME or ssm:NAME.",
)
@click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM file of the CA of the scheduler's certificate, for them.",
)
@click.option("--yes-real-aws", is_flag=True, help="Create resources on real AWS.")
def command(
    file: Path,
    address: Address,
    scheduler: str | None,
    as_json: bool,
    allow_infeasible: bool,
    allow_outside: bool,
    watched: bool,
    inputs: tuple[Path, ...],
    serverless: bool,
    visits_role: str | None,
    key_secret: str | None,
    ca: Path | None,
    yes_real_aws: bool,
) -> int:
    """Create or update everything that FILE declares. Repeating it changes nothing.

    Nothing is deployed, and the command ends with 7, when no known device could ever hold a request
    of FILE. Without an answer of the scheduler it deploys with a warning.

    FILE may be `-` (standard input). With --watch the command continues until Ctrl-C and deploys
    after every change of FILE, a script, a handler or extra_payload; errors are printed, and the
    next change is awaited. With --json each deploy is one line. With --run the deploy is followed
    by a run of these files, which decides the exit status; with --watch each change of them, too.

    \b
    Example:  orchgpu deploy fdl.yaml
              orchgpu deploy fdl.yaml --watch --run test.png
    """
    visits = None
    if serverless:
        visits = VisitSettings(
            scheduler=scheduler_address(scheduler),
            role=visits_role or "",
            key_secret=key_secret or "",
            ca=None if ca is None else ca.read_bytes(),
        )
    elif visits_role or key_secret or ca:
        raise invalid("--visits-role, --key-secret and --ca are for --serverless: add it")
    run_files = _runner(inputs, address, scheduler, as_json=as_json)

    def deploy(document: Document) -> int:
        with open_target(address, document) as target:
            target.guard(yes_real_aws)
            prepared = prepared_plan(
                file, document, target, scheduler, outside=allow_outside, visits=visits
            )
            echo_warnings(prepared, file)
            if not allow_infeasible:
                refuse_infeasible(prepared, with_reasons=as_json)
            execute_shown(prepared, target, as_json=as_json, one_line=watched)
            for notice in warm_up(prepared, target.cloud):
                echo(f"note: {notice}", err=True)
            if not as_json:
                done = "deployed" if not prepared.plan.empty else "already deployed"
                echo(f"{', '.join(prepared.names)}: {done} ({target.where})")
        return run_files(document) if inputs else 0

    if watched:
        watch(file, deploy, as_json=as_json, inputs=inputs)
    return deploy(read_document(file))


def _runner(
    inputs: tuple[Path, ...], address: Address, scheduler: str | None, *, as_json: bool
) -> Callable[[Document], int]:
    context = click.get_current_context()

    def run_files(document: Document) -> int:
        served = [function.name for function in deployed(document) if function.queued]
        if not served:
            raise invalid(
                "--run needs a function with jobs: the runs of `job: none` cannot be followed"
            )
        status: int = context.invoke(
            run.command,
            function=served[0],
            given=tuple(map(str, inputs)),
            wait=True,
            again=True,
            endpoint_url=address.endpoint_url,
            region=address.region,
            scheduler=scheduler,
            as_json=as_json,
        )
        return status

    return run_files

"""Deploy the functions of a file."""

from __future__ import annotations

from pathlib import Path

import click

from corekit.errors import invalid
from fdl.model import Document
from orchgpu.cli.completing import definition
from orchgpu.cli.definition.deploying import deploy
from orchgpu.cli.definition.watch import watch
from orchgpu.cli.options import Deploying, cloud_options, deploy_options, scheduler_option
from orchgpu.cloud_services import Address
from orchgpu.deploy.files import read_document
from orchgpu.deploy.visits import VisitSettings
from orchgpu.jobs.scheduler import scheduler_address


@click.command("deploy")
@click.argument("file", type=click.Path(path_type=Path), shell_complete=definition)
@cloud_options
@scheduler_option
@deploy_options
@click.option(
    "--watch", "watched", is_flag=True, help="Deploy again when FILE or one of its files changes."
)
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
def command(
    file: Path,
    address: Address,
    scheduler: str | None,
    as_json: bool,
    deploying: Deploying,
    watched: bool,
    serverless: bool,
    visits_role: str | None,
    key_secret: str | None,
    ca: Path | None,
) -> int:
    """Create or update everything that FILE declares. Repeating it changes nothing.

    Nothing is deployed, and the command ends with 7, when no known device could ever hold a request
    of FILE. Without an answer of the scheduler it deploys with a warning.

    On a stack of `orchgpu infra`, functions with a device and without `vpc` get its network; names
    that its roles do not reach are refused.

    FILE may be `-` (standard input). With --watch the command continues until Ctrl-C and deploys
    after every change of FILE, a script, a handler or extra_payload; errors are printed, and the
    next change is awaited. With --json each deploy is one line. `orchgpu run FILE INPUT` also runs.

    \b
    Example:  orchgpu deploy fdl.yaml
    """
    visits = None
    if serverless:
        visits = VisitSettings(
            scheduler=scheduler_address(scheduler, address),
            role=visits_role or "",
            key_secret=key_secret or "",
            ca=None if ca is None else ca.read_bytes(),
        )
    elif visits_role or key_secret or ca:
        raise invalid("--visits-role, --key-secret and --ca are for --serverless: add it")

    def deploy_now(document: Document) -> None:
        deploy(
            file,
            document,
            address,
            scheduler,
            deploying,
            as_json=as_json,
            visits=visits,
            one_line=watched,
        )

    if watched:
        watch(file, deploy_now, as_json=as_json)
    deploy_now(read_document(file))
    return 0

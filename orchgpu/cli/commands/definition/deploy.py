"""Deploy the functions of a file."""

from __future__ import annotations

from pathlib import Path

import click

from fdl.model import Document
from orchgpu.cli.completing import definition
from orchgpu.cli.definition.deploying import deploy
from orchgpu.cli.definition.watch import watch
from orchgpu.cli.options import Deploying, cloud_options, deploy_options, scheduler_option
from orchgpu.cloud_services import Address
from orchgpu.deploy.files import read_document


@click.command("deploy")
@click.argument("file", type=click.Path(path_type=Path), shell_complete=definition)
@cloud_options
@scheduler_option
@deploy_options
@click.option(
    "--watch", "watched", is_flag=True, help="Deploy again when FILE or one of its files changes."
)
def command(
    file: Path,
    address: Address,
    scheduler: str | None,
    as_json: bool,
    deploying: Deploying,
    watched: bool,
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

    def deploy_now(document: Document) -> None:
        deploy(file, document, address, scheduler, deploying, as_json=as_json, one_line=watched)

    if watched:
        watch(file, deploy_now, as_json=as_json)
    deploy_now(read_document(file))
    return 0

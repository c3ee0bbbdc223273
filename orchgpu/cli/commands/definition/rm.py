"""Remove what a deploy created, but no data."""

from __future__ import annotations

from pathlib import Path

import click

from corekit.cli.screen import echo
from corekit.errors import AppError, ErrorCode
from orchgpu.cli.completing import function_or_definition
from orchgpu.cli.definition.target import execute_shown, open_target
from orchgpu.cli.options import cloud_options
from orchgpu.cloud_services import Address
from orchgpu.deploy.deployment import names_of, prepare_removal
from orchgpu.deploy.files import read_document


@click.command("rm")
@click.argument("target", metavar="FILE|NAME", shell_complete=function_or_definition)
@cloud_options
@click.option("--yes-real-aws", is_flag=True, help="Delete resources on real AWS.")
@click.option("--force", is_flag=True, help="Also remove queues that still hold messages.")
def command(target: str, address: Address, as_json: bool, yes_real_aws: bool, force: bool) -> None:
    """Remove the functions of a FILE, or one by NAME: what a deploy created, but no data.

    A FILE may be removed again; a NAME that is not deployed ends with 3.

    \b
    Example:  orchgpu rm fdl.yaml
    """
    names = names_of(target)
    is_file = (target,) != names and Path(target).is_file()
    document = read_document(Path(target)) if is_file else None
    with open_target(address, document) as opened:
        opened.guard(yes_real_aws)
        prepared = prepare_removal(names, opened.cloud, force=force)
        if prepared.plan.empty and document is None and not prepared.plan.kept:
            message = f"nothing named {target!r} is deployed here ({opened.where})"
            raise AppError(ErrorCode.NOT_FOUND, message)
        execute_shown(prepared, opened, as_json=as_json)
        if not as_json:
            for kept in prepared.plan.kept:
                echo(f"{kept.key.replace('/', ' ', 1)} stays: {kept.reason}")
            done = "removed" if not prepared.plan.empty else "not deployed"
            echo(f"{', '.join(names)}: {done} ({opened.where})")

"""Restore an earlier revision of a function."""

from __future__ import annotations

import click

from corekit.cli.screen import echo
from orchgpu.cli.completing import function as function_name
from orchgpu.cli.definition.target import execute_shown, open_target
from orchgpu.cli.options import cloud_options
from orchgpu.cloud_services import Address
from orchgpu.deploy.deployment import prepare_rollback


@click.command("rollback")
@click.argument("name", shell_complete=function_name)
@click.argument("revision", type=click.IntRange(min=1), required=False)
@cloud_options
@click.option("--yes-real-aws", is_flag=True, help="Change resources on real AWS.")
def command(
    name: str, revision: int | None, address: Address, as_json: bool, yes_real_aws: bool
) -> None:
    """Restore an earlier REVISION of a function. [default: the one before the newest]

    Code, settings, queues and triggers are restored; data stays. The result is a new revision.

    \b
    Example:  orchgpu rollback blast 3
    """
    with open_target(address) as target:
        target.guard(yes_real_aws)
        prepared = prepare_rollback(name, revision, target.cloud)
        execute_shown(prepared, target, as_json=as_json)
        if not as_json:
            done = "done" if not prepared.plan.empty else "nothing to change"
            echo(f"{name}: {prepared.note}: {done} ({target.where})")

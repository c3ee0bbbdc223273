"""Show what a deploy would change."""

from __future__ import annotations

from pathlib import Path

import click

from corekit.cli.program import refused
from corekit.cli.screen import echo, echo_json
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from orchgpu.cli.completing import definition
from orchgpu.cli.definition.target import (
    echo_notices,
    echo_packed,
    echo_warnings,
    open_target,
    plan_json,
    prepared_plan,
)
from orchgpu.cli.options import cloud_options, outside_option, scheduler_option
from orchgpu.cloud_services import Address
from orchgpu.deploy.deployment import Drift, drifts
from orchgpu.deploy.files import read_document

#: Exit status when there are changes to make.
CHANGES_STATUS = 2
#: Exit status for a wrong file, because 2 already means changes.
WRONG_FILE_STATUS = 1


@click.command("plan")
@click.argument("file", type=click.Path(path_type=Path), shell_complete=definition)
@cloud_options
@scheduler_option
@outside_option
@click.option("--refresh", is_flag=True, help="Also show what was changed since the last deploy.")
def command(
    file: Path,
    address: Address,
    scheduler: str | None,
    as_json: bool,
    allow_outside: bool,
    refresh: bool,
) -> int:
    """Show what `deploy FILE` would do. Ends with 2 when there are changes to make, else 0.

    FILE may be `-` (standard input). Ends with 1 for a wrong file.

    \b
    Example:  orchgpu plan fdl.yaml --refresh
    """
    try:
        document = read_document(file)
        with open_target(address, document) as target:
            prepared = prepared_plan(
                file, document, target, scheduler, address, outside=allow_outside
            )
            if refresh:
                prepared = replace(prepared, drift=drifts(prepared.names, target.cloud))
            where = target.where
    except AppError as error:
        if error.code is not ErrorCode.INVALID:
            raise
        refused(error, "orchgpu", as_json=as_json)
        return WRONG_FILE_STATUS
    echo_warnings(prepared, file)
    if as_json:
        echo_json(plan_json(prepared, where, applied=False))
    else:
        echo_packed(prepared)
        echo_notices(prepared)
        _echo_drift(prepared.drift)
        echo(f"{', '.join(prepared.names)} ({where})\n{prepared.plan.text()}")
    return 0 if prepared.plan.empty and not prepared.drift else CHANGES_STATUS


def _echo_drift(drift: tuple[Drift, ...]) -> None:
    for found in drift:
        echo(f"{found.name}: changed since revision {found.revision}; to put it back:")
        for step in found.steps:
            echo(f"  {step.sentence()}")

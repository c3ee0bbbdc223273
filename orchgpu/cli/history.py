"""Options of commands that write or read the history."""

from __future__ import annotations

import os
from pathlib import Path

import click

from corekit.errors import AppError, ErrorCode
from corekit.net.addresses import parse_addresses
from orchgpu.jobs.scheduler import HTTP_VARIABLE
from orchgpu.local.home import default_home
from orchgpu.local.programs import HISTORY_VARIABLE as STORE_VARIABLE

store_option = click.option(
    "--store",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help=f"File of the history. [default: ${STORE_VARIABLE}, else the local system's]",
)


def history_file(given: Path | None) -> Path:
    """The file of the history: the option, the variable, the local system's."""
    named = os.environ.get(STORE_VARIABLE)
    if given is not None or named:
        return given or Path(str(named))
    return default_home().history


def http_addresses(given: str | None) -> str:
    """HTTP endpoints to ask: the option, the variable, the local system. Raises UNAVAILABLE."""
    addresses = given or os.environ.get(HTTP_VARIABLE)
    if addresses:
        parse_addresses(addresses)
        return addresses
    system = default_home().read_system()
    if system is None:
        text = "no HTTP endpoint of a scheduler is known: start a local system with `orchgpu up`"
        raise AppError(
            ErrorCode.UNAVAILABLE, f"{text}, or give --scheduler-http or {HTTP_VARIABLE}"
        )
    return system.scheduler_http

"""Options of commands that name the scheduler or the history, and of services."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from corekit.errors import AppError, ErrorCode
from corekit.net.addresses import parse_addresses
from gpu_scheduler.client.access import CA_VARIABLE, KEY_VARIABLE
from orchgpu.jobs.scheduler import HTTP_VARIABLE
from orchgpu.local.home import default_home
from orchgpu.local.programs import HISTORY_VARIABLE as STORE_VARIABLE
from orchgpu.local.system import SCHEDULER_VARIABLE

P = ParamSpec("P")
T = TypeVar("T")

scheduler_option = click.option(
    "--scheduler",
    metavar="ADDR:PORT[,…]",
    help="Socket endpoint of ssgmd, and those of its standbys. "
    f"[default: ${SCHEDULER_VARIABLE}, else the local system's]",
)
scheduler_http_option = click.option(
    "--scheduler-http",
    metavar="ADDR:PORT[,…]",
    help="HTTP endpoint of ssgmd, and those of its standbys. "
    f"[default: ${HTTP_VARIABLE}, else the local system's]",
)

_key_file_option = click.option(
    "--key-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"File with this program's key of the scheduler. [default: ${KEY_VARIABLE}_FILE]",
)
_ca_option = click.option(
    "--ca",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"CA of the scheduler's certificate; enables TLS. [default: ${CA_VARIABLE}]",
)
store_option = click.option(
    "--store",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help=f"File of the history. [default: ${STORE_VARIABLE}, else the local system's]",
)
metrics_option = click.option(
    "--metrics",
    metavar="ADDR:PORT",
    help="Serve metrics for Prometheus at this address, without a key. Port 0: any free one.",
)
ready_file_option = click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="JSON file, written once the program serves.",
)


def access_options(command: Callable[P, None]) -> Callable[P, None]:
    """`--key-file` and `--ca` of a service, for `find_access`."""
    return _key_file_option(_ca_option(command))


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

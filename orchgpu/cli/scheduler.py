"""Options of commands that name the scheduler, and of services."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from gpu_scheduler.client.access import CA_VARIABLE, KEY_VARIABLE
from orchgpu.jobs.scheduler import HTTP_VARIABLE
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

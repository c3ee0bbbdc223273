"""Options that several commands have: of clouds and deploys, of scheduler, stack and history."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from corekit.cli.screen import json_option
from corekit.errors import AppError, ErrorCode
from corekit.net.addresses import parse_addresses
from corekit.values import Value
from gpu_scheduler.client.access import CA_VARIABLE, KEY_VARIABLE
from orchgpu.cloud_services import Address
from orchgpu.jobs.scheduler import HTTP_VARIABLE
from orchgpu.local.home import default_home
from orchgpu.local.programs import HISTORY_VARIABLE as STORE_VARIABLE
from orchgpu.local.stack import STACK_VARIABLE
from orchgpu.local.system import SCHEDULER_VARIABLE

P = ParamSpec("P")
T = TypeVar("T")

#: The ends of the names of definitions.
DEFINITIONS = (".yaml", ".yml", ".py")

_scheduler_option = click.option(
    "--scheduler",
    metavar="ADDR:PORT[,…]",
    help="Socket endpoint of ssgmd, and those of its standbys. "
    f"[default: ${SCHEDULER_VARIABLE}, else the local system's, else the stack's]",
)
scheduler_http_option = click.option(
    "--scheduler-http",
    metavar="ADDR:PORT[,…]",
    help="HTTP endpoint of ssgmd, and those of its standbys. "
    f"[default: ${HTTP_VARIABLE}, else the local system's]",
)

key_file_option = click.option(
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


def _name_stack(_context: click.Context, _: click.Parameter, name: str | None) -> None:
    if name is not None:  # for all that looks for a stack, and for programs that are started
        os.environ[STACK_VARIABLE] = name


def stack_option(otherwise: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """`--stack`, as `STACK_VARIABLE` then has it. `otherwise`: without a stack, for people."""
    return click.option(
        "--stack",
        metavar="NAME",
        expose_value=False,
        callback=_name_stack,
        help="The stack of `orchgpu infra` to use; '' for none. [default: "
        f"${STACK_VARIABLE}, else the one that this folder's home keeps, else {otherwise}]",
    )


def scheduler_option(command: Callable[P, T]) -> Callable[P, T]:
    """`--scheduler`, and `--stack`, whose scheduler is the last default."""
    return _scheduler_option(stack_option("none")(command))


def access_options(command: Callable[P, None]) -> Callable[P, None]:
    """`--key-file` and `--ca` of a service, for `find_access`."""
    return key_file_option(_ca_option(command))


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


def cloud_options(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """The options of every command that deploys; the command gets an `Address`."""

    @functools.wraps(command)
    def call(
        endpoint_url: str | None, region: str | None, profile: str | None, **options: object
    ) -> int | None:
        address = Address(endpoint_url=endpoint_url, region=region, profile=profile)
        return command(address=address, **options)

    for option in (
        json_option,
        click.option("--profile", help="AWS profile. [default: the file's boto_profile]"),
        click.option(
            "--region",
            help="AWS region. [default: the file's, else the environment's, else the stack's]",
        ),
        click.option("--endpoint-url", help="Endpoint of S3, SQS and Lambda."),
    ):
        option(call)
    return call


def outside_option(command: Callable[..., int | None]) -> Callable[..., int | None]:
    return click.option(
        "--allow-outside", is_flag=True, help="Pack files from outside of FILE's folder too."
    )(command)


class Deploying(Value):
    """The options of a deploy."""

    allow_infeasible: bool
    allow_outside: bool
    yes_real_aws: bool


def deploy_options(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """The options of every command that deploys a file; the command gets a `Deploying`."""

    @functools.wraps(command)
    def call(
        allow_infeasible: bool, allow_outside: bool, yes_real_aws: bool, **options: object
    ) -> int | None:
        deploying = Deploying(
            allow_infeasible=allow_infeasible,
            allow_outside=allow_outside,
            yes_real_aws=yes_real_aws,
        )
        return command(deploying=deploying, **options)

    for option in (
        click.option("--yes-real-aws", is_flag=True, help="Create resources on real AWS."),
        outside_option,
        click.option(
            "--allow-infeasible",
            is_flag=True,
            help="Deploy also what no known device could ever hold; its jobs are rejected until one"
            " can.",
        ),
    ):
        option(call)
    return call


def is_definition(text: str) -> bool:
    """True for `-` and for what is called as a definition is; no function has such a name."""
    return text == "-" or text.lower().endswith(DEFINITIONS)

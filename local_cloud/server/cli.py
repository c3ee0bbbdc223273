"""`python -m local_cloud.server`: one embedded cloud as a process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from corekit.aio.process import exiting_by_code, log_as_json, run_program, write_ready
from corekit.cli.settings import Option, options_from
from corekit.decode import encode
from corekit.net.addresses import parse_address
from local_cloud.model.weather import parse_weather
from local_cloud.process import ProgramOptions, until_failed
from local_cloud.server.application import Options, running
from local_cloud.server.signatures import (
    ACCESS_KEY_VARIABLE,
    FILE_NAME,
    SECRET_KEY_VARIABLE,
    key_pair,
)

_PROGRAM = "local cloud"


@dataclass(frozen=True, kw_only=True)
class ServerOptions(ProgramOptions):
    """The options of a server."""

    listen: Annotated[str, Option("Address; port 0 = any.")] = "127.0.0.1:0"
    allow_host: Annotated[
        tuple[str, ...],
        Option(
            "Additional host name under which clients and web pages may reach the cloud"
            " (repeatable).",
            metavar="NAME",
        ),
    ] = ()
    verify_signatures: Annotated[
        bool,
        Option(
            f"Refuse requests that the cloud's key pair did not sign; it is in {FILE_NAME} of the"
            f" state directory, or in {ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE}."
        ),
    ] = False
    weather: Annotated[
        str,
        Option(
            "Delays and refusals of the cloud: none, aws, or as in aws:scale=0.02,seed=7.",
            metavar="NAME[:FIELD=VALUE,…]",
        ),
    ] = "none"


@click.command()
@options_from(ServerOptions)
def main(options: ServerOptions) -> None:
    """S3, SQS and Lambda on this machine, under the AWS protocols."""
    log_as_json()
    with exiting_by_code(_PROGRAM):
        host, port = parse_address(options.listen)
        server = Options(
            host=host,
            port=port,
            state=options.state,
            region=options.region,
            concurrency_max=options.concurrency,
            allowed_hosts=options.allow_host,
            weather=parse_weather(options.weather),
            keys=key_pair(options.state, os.environ) if options.verify_signatures else None,
        )
    run_program(_PROGRAM, _serve(server, options.ready_file))


async def _serve(options: Options, ready_file: Path | None) -> None:
    async with running(options) as context:
        keys = {} if options.keys is None else {"credentials": encode(options.keys)}
        fields = {
            "endpoint": context.endpoint,
            "region": options.region,
            "weather": "" if options.weather.empty else str(options.weather),
            **keys,
        }
        write_ready(ready_file, fields, private=bool(keys))
        await until_failed(context.nursery)

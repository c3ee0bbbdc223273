"""`python -m local_cloud.server`: one embedded cloud as a process."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click

from corekit.aio.process import log_as_json, stop_signal, write_ready
from corekit.decode import encode
from corekit.errors import EXIT_STATUS, AppError
from corekit.net.addresses import parse_address
from local_cloud.model.weather import parse_weather
from local_cloud.process import until_stopped
from local_cloud.server.application import Options, running
from local_cloud.server.signatures.keys import (
    ACCESS_KEY_VARIABLE,
    FILE_NAME,
    SECRET_KEY_VARIABLE,
    key_pair,
)


@click.command()
@click.option("--listen", default="127.0.0.1:0", show_default=True, help="Address; port 0 = any.")
@click.option(
    "--state",
    required=True,
    type=click.Path(path_type=Path),
    help="State directory, kept over restarts.",
)
@click.option(
    "--ready-file", type=click.Path(path_type=Path), help="JSON file, written when it is ready."
)
@click.option("--region", default="us-east-1", show_default=True, help="Region of its ARNs.")
@click.option("--concurrency", default=64, show_default=True, help="Limit of concurrent runs.")
@click.option(
    "--allow-host",
    multiple=True,
    metavar="NAME",
    help="Additional host name under which clients and web pages may reach the cloud (repeatable).",
)
@click.option(
    "--verify-signatures",
    is_flag=True,
    help="Refuse requests that the cloud's key pair did not sign; it is in"
    f" {FILE_NAME} of the state directory, or in {ACCESS_KEY_VARIABLE} and"
    f" {SECRET_KEY_VARIABLE}.",
)
@click.option(
    "--weather",
    default="none",
    show_default=True,
    metavar="NAME[:FIELD=VALUE,…]",
    help="Delays and refusals of the cloud: none, aws, or as in aws:scale=0.02,seed=7.",
)
def main(
    listen: str,
    state: Path,
    ready_file: Path | None,
    region: str,
    concurrency: int,
    allow_host: tuple[str, ...],
    verify_signatures: bool,
    weather: str,
) -> None:
    """S3, SQS and Lambda on this machine, under the AWS protocols."""
    log_as_json()
    try:
        host, port = parse_address(listen)
        options = Options(
            host=host,
            port=port,
            state=state,
            region=region,
            concurrency_max=concurrency,
            allowed_hosts=allow_host,
            weather=parse_weather(weather),
            keys=key_pair(state, os.environ) if verify_signatures else None,
        )
        asyncio.run(_serve(options, ready_file))
    except AppError as error:
        click.echo(f"local cloud: {error.message}", err=True)
        sys.exit(EXIT_STATUS[error.code])


async def _serve(options: Options, ready_file: Path | None) -> None:
    stop = stop_signal()
    async with running(options) as context:
        keys = {} if options.keys is None else {"credentials": encode(options.keys)}
        fields = {
            "endpoint": context.endpoint,
            "region": options.region,
            "weather": "" if options.weather.empty else str(options.weather),
            **keys,
        }
        write_ready(ready_file, fields, private=bool(keys))
        await until_stopped(stop, context.nursery)

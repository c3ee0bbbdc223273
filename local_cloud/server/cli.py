"""`python -m local_cloud.server`: one embedded cloud as a process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import click

from corekit.errors import EXIT_STATUS, AppError, ErrorCode, invalid
from local_cloud.json_logging import log_as_json_lines
from local_cloud.server.application import Options, running


@click.command()
@click.option("--listen", default="127.0.0.1:0", show_default=True, help="Address; port 0 = any.")
@click.option("--state", required=True, type=click.Path(path_type=Path), help="Kept over restarts.")
@click.option("--ready-file", type=click.Path(path_type=Path), help="JSON, written once it serves.")
@click.option("--region", default="us-east-1", show_default=True)
@click.option("--concurrency", default=64, show_default=True, help="Functions that run at once.")
def main(listen: str, state: Path, ready_file: Path | None, region: str, concurrency: int) -> None:
    """S3, SQS and Lambda on this machine, under the AWS protocols."""
    log_as_json_lines()
    try:
        host, port = parse_address(listen)
        options = Options(
            host=host, port=port, state=state, region=region, concurrency_max=concurrency
        )
        asyncio.run(_serve(options, ready_file))
    except AppError as error:
        click.echo(f"local cloud: {error.message}", err=True)
        sys.exit(EXIT_STATUS[error.code])


async def _serve(options: Options, ready_file: Path | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running(options) as context:
        if ready_file is not None:
            write_ready(ready_file, {"endpoint": context.endpoint, "region": options.region})
        stopping = context.nursery.start(stop.wait(), "stop")
        failing = context.nursery.start(context.nursery.failed(), "watch")
        await asyncio.wait([stopping, failing], return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            raise AppError(ErrorCode.INTERNAL, "a background task failed; see the log")


def parse_address(text: str) -> tuple[str, int]:
    """`host:port`. Raises INVALID."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise invalid(f"{text!r} is not an address; write host:port, for example 127.0.0.1:0")
    return host, int(port)


def write_ready(path: Path, addresses: dict[str, str]) -> None:
    """Tell whoever started us that we serve: one JSON object, written atomically."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    fresh.write_text(json.dumps({"pid": os.getpid(), **addresses}) + "\n")
    fresh.replace(path)

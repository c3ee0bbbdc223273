"""`python -m local_cloud.bridge`: runs the functions of one moto server, as a process."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from corekit.aio.clock import SystemClock
from corekit.aio.process import log_as_json, stop_signal, write_ready
from corekit.aio.supervise import Nursery
from corekit.errors import EXIT_STATUS, AppError
from local_cloud.bridge.bridge import Bridge
from local_cloud.bridge.moto import Moto
from local_cloud.model.functions.environments import EnvironmentPool
from local_cloud.process import CloudClock, until_stopped
from local_cloud.sandbox.log_store import LogStore
from local_cloud.sandbox.runtime import Runtime
from local_cloud.sandbox.sandbox import Sandbox


@click.command()
@click.option(
    "--endpoint", required=True, help="URL of the moto server, for example http://127.0.0.1:5000."
)
@click.option(
    "--state",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder for code and scratch files.",
)
@click.option(
    "--ready-file", type=click.Path(path_type=Path), help="JSON file, written when it is ready."
)
@click.option("--region", default="us-east-1", show_default=True, help="Region of moto's ARNs.")
@click.option("--concurrency", default=64, show_default=True, help="Limit of concurrent runs.")
def main(
    endpoint: str, state: Path, ready_file: Path | None, region: str, concurrency: int
) -> None:
    """Run the functions that a moto server only holds."""
    log_as_json()
    try:
        asyncio.run(_serve(Moto(endpoint.rstrip("/"), region), state, ready_file, concurrency))
    except AppError as error:
        click.echo(f"bridge: {error.message}", err=True)
        sys.exit(EXIT_STATUS[error.code])


async def _serve(moto: Moto, state: Path, ready_file: Path | None, concurrency: int) -> None:
    stop = stop_signal()
    bridges: list[Bridge] = []
    sandbox = Sandbox(
        state / "environments",
        runtime=Runtime(state / "runtime", endpoint=moto.endpoint, region=moto.region),
        pool=EnvironmentPool(concurrency_max=concurrency),
        logs=LogStore(),
        clock=SystemClock(),
        revisions=lambda: bridges[0].revisions() if bridges else {},
    )
    try:
        async with sandbox, Nursery("bridge") as nursery:
            clock = CloudClock(SystemClock())
            bridge = await Bridge.start(moto, sandbox, state, nursery, clock)
            bridges.append(bridge)
            write_ready(ready_file, {"endpoint": moto.endpoint})
            try:
                await until_stopped(stop, nursery)
            finally:
                bridge.close()
    finally:
        moto.close()

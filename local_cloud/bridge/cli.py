"""`python -m local_cloud.bridge`: runs the functions of one moto server, as a process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import click

from corekit.aio.clock import SystemClock
from corekit.aio.process import log_as_json, run_program, write_ready
from corekit.aio.supervise import Nursery
from corekit.cli.settings import Option, options_from
from local_cloud.bridge.bridge import Bridge
from local_cloud.bridge.moto import Moto
from local_cloud.model.functions.environments import EnvironmentPool
from local_cloud.process import CloudClock, ProgramOptions, until_failed
from local_cloud.sandbox.log_store import LogStore
from local_cloud.sandbox.runtime import Runtime
from local_cloud.sandbox.sandbox import Sandbox


@dataclass(frozen=True, kw_only=True)
class BridgeOptions(ProgramOptions):
    """The options of a bridge."""

    endpoint: Annotated[str, Option("URL of the moto server, for example http://127.0.0.1:5000.")]


@click.command()
@options_from(BridgeOptions)
def main(options: BridgeOptions) -> None:
    """Run the functions that a moto server only holds."""
    log_as_json()
    run_program("bridge", _serve(options))


async def _serve(options: BridgeOptions) -> None:
    moto, state = Moto(options.endpoint.rstrip("/"), options.region), options.state
    bridges: list[Bridge] = []
    sandbox = Sandbox(
        state / "environments",
        runtime=Runtime(state / "runtime", endpoint=moto.endpoint, region=moto.region),
        pool=EnvironmentPool(concurrency_max=options.concurrency),
        logs=LogStore(),
        clock=SystemClock(),
        revisions=lambda: bridges[0].revisions() if bridges else {},
    )
    try:
        async with sandbox, Nursery("bridge") as nursery:
            clock = CloudClock(SystemClock())
            bridge = await Bridge.start(moto, sandbox, state, nursery, clock)
            bridges.append(bridge)
            write_ready(options.ready_file, {"endpoint": moto.endpoint})
            try:
                await until_failed(nursery)
            finally:
                bridge.close()
    finally:
        moto.close()

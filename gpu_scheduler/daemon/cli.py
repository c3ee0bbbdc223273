"""`ssgmd`: the scheduler as a process."""

from __future__ import annotations

from pathlib import Path

import click

from corekit.aio.environment import budget_from_environment
from corekit.aio.process import log_as_json, run_program, write_ready
from gpu_scheduler.daemon.app import DaemonSettings, running_daemon
from gpu_scheduler.monitor.probes import FileProbe


@click.command()
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder of journal, lock and master key; made when absent.",
)
@click.option("--listen", default="127.0.0.1:0", show_default=True, help="Socket door.")
@click.option("--http", default="127.0.0.1:0", show_default=True, help="HTTP door.")
@click.option(
    "--capacity",
    type=click.Path(path_type=Path),
    default=None,
    help="Inventory file of devices that may register later; a request that only they "
    "could serve waits instead of being impossible.",
)
@click.option("--ready-file", type=click.Path(path_type=Path), default=None,
              help='Written once it serves: {"pid", "socket", "http", "epoch"}.')  # fmt: skip
def main(
    state: Path, listen: str, http: str, capacity: Path | None, ready_file: Path | None
) -> None:
    """Who gets which device: the one writer of leases and job records.

    SIGTERM stops it cleanly (exit 0); hosts and orchestrators wait for the next start.
    """
    log_as_json()
    run_program("ssgmd", _serve(state, listen, http, capacity, ready_file))


async def _serve(
    state: Path, listen: str, http: str, capacity: Path | None, ready_file: Path | None
) -> None:
    declared = None if capacity is None else await FileProbe(capacity, "declared").devices()
    settings = DaemonSettings(
        state=state, budget=budget_from_environment(), listen=listen, http=http, capacity=declared
    )
    async with running_daemon(settings) as daemon:
        addresses = {"socket": daemon.socket, "http": daemon.http, "epoch": daemon.epoch}
        write_ready(ready_file, addresses)
        await daemon.nursery.failed()

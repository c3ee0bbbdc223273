"""`orchgpu orchestrate`: one replica of the orchestrator, in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

from orchgpu.cli.scheduler import scheduler_option
from orchgpu.cli.terminal.completing import function as function_name


@click.command(short_help="Serve the jobs of deployed functions.")
@scheduler_option
@click.option(
    "--ready-file", type=click.Path(dir_okay=False, path_type=Path), help="Written once it serves."
)
@click.option(
    "--function",
    "functions",
    multiple=True,
    metavar="NAME",
    shell_complete=function_name,
    help="Serve only this function (repeatable). [default: all]",
)
@click.option(
    "--key-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Holds the scheduler's key; else ORCHGPU_SCHEDULER_KEY_FILE.",
)
@click.option(
    "--ca",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TLS to the scheduler by this CA; else ORCHGPU_SCHEDULER_CA.",
)
@click.option("--replica", help="Name in logs. [default: made from host and process]")
def orchestrate(
    scheduler: str | None,
    ready_file: Path | None,
    functions: tuple[str, ...],
    key_file: Path | None,
    ca: Path | None,
    replica: str | None,
) -> None:
    """Serve the jobs of deployed functions until SIGTERM. Start as many as you like.

    \b
    Example:  orchgpu orchestrate --scheduler 10.0.0.7:4700
    """
    from gpu_scheduler.client.access import find_access
    from orchgpu.app import run
    from orchgpu.cli.scheduler import scheduler_address
    from orchgpu.settings import OrchestratorSettings

    run(
        OrchestratorSettings(
            scheduler=scheduler_address(scheduler),
            ready_file=ready_file,
            functions=functions,
            replica=replica,
            access=find_access(key_file=key_file, ca=ca),
        )
    )

"""Serve the jobs of deployed functions."""

from __future__ import annotations

from pathlib import Path

import click

from gpu_scheduler.client.access import find_access
from orchgpu.app import run
from orchgpu.cli.completing import function as function_name
from orchgpu.cli.scheduler import scheduler_address, scheduler_option
from orchgpu.settings import OrchestratorSettings


@click.command("orchestrate")
@scheduler_option
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="JSON file, written once the orchestrator serves.",
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
    help="File with the scheduler's key. [default: $ORCHGPU_SCHEDULER_KEY_FILE]",
)
@click.option(
    "--ca",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="CA of the scheduler's certificate; enables TLS. [default: $ORCHGPU_SCHEDULER_CA]",
)
@click.option(
    "--metrics",
    metavar="ADDRESS:PORT",
    help="Serve metrics for Prometheus at this address, without a key. Port 0: any free one.",
)
@click.option(
    "--emf",
    metavar="NAMESPACE",
    help="Log the metrics in CloudWatch's embedded metric format, for this namespace.",
)
@click.option("--replica", help="Name in logs. [default: made from host and process]")
def command(
    scheduler: str | None,
    ready_file: Path | None,
    functions: tuple[str, ...],
    key_file: Path | None,
    ca: Path | None,
    metrics: str | None,
    emf: str | None,
    replica: str | None,
) -> None:
    """Serve the jobs of deployed functions until SIGTERM. Any number of replicas may run.

    \b
    Example:  orchgpu orchestrate --scheduler 10.0.0.7:4700
    """
    run(
        OrchestratorSettings(
            scheduler=scheduler_address(scheduler),
            ready_file=ready_file,
            functions=functions,
            replica=replica,
            metrics=metrics,
            emf=emf,
            access=find_access(key_file=key_file, ca=ca),
        )
    )

"""Serve the jobs of deployed functions."""

from __future__ import annotations

from pathlib import Path

import click

from gpu_scheduler.client.access import find_access
from orchgpu.cli.completing import function as function_name
from orchgpu.cli.options import (
    access_options,
    metrics_option,
    ready_file_option,
    scheduler_option,
)
from orchgpu.jobs.provider import provider_name
from orchgpu.jobs.scheduler import scheduler_address
from orchgpu.replica.app import run
from orchgpu.replica.startup import OrchestratorSettings


@click.command("orchestrate")
@scheduler_option
@ready_file_option
@click.option(
    "--function",
    "functions",
    multiple=True,
    metavar="NAME",
    shell_complete=function_name,
    help="Serve only this function (repeatable). [default: all]",
)
@access_options
@metrics_option
@click.option(
    "--emf",
    metavar="NAMESPACE",
    help="Log the metrics in CloudWatch's embedded metric format, for this namespace.",
)
@click.option(
    "--search-every",
    "search_every_s",
    type=click.FloatRange(1, 86400),
    metavar="SECONDS",
    help="Search for uploads without a job this often: low where no events come. [default: 900]",
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
    search_every_s: float | None,
    replica: str | None,
) -> None:
    """Serve the jobs of deployed functions until SIGTERM. Any number of replicas may run.

    \b
    Example:  orchgpu orchestrate --scheduler 10.0.0.7:4700
    """
    run(
        OrchestratorSettings(
            cloud=provider_name(),
            scheduler=scheduler_address(scheduler),
            ready_file=ready_file,
            functions=functions,
            replica=replica,
            metrics=metrics,
            emf=emf,
            search_every_s=search_every_s,
            access=find_access(key_file=key_file, ca=ca),
        )
    )

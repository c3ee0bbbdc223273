"""Collect the history of jobs and devices."""

from __future__ import annotations

from pathlib import Path

import click

from corekit.errors import invalid
from corekit.units import parse_duration_s
from gpu_scheduler.client.access import find_access
from orchgpu.cli.options import (
    access_options,
    history_file,
    http_addresses,
    ready_file_option,
    scheduler_http_option,
    store_option,
)
from orchgpu.history.consumer import HistorySettings, run
from orchgpu.history.store import Bounds

MIB = 2**20


@click.command("collect")
@scheduler_http_option
@store_option
@click.option(
    "--keep", default="30d", show_default=True, metavar="DURATION", help="Age of the oldest jobs."
)
@click.option(
    "--size-mib",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    help="Size of the file, above which its oldest jobs leave it.",
)
@access_options
@ready_file_option
def command(
    scheduler_http: str | None,
    store: Path | None,
    keep: str,
    size_mib: int,
    key_file: Path | None,
    ca: Path | None,
    ready_file: Path | None,
) -> None:
    """Collect the history of jobs, leases and devices in a file, until SIGTERM.

    `orchgpu report` and the console read it. One process per file; `orchgpu up` starts one. It
    continues where it stopped; what the scheduler has forgotten meanwhile is missing.

    \b
    Example:  orchgpu collect --scheduler-http 10.0.0.7:4780 --store /var/lib/orchgpu/history.sqlite
    """
    age_s = parse_duration_s(keep)
    if age_s <= 0:
        raise invalid(f"--keep {keep!r}: a history needs a length, such as 30d")
    run(
        HistorySettings(
            http=http_addresses(scheduler_http),
            store=history_file(store),
            bounds=Bounds(age_s=age_s, size_bytes=size_mib * MIB),
            access=find_access(key_file=key_file, ca=ca),
            ready_file=ready_file,
        )
    )

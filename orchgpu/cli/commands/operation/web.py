"""Serve the web console."""

from __future__ import annotations

from pathlib import Path

import click

from corekit.errors import invalid
from gpu_scheduler.client.access import find_access
from orchgpu.cli.options import (
    access_options,
    history_file,
    metrics_option,
    ready_file_option,
    scheduler_http_option,
    scheduler_option,
    store_option,
)
from orchgpu.jobs.scheduler import events_of, scheduler_address
from orchgpu.web.app import run
from orchgpu.web.console import ConsoleSettings, server_context


@click.command("web")
@scheduler_option
@scheduler_http_option
@click.option(
    "--listen",
    default="127.0.0.1:4790",
    show_default=True,
    metavar="ADDR:PORT",
    help="Address of the console; port 0: any free one.",
)
@access_options
@click.option(
    "--tls-cert",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Certificate chain of the console, PEM; browsers then use https.",
)
@click.option(
    "--tls-key", type=click.Path(path_type=Path), metavar="FILE", help="Private key of it, PEM."
)
@click.option(
    "--behind-tls", is_flag=True, help="A proxy in front of it speaks TLS with the browsers."
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="More host names of the console, where the scheduler has no keys (repeatable).",
)
@click.option(
    "--allow-origin",
    "allowed_origins",
    multiple=True,
    metavar="URL",
    help="Origin whose pages may call /v1 with a key, as in https://lab.example (repeatable).",
)
@store_option
@metrics_option
@ready_file_option
def command(
    scheduler: str | None,
    scheduler_http: str | None,
    listen: str,
    key_file: Path | None,
    ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    behind_tls: bool,
    allowed_hosts: tuple[str, ...],
    allowed_origins: tuple[str, ...],
    store: Path | None,
    metrics: str | None,
    ready_file: Path | None,
) -> None:
    """Serve the web console until SIGTERM: fleet, queue, jobs, functions, activity, settings.

    People log in with a key of the scheduler and have its rights; without keys, the console listens
    on loopback only. `orchgpu up` starts one.

    \b
    Example:  orchgpu web --scheduler 10.0.0.7:4700 --key-file web.key
    """
    if (tls_cert is None) != (tls_key is None):
        raise invalid("--tls-cert and --tls-key belong together")
    tls = None if tls_cert is None or tls_key is None else server_context(tls_cert, tls_key)
    run(
        ConsoleSettings(
            scheduler=scheduler_address(scheduler),
            events=events_of(scheduler, scheduler_http),
            listen=listen,
            access=find_access(key_file=key_file, ca=ca),
            tls=tls,
            behind_tls=behind_tls,
            allowed_hosts=allowed_hosts,
            allowed_origins=allowed_origins,
            history=history_file(store),
            metrics=metrics,
            ready_file=ready_file,
        )
    )

"""Stop the local system."""

from __future__ import annotations

import click

from corekit.cli.screen import echo, echo_json, json_option
from orchgpu.local.home import default_home
from orchgpu.local.system import stop_system


@click.command("down")
@json_option
def command(as_json: bool) -> None:
    """Stop the local system in order. The state stays in its folder, except that moto's is lost.

    \b
    Example:  orchgpu down
    """
    home = default_home()
    system = home.read_system()
    stopped = stop_system(home)
    forgot = stopped and system is not None and system.cloud == "moto"
    if as_json:
        echo_json({"stopped": stopped, "cloud_kept": not forgot})
        return
    if not stopped:
        echo("nothing was running")
        return
    echo(f"stopped; its state stays in {home.path}")
    if forgot:
        echo("except moto's buckets, queues and functions, which were in memory: deploy again")

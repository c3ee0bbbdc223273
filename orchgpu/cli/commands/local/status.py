"""Processes and endpoints of the local system."""

from __future__ import annotations

import click

from corekit.cli.screen import echo, echo_json, echo_table, json_option
from corekit.cli.table import Column
from corekit.errors import EXIT_STATUS, ErrorCode
from orchgpu.cli.local.launching import endpoints_of
from orchgpu.local.home import default_home
from orchgpu.local.system import health, healthy, running_system

PROCESSES = (
    Column(name="PROCESS"),
    Column(name="PID", drop_order=3),
    Column(name="HEALTH"),
    Column(name="RESTARTS", drop_order=2),
    Column(name="ADDRESS", shrink_order=2, width_min=12, keep="end", drop_order=4),
    Column(name="LOG", shrink_order=1, width_min=16, keep="end", drop_order=1),
)


@click.command("status")
@json_option
def command(as_json: bool) -> int:
    """Processes and endpoints of the local system; ends with 8 when one is not healthy.

    \b
    Example:  orchgpu status --json
    """
    system = running_system(default_home())
    good = {process.name: healthy(process) for process in system.processes}
    if as_json:
        processes = [
            {
                "name": process.name,
                "pid": process.pid,
                "healthy": good[process.name],
                "state": process.state,
                "restarts": process.restarts,
                "address": process.address,
                "log": process.log,
            }
            for process in system.processes
        ]
        about = {"cloud": system.cloud, "endpoints": endpoints_of(system)}
        echo_json({**about, "processes": processes})
    else:
        rows = [
            (
                process.name,
                str(process.pid),
                health(process, good=good[process.name]),
                str(process.restarts),
                process.address or "-",
                process.log,
            )
            for process in system.processes
        ]
        echo_table(PROCESSES, rows, empty="no process")
        for name, address in endpoints_of(system).items():
            echo(f"{name}: {address}")
    return 0 if all(good.values()) else EXIT_STATUS[ErrorCode.UNAVAILABLE]

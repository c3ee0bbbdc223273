"""Hosts and devices with their leases."""

from __future__ import annotations

import click

from corekit.cli.chart import BLOCKS, Glyphs, bar
from corekit.cli.screen import (
    echo,
    echo_json,
    echo_table,
    json_option,
    output_glyphs,
    terminal_width,
)
from corekit.cli.table import Column
from corekit.decode import encode
from corekit.units import format_percent
from gpu_scheduler.data_names import host_text
from gpu_scheduler.floors import floor_lines
from gpu_scheduler.model import Health, HostState
from gpu_scheduler.protocol.answers import DeviceView, HostView
from orchgpu.cli.options import scheduler_option
from orchgpu.jobs.scheduler import ask, scheduler_address

DEVICES = (
    Column(name="HOST", shrink_order=3, width_min=8),
    Column(name="STATE"),
    Column(name="DEVICE", shrink_order=4, width_min=6),
    Column(name="KIND", drop_order=6),
    Column(name="MODEL", shrink_order=2, width_min=14, drop_order=7),
    Column(name="MEMORY FREE"),
    Column(name="COMPUTE FREE", drop_order=5),
    Column(name="LEASES", drop_order=4),
    Column(name="WARM", drop_order=3),
    Column(name="USE", drop_order=2),
    Column(name="DETAIL", shrink_order=1, width_min=16, drop_order=1),
)
#: The columns on a terminal: also bars of what is lent.
_MEMORY = 5  #: index of the column `MEMORY FREE`
DEVICES_WITH_BARS = (
    *DEVICES[:_MEMORY],
    Column(name="MEMORY", drop_order=9),
    DEVICES[_MEMORY],
    Column(name="COMPUTE", drop_order=8),
    *DEVICES[_MEMORY + 1 :],
)
BAR_WIDTH = 10


@click.command("gpus")
@scheduler_option
@json_option
def command(scheduler: str | None, as_json: bool) -> None:
    """Hosts and devices: state, free memory and compute, leases, warm workers, utilisation.

    On a terminal a bar shows the part of each device's memory and compute that is lent.

    \b
    Example:  orchgpu gpus
    """
    inventory = ask(scheduler_address(scheduler), lambda client: client.inventory())
    hosts = sorted(inventory.hosts, key=lambda host: host.host)
    if as_json:
        rest = {name: encode(getattr(inventory, name)) for name in ("declared", "fleet", "floors")}
        echo_json({"hosts": encode(hosts), **rest})
        return
    drawn = terminal_width() is not None
    rows = [
        row_with_bars(host, view, output_glyphs()) if drawn else device_row(host, view)
        for host in hosts
        for view in host.devices
    ]
    columns = DEVICES_WITH_BARS if drawn else DEVICES
    echo_table(columns, rows, empty="no host has registered")
    for host in hosts:
        if text := host_text(host.host, host.data, host.programs):
            echo(text)
    for pool in () if inventory.fleet is None else inventory.fleet.pools:
        echo(pool.text)
    for line in floor_lines(inventory.floors, inventory.floors_left_out):
        echo(line)


def device_row(host: HostView, view: DeviceView) -> tuple[str, ...]:
    device = view.device
    problems = [
        *(["drained"] if view.drained else []),
        *([device.health.value] if device.health is not Health.OK else []),
    ]
    lost = host.state is HostState.LOST  # its free capacity is unknown and not lent
    used = "-" if lost or view.usage is None else f"{view.usage.utilisation_pct} %"
    return (
        host.host,
        host.state.value,
        str(device.index) + "".join(f" ({word})" for word in problems),
        device.kind.value,
        device.model,
        f"{'-' if lost else view.memory_free_mib}/{device.memory_mib} MiB",
        "-" if lost else format_percent(view.compute_free_pct),
        str(len(view.leases)),
        f"{len(view.residents)}, {view.resident_mib} MiB" if view.residents else "0",
        used,
        device.detail,
    )


def row_with_bars(host: HostView, view: DeviceView, glyphs: Glyphs = BLOCKS) -> tuple[str, ...]:
    row = device_row(host, view)
    memory, compute = lent_shares(view)
    if host.state is HostState.LOST:
        bars = ("-", "-")
    else:
        bars = (bar(memory, BAR_WIDTH, glyphs), bar(compute, BAR_WIDTH, glyphs))
    return (*row[:_MEMORY], bars[0], row[_MEMORY], bars[1], *row[_MEMORY + 1 :])


def lent_shares(view: DeviceView) -> tuple[float, float]:
    """The parts of a device's memory and compute, from 0 to 1, that leases hold."""
    total_mib = view.device.memory_mib
    memory = 1.0 - view.memory_free_mib / total_mib if total_mib else 0.0
    return memory, 1.0 - view.compute_free_pct / 100

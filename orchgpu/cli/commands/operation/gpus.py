"""Hosts and devices with their leases."""

from __future__ import annotations

import click

from corekit.cli.screen import echo_json, echo_table, json_option
from corekit.cli.table import Column
from corekit.decode import encode
from corekit.units import format_percent
from gpu_scheduler.model import Health, HostState
from gpu_scheduler.protocol.answers import DeviceView, HostView
from orchgpu.cli.scheduler import ask, scheduler_address, scheduler_option

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


@click.command("gpus")
@scheduler_option
@json_option
def command(scheduler: str | None, as_json: bool) -> None:
    """Hosts and devices: state, free memory and compute, leases, warm workers, utilisation.

    \b
    Example:  orchgpu gpus
    """
    inventory = ask(scheduler_address(scheduler), lambda client: client.inventory())
    hosts = sorted(inventory.hosts, key=lambda host: host.host)
    if as_json:
        echo_json({"hosts": encode(hosts), "declared": encode(inventory.declared)})
        return
    rows = [device_row(host, view) for host in hosts for view in host.devices]
    echo_table(DEVICES, rows, empty="no host has registered")


def device_row(host: HostView, view: DeviceView) -> tuple[str, ...]:
    """One device in the columns of `DEVICES`."""
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

"""`ssgm-monitor`: the host's side without gpud. Its devices are advisory: nothing enforces leases.

For hosts whose remote-GPU server is not ours (rCUDA and the like): the scheduler counts what it
lends there and tells callers where it is; the host itself opens and closes nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import click

from corekit.aio.command import DaemonCommand
from corekit.aio.environment import budget_from_environment
from corekit.aio.process import exiting_by_code, log_as_json, run_program, write_ready
from corekit.errors import invalid
from gpu_scheduler.client.access import CA_VARIABLE, KEY_VARIABLE, find_access
from gpu_scheduler.monitor.link import HostLink
from gpu_scheduler.monitor.ports import Probe
from gpu_scheduler.monitor.probes import PROBES, FileProbe, probe_of
from gpu_scheduler.monitor.watched import WatchedHost


@click.command(
    "ssgm-monitor",
    cls=DaemonCommand,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="orchgpu", prog_name="ssgm-monitor")
@click.option("--scheduler", required=True, metavar="HOST:PORT", help="Socket door of ssgmd.")
@click.option("--host-id", required=True, help="Name of this host, unique in the system.")
@click.option(
    "--inventory",
    type=click.Path(path_type=Path),
    default=None,
    help="YAML or JSON file of devices; read again for every report.",
)
@click.option(
    "--probe",
    "probe_kind",
    type=click.Choice(PROBES),
    default=None,
    help="Look for devices instead.",
)
@click.option("--middleware", multiple=True, metavar="NAME", help="What serves it here: rcuda.")
@click.option("--key-file", type=click.Path(path_type=Path), help=f"Key; else {KEY_VARIABLE}.")
@click.option("--ca", type=click.Path(path_type=Path), help=f"TLS by this CA; else {CA_VARIABLE}.")
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path),
    default=None,
    help='Written once registered: {"pid", "host", "epoch"}.',
)
def main(
    scheduler: str,
    host_id: str,
    inventory: Path | None,
    probe_kind: str | None,
    middleware: tuple[str, ...],
    key_file: Path | None,
    ca: Path | None,
    ready_file: Path | None,
) -> None:
    """Watch this host's devices and report them to the scheduler in real time.

    For hosts whose remote-GPU server is not ours, such as rCUDA's: nothing is opened or cut here,
    so its devices go only to requests that say --advisory, and to those of classic ssgm.

    \b
    Example:  ssgm-monitor --scheduler 10.0.1.10:4700 --host-id k80 --probe nvml
    """
    log_as_json()
    with exiting_by_code("ssgm-monitor"):
        if (inventory is None) is (probe_kind is None):
            raise invalid(f"give exactly one of --inventory FILE and --probe {'|'.join(PROBES)}")
        access, budget = find_access(key_file=key_file, ca=ca), budget_from_environment()
        probe: Probe = (
            FileProbe(inventory, host_id)
            if inventory
            else probe_of(str(probe_kind), host_id, budget.probe_answer_s)
        )
    connect = functools.partial(
        HostLink,
        scheduler,
        host=host_id,
        control=WatchedHost(),
        probe=probe,
        gateway=None,
        budget=budget,
        access=access,
        middlewares=middleware,
    )
    run_program("ssgm-monitor", _watch(connect, probe, ready_file))


async def _watch(connect: Callable[[], HostLink], probe: Probe, ready_file: Path | None) -> None:
    try:
        async with connect() as link:
            await link.registered()
            write_ready(ready_file, {"host": link.host, "epoch": link.epoch_seen})
            await link.failed()
    finally:
        await probe.close()

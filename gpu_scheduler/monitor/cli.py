"""`ssgm-monitor`: the monitor of a host without gpud, whose devices are advisory.

For hosts with another remote-GPU server (such as rCUDA): the scheduler accounts for its leases
there and gives callers the address; no lease is enforced on the host.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from corekit.aio.environment import budget_from_environment
from corekit.aio.metrics_endpoint import metrics_endpoint
from corekit.aio.process import exiting_by_code, log_as_json, run_program, write_ready
from corekit.cli.program import DaemonCommand
from corekit.cli.settings import Option, options_from
from corekit.errors import invalid
from gpu_scheduler.client.access import CA_VARIABLE, KEY_FILE_VARIABLE, find_access
from gpu_scheduler.monitor.link import HostLink
from gpu_scheduler.monitor.ports import Probe
from gpu_scheduler.monitor.probes import PROBES, FileProbe, probe_of
from gpu_scheduler.monitor.watched import WatchedHost


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorOptions:
    """One field for each option of `ssgm-monitor`."""

    scheduler: Annotated[
        str, Option("Socket endpoint of ssgmd, and those of its standbys.", metavar="HOST:PORT[,…]")
    ]
    host_id: Annotated[str, Option("Name of this host, unique in the system.")]
    inventory: Annotated[
        Path | None, Option("YAML or JSON file of devices; read again for every report.")
    ] = None
    probe: Annotated[
        str | None, Option("Probe that finds the devices, instead of a file.", choices=PROBES)
    ] = None
    middleware: Annotated[
        tuple[str, ...],
        Option("A middleware that serves the devices, such as rcuda (repeatable).", metavar="NAME"),
    ] = ()
    key_file: Annotated[
        Path | None, Option(f"File with the key for ssgmd. [default: ${KEY_FILE_VARIABLE}]")
    ] = None
    ca: Annotated[
        Path | None, Option(f"CA of ssgmd's certificate; enables TLS. [default: ${CA_VARIABLE}]")
    ] = None
    metrics: Annotated[
        str | None,
        Option(
            "Serve metrics for Prometheus at this address, without a key. Port 0: any free one.",
            metavar="ADDRESS:PORT",
        ),
    ] = None
    ready_file: Annotated[
        Path | None,
        Option(
            'JSON file, written once the host is registered: {"pid", "host", "epoch", "metrics"}.'
        ),
    ] = None


@click.command(
    "ssgm-monitor",
    cls=DaemonCommand,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="orchgpu", prog_name="ssgm-monitor")
@options_from(MonitorOptions)
def main(options: MonitorOptions) -> None:
    """Watch this host's devices and report them to the scheduler in real time.

    For hosts with another remote-GPU server, such as rCUDA's: no lease is enforced here, so these
    devices serve only requests with --advisory and those of classic ssgm.

    \b
    Example:  ssgm-monitor --scheduler 10.0.1.10:4700 --host-id k80 --probe nvml
    """
    log_as_json()
    with exiting_by_code("ssgm-monitor"):
        if (options.inventory is None) is (options.probe is None):
            raise invalid(f"give exactly one of --inventory FILE and --probe {'|'.join(PROBES)}")
        access = find_access(key_file=options.key_file, ca=options.ca)
        budget, host = budget_from_environment(), options.host_id
        probe: Probe = (
            FileProbe(options.inventory, host)
            if options.inventory
            else probe_of(str(options.probe), host, budget.probe_answer_s)
        )
    connect = functools.partial(
        HostLink,
        options.scheduler,
        host=host,
        control=WatchedHost(),
        probe=probe,
        gateway=None,
        budget=budget,
        access=access,
        middlewares=options.middleware,
    )
    run_program("ssgm-monitor", _watch(connect, probe, options.ready_file, options.metrics))


async def _watch(
    connect: Callable[[], HostLink], probe: Probe, ready_file: Path | None, metrics: str | None
) -> None:
    try:
        async with (
            connect() as link,
            metrics_endpoint(metrics, link.metrics_lines) as addresses,
        ):
            await link.registered()
            write_ready(ready_file, {"host": link.host, "epoch": link.epoch_seen, **addresses})
            await link.failed()
    finally:
        await probe.close()

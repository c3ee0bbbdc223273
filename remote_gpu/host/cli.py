"""`gpud`: the command of a GPU host."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import ipaddress
import logging
import os
import pkgutil
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from corekit.aio.command import DaemonCommand
from corekit.aio.environment import budget_from_environment
from corekit.aio.process import log_as_json, raise_descriptor_limit, write_ready
from corekit.errors import EXIT_STATUS, AppError, ErrorCode, invalid
from corekit.ids import HostId
from corekit.units import parse_memory_mib
from gpu_scheduler.client.access import (
    CA_VARIABLE,
    KEY_FILE_VARIABLE,
    KEY_VARIABLE,
    Access,
    find_access,
)
from gpu_scheduler.client.channel import parse_address
from gpu_scheduler.monitor.link import HostLink
from gpu_scheduler.monitor.ports import Probe
from gpu_scheduler.monitor.probes import probe_of
from remote_gpu.host.app import HostSettings, RunningHost, running_host
from remote_gpu.host.gateway.tls import HostTls
from remote_gpu.host.probe import CpuSettings, HostProbe, default_memory_mib, parse_cpus
from remote_gpu.host.servers.variables import MPS_DIRECTORY
from remote_gpu.host.servers.visible import check_middlewares, visible_devices
from remote_gpu.middleware import names
from remote_gpu.worker import operations as known_operations
from remote_gpu.worker.isolation.policy import Setting
from remote_gpu.worker.isolation.privacy import make_undumpable, take
from remote_gpu.worker.operation import BATCH_WAIT_S
from remote_gpu.worker.programs import Program, parse_program

logger = logging.getLogger(__name__)


#: Of `--opencl`: the probe that lists so many.
_OPENCL: Mapping[str, Sequence[str]] = {"none": (), "cards": ("opencl-cards",), "all": ("opencl",)}


_ISOLATION = """What a tenant computes is taken for hostile. Each lease's worker is isolated by
what this machine has, as the log says at the start: a user per lease (as root), user and process
namespaces, no network, Landlock, seccomp, a cgroup. Where files (a user per lease, or Landlock) or
system calls (seccomp) cannot be restricted, kernels on CPUs and the operation exec are refused, or,
with --isolation require, gpud does not start."""


@click.command(
    "gpud",
    cls=DaemonCommand,
    epilog=_ISOLATION,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="orchgpu", prog_name="gpud")
@click.option("--host-id", required=True, help="Name of this host, unique in the system.")
@click.option("--scheduler", required=True, metavar="ADDRESS:PORT", help="ssgmd's socket door.")
@click.option("--listen", default="127.0.0.1:0", show_default=True, help="The gateway; 0 = any.")
@click.option("--advertise", default="", metavar="ADDRESS:PORT", help="The gateway for functions.")
@click.option("--door-ports", default="", metavar="FIRST-LAST", help="Of classic leases; 0 = any.")
@click.option("--key-file", type=click.Path(path_type=Path), help=f"Key; else {KEY_VARIABLE}.")
@click.option("--ca", type=click.Path(path_type=Path), help=f"TLS by this CA; else {CA_VARIABLE}.")
@click.option("--state", required=True, type=click.Path(path_type=Path), help="Folder for logs.")
@click.option("--cpus", default="", help="Cores to own, as 0,2-3; default: all we may use.")
@click.option("--cpus-shared-with", multiple=True, metavar="HOST", help="Owns the same cores.")
@click.option("--memory-mib", default="", help="To lend; default: half of the machine's.")
@click.option("--data", multiple=True, metavar="NAME=PATH", help="Host-resident data.")
@click.option("--operation", multiple=True, metavar="NAME", help="Offer these; default: all.")
@click.option("--program", multiple=True, metavar="NAME=COMMAND", help="What `exec` may run.")
@click.option(
    "--batch-wait-ms",
    type=click.FloatRange(0, 1000),
    default=BATCH_WAIT_S * 1000,
    show_default=True,
    help="How long calls of one model wait for each other.",
)
@click.option("--middleware", multiple=True, metavar="NAME=PROGRAM", help="Serve this one too.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="PEM; needs --tls-key.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="PEM, not encrypted.")
@click.option("--require-tls", is_flag=True, help="TLS for programs of this machine too.")
@click.option("--nvml/--no-nvml", default=True, help="List NVIDIA devices where there are any.")
@click.option(
    "--opencl",
    type=click.Choice(["none", "cards", "all"]),
    default="none",
    show_default=True,
    help="Lend OpenCL devices; all: CPUs too, though --cpus lends them already.",
)
@click.option(
    "--mps",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    expose_value=False,
    callback=lambda _context, _option, folder: _use_mps(folder),
    help="NVIDIA MPS holds leases to their part of a card; where its control daemon listens.",
)
@click.option(
    "--isolation",
    type=click.Choice([one.value for one in Setting]),
    default=Setting.AUTO.value,
    show_default=True,
    help="Of leases from each other and this host. none: for the machine of a single tenant.",
)
@click.option("--ready-file", type=click.Path(path_type=Path), help="Written once registered.")
def main(
    host_id: str,
    scheduler: str,
    listen: str,
    advertise: str,
    door_ports: str,
    key_file: Path | None,
    ca: Path | None,
    state: Path,
    cpus: str,
    cpus_shared_with: tuple[str, ...],
    memory_mib: str,
    data: tuple[str, ...],
    operation: tuple[str, ...],
    program: tuple[str, ...],
    batch_wait_ms: float,
    middleware: tuple[str, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    require_tls: bool,
    nvml: bool,
    opencl: str,
    isolation: str,
    ready_file: Path | None,
) -> None:
    """Lend this host's devices to leases of the scheduler, through one authenticated port.

    Serves until SIGTERM or SIGINT. Timings follow ORCHGPU_TIME_SCALE.

    \b
    Example:  gpud --host-id gpu-a --scheduler 10.0.1.10:4700 \\
                   --listen 10.0.1.21:4711 --state /var/lib/gpud
    """
    log_as_json()
    try:
        _hide()
        parse_address(scheduler)  # before anything is started
        address, port = _address("--listen", listen)
        told = _told(advertise or listen)
        access = _access(key_file, ca)
        settings = HostSettings(
            host=HostId(host_id),
            state=state,
            cpu=CpuSettings(
                host=HostId(host_id),
                cpus=parse_cpus(cpus),
                memory_mib=parse_memory_mib(memory_mib) if memory_mib else default_memory_mib(),
                shared_with=cpus_shared_with,
            ),
            budget=budget_from_environment(),
            listen_address=address,
            listen_port=port,
            advertise_address=told[0],
            door_ports=_ports(door_ports),
            data=_data(data),
            operations=_operations(operation),
            programs=_programs(program),
            batch_wait_s=batch_wait_ms / 1000,
            middlewares=_middlewares(middleware),
            tls=_tls(tls_cert, tls_key, require_tls),
            isolation=Setting(isolation),
            secret_files=_secret_files(key_file),
        )
        drivers = (*(["nvml"] if nvml else []), *_OPENCL[opencl])
        upstream = Upstream(scheduler=scheduler, access=access, advertise=told, drivers=drivers)
        raise_descriptor_limit()  # before anything is accepted: a connection is a descriptor
        asyncio.run(_serve(settings, upstream, ready_file))
    except AppError as error:
        click.echo(f"gpud: {error.message}", err=True)
        sys.exit(EXIT_STATUS[error.code])


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """How this host stands with the scheduler."""

    scheduler: str  #: "address:port"
    access: Access
    advertise: tuple[str, int]  #: the gateway as functions reach it; port 0 = the one it got
    drivers: Sequence[str]  #: whose devices are told beside the CPU; of `monitor.probes.PROBES`


async def _serve(settings: HostSettings, upstream: Upstream, ready_file: Path | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if settings.middlewares:
        visible = await visible_devices(settings.host)
        check_middlewares(settings.middlewares, visible)
        settings = replace(settings, visible=visible)
    async with running_host(settings) as host:
        probe = HostProbe(
            [host.cpu, *await _answering(upstream.drivers, settings)],
            settings.budget.host_lost_s,
            host.offer,
        )
        try:
            async with HostLink(
                upstream.scheduler,
                host=settings.host,
                control=host.daemon,
                probe=probe,
                gateway=_advertised(upstream.advertise, host.gateway),
                budget=settings.budget,
                access=upstream.access,
                middlewares=("builtin", *settings.middlewares),
            ) as link:
                host.daemon.link, host.daemon.memory = link, probe
                await _until_stopped(stop, host, link, ready_file)
                await host.daemon.close()  # while the link can still tell of it
                host.daemon.link = None
        finally:
            await probe.close()


async def _until_stopped(
    stop: asyncio.Event, host: RunningHost, link: HostLink, ready_file: Path | None
) -> None:
    """Announce the host once it is registered; return at a signal, raise what a task raised."""

    async def announce() -> None:
        await link.registered()
        write_ready(ready_file, {"gateway": host.gateway})
        logger.info("serving", extra={"event": "serving", "gateway": host.gateway})

    host.nursery.start(announce(), "announce")
    waits = [
        host.nursery.start(stop.wait(), "stop"),
        asyncio.ensure_future(host.nursery.failed()),
        asyncio.ensure_future(link.failed()),
    ]
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # raises what a task of ours raised: a bug ends the program
    finally:
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _answering(drivers: Sequence[str], settings: HostSettings) -> list[Probe]:
    """A probe for each driver that answers here."""
    found: list[Probe] = []
    for driver in drivers:
        probe = probe_of(driver, settings.host, settings.budget.probe_answer_s)
        try:
            await probe.devices()
        except AppError as error:
            await probe.close()
            logger.info("no devices", extra={"driver": driver, "why": error.message})
        else:
            found.append(probe)
    return found


def _hide() -> None:
    """Other processes of this user read neither our memory nor our first environment."""
    try:
        make_undumpable()
    except OSError as error:
        raise AppError(ErrorCode.UNAVAILABLE, f"gpud cannot hide its memory: {error}") from None


def _access(key_file: Path | None, ca: Path | None) -> Access:
    """How the scheduler is reached; its key is in no environment from now on."""
    access = find_access(key_file=key_file, ca=ca)
    take((KEY_VARIABLE,))
    return access


def _secret_files(key_file: Path | None) -> tuple[Path, ...]:
    named = os.environ.get(KEY_FILE_VARIABLE)
    return tuple(one for one in (key_file, Path(named) if named else None) if one is not None)


def _use_mps(folder: Path | None) -> None:
    """All that gpud starts are clients of this MPS; without one, of what the driver finds."""
    if folder is not None:
        if not (folder / "control").exists():
            text = f"no MPS control daemon listens in {folder}: start nvidia-cuda-mps-control"
            raise click.BadParameter(text, param_hint="--mps")
        os.environ[MPS_DIRECTORY] = str(folder)


def _told(text: str) -> tuple[str, int]:
    """The gateway as clients reach it. Raises INVALID for an address that nobody can connect to."""
    told = _address("--advertise", text)
    if _is_any(told[0]):
        raise invalid(f"nobody can connect to {told[0]}: say --advertise ADDRESS:PORT")
    return told


def _address(option: str, text: str) -> tuple[str, int]:
    address, _, port = text.rpartition(":")
    if not address or not port.isdecimal() or int(port) > 65535:
        raise invalid(f"{option} {text!r} is not ADDRESS:PORT, as 127.0.0.1:0")
    return address.strip("[]"), int(port)


def _tls(certificate: Path | None, key: Path | None, required: bool) -> HostTls | None:
    if (certificate is None) != (key is None):
        raise invalid("--tls-cert and --tls-key go together")
    if certificate is None or key is None:
        if required:
            raise invalid("--require-tls needs --tls-cert and --tls-key")
        return None
    return HostTls.load(certificate, key, required=required)


def _ports(text: str) -> range:
    first, dash, last = text.partition("-")
    if not text:
        return range(1)
    if not dash or not (first.isdecimal() and last.isdecimal()):
        raise invalid(f"--door-ports {text!r} is not FIRST-LAST, as 20000-20999")
    if not 0 < int(first) <= int(last) <= 65535:
        raise invalid(f"--door-ports {text!r} must lie in 1-65535, the first before the last")
    return range(int(first), int(last) + 1)


def _is_any(address: str) -> bool:
    """True for 0.0.0.0 and ::, where a server listens and nobody can connect."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address).is_unspecified
    return False


def _advertised(told: tuple[str, int], gateway: str) -> str:
    address, port = told
    shown = f"[{address}]" if ":" in address else address
    return f"{shown}:{port or gateway.rpartition(':')[2]}"


def _operations(names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `--operation`: names of the modules in `remote_gpu/worker/operations`."""
    known = sorted(module.name for module in pkgutil.iter_modules(known_operations.__path__))
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
            raise invalid(f"--operation {name!r} is unknown; {meant}")
    return names


def _programs(items: Iterable[str]) -> dict[str, Program]:
    """Commands of `--program`: `blast=/usr/bin/blastp -db nr -evalue {evalue}`."""
    found: dict[str, Program] = {}
    for item in items:
        name, equals, command = item.partition("=")
        if not equals or not name:
            raise invalid(f"--program {item!r} is not NAME=COMMAND")
        if name in found:
            raise invalid(f"--program {name!r} is given twice")
        try:
            found[name] = parse_program(command)
        except ValueError as error:
            raise invalid(f"--program {name}: {error}") from None
    return found


def _middlewares(items: Iterable[str]) -> dict[str, Path]:
    """The programs of `--middleware`; nothing else is ever started for a client."""
    found: dict[str, Path] = {}
    served = [name for name in names() if name != "builtin"]
    for item in items:
        name, equals, path = item.partition("=")
        if not equals or name not in served:
            raise invalid(
                f"--middleware {item!r} is not NAME=PROGRAM with one of {', '.join(served)}"
            )
        if name in found:
            raise invalid(f"--middleware {name!r} is given twice")
        program = Path(path)
        if not program.is_absolute() or not program.is_file() or not os.access(program, os.X_OK):
            raise invalid(f"--middleware {name}: {path!r} is not the absolute path of a program")
        found[name] = program
    return found


def _data(items: Iterable[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for item in items:
        name, equals, path = item.partition("=")
        if not equals or not name or "/" in name:
            raise invalid(f"--data {item!r} is not NAME=PATH")
        if name in found:
            raise invalid(f"--data {name!r} is given twice")
        if not Path(path).exists():
            raise invalid(f"--data {name}: there is no {path}")
        found[name] = Path(path).resolve()
    return found

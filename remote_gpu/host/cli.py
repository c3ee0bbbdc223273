"""`gpud`: the command of a GPU host."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click

from corekit.aio.environment import budget_from_environment
from corekit.aio.metrics_endpoint import metrics_endpoint
from corekit.aio.process import (
    log_as_json,
    raise_descriptor_limit,
    write_ready,
)
from corekit.aio.supervise import until_first
from corekit.cli.program import DaemonCommand
from corekit.cli.settings import options_from
from corekit.errors import EXIT_STATUS, AppError, ErrorCode, invalid
from corekit.ids import HostId
from corekit.net.addresses import parse_address, parse_addresses
from corekit.suggest import one_of_known
from corekit.units import parse_memory_mib
from gpu_scheduler.client.access import (
    KEY_FILE_VARIABLE,
    KEY_VARIABLE,
    Access,
    find_access,
)
from gpu_scheduler.client.joining import IamJoin
from gpu_scheduler.data_names import is_data_name
from gpu_scheduler.names import HOST_PROGRAMS
from remote_gpu.host.app import HostSettings, RunningHost, running_host
from remote_gpu.host.credentials.tls import HostTls
from remote_gpu.host.departure.departure import Departure
from remote_gpu.host.departure.metadata import (
    InstanceMetadata,
    MetadataWatch,
    endpoint_of,
    is_on_ec2,
)
from remote_gpu.host.departure.notices import ITEMS, NoticeSource
from remote_gpu.host.devices.emulation import EmulatedDevices
from remote_gpu.host.devices.probe import CpuSettings, default_memory_mib, parse_cpus
from remote_gpu.host.environment import MPS_DIRECTORY
from remote_gpu.host.options import HostOptions, OnRebalance, OpenClDevices, WatchMetadata
from remote_gpu.host.servers.visible import check_middlewares, visible_devices
from remote_gpu.isolation.privileges import make_undumpable, take
from remote_gpu.middleware import names
from remote_gpu.worker.programs.programs import ListedProgram, parse_program
from remote_gpu.worker.registry import installed

logger = logging.getLogger(__name__)


#: Probes of `--opencl`, by its value.
_OPENCL: Mapping[OpenClDevices, Sequence[str]] = {
    OpenClDevices.NONE: (),
    OpenClDevices.CARDS: ("opencl-cards",),
    OpenClDevices.ALL: ("opencl",),
}


_ISOLATION = """A tenant's code is assumed to be hostile. Each lease's worker is isolated by the
mechanisms of this machine, which gpud logs when it starts: a user per lease (as root), user and
process namespaces, no network, Landlock, seccomp, a cgroup. Where files (a user per lease, or
Landlock) or system calls (seccomp) cannot be restricted, gpud refuses kernels on CPUs and the
operation exec; with --isolation require, it does not start."""


@click.command(
    "gpud",
    cls=DaemonCommand,
    epilog=_ISOLATION,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="orchgpu", prog_name="gpud")
@options_from(HostOptions)
def main(options: HostOptions) -> None:
    """Lend this host's devices to the scheduler's leases through one authenticated port.

    Serves until SIGTERM or SIGINT: then it takes no new leases, waits until the live ones have
    ended, --drain-s at most, and ends with 0. A second signal ends it at once. Timings follow
    ORCHGPU_TIME_SCALE.

    \b
    Example:  gpud --host-id gpu-a --scheduler 10.0.1.10:4700 \\
                   --listen 10.0.1.21:4711 --state /var/lib/gpud
    """
    log_as_json()
    try:
        _hide()
        _use_mps(options.mps)
        parse_addresses(options.scheduler)  # before anything is started
        settings = replace(_settings(options), descriptors=raise_descriptor_limit())
        asyncio.run(_serve(settings))
    except AppError as error:
        click.echo(f"gpud: {error.message}", err=True)
        sys.exit(EXIT_STATUS[error.code])


def _drivers(options: HostOptions) -> tuple[str, ...]:
    if options.emulate is None:
        return (*(["nvml"] if options.nvml else []), *_OPENCL[options.opencl])
    if options.opencl is not OpenClDevices.NONE or options.middleware:
        other = "--middleware" if options.middleware else "--opencl"
        text = "a host with emulated devices lends no card; run another gpud for them"
        raise invalid(f"--emulate and {other} exclude each other: {text}")
    return ()


def _settings(options: HostOptions) -> HostSettings:
    host, memory = HostId(options.host_id), options.memory_mib
    return HostSettings(
        options=options,
        cpu=CpuSettings(
            host=host,
            cpus=parse_cpus(options.cpus),
            memory_mib=parse_memory_mib(memory) if memory else default_memory_mib(),
            shared_with=options.cpus_shared_with,
        ),
        budget=budget_from_environment(),
        listen=_address("--listen", options.listen),
        advertise=_advertised(options.advertise or options.listen),
        access=_access(options),
        drivers=_drivers(options),
        door_ports=_ports(options.door_ports),
        data=_data(options.data),
        operations=_operations(options.operation),
        programs=_programs(options.program),
        middlewares=_middlewares(options.middleware),
        emulated=EmulatedDevices.read(options.emulate, host),
        tls=_tls(options.tls_cert, options.tls_key, options.require_tls),
        secret_files=_secret_files(options.key_file),
    )


async def _serve(settings: HostSettings) -> None:
    options = settings.options
    drain_s = settings.budget.host_drain_s if options.drain_s is None else options.drain_s
    departure = Departure(settings.budget, drain_s)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(number, departure.signalled, number.name)
    if settings.middlewares:
        visible = await visible_devices(settings.host)
        check_middlewares(settings.middlewares, visible)
        settings = replace(settings, visible=visible)
    async with (
        running_host(settings, departure.registered) as host,
        metrics_endpoint(options.metrics, host.metrics_lines) as addresses,
    ):
        if _watches_metadata(options.instance_metadata):
            ignored = NoticeSource.REBALANCE if options.on_rebalance is OnRebalance.IGNORE else None
            sources = [source for source in ITEMS if source is not ignored]
            answer_s = settings.budget.instance_metadata_answer_s
            metadata = InstanceMetadata(endpoint_of(os.environ), answer_s)
            watch = MetadataWatch(metadata, departure, settings.budget, sources)
            host.nursery.start_loop(watch.run, "instance metadata")
        await _until_over(departure, host, options.ready_file, addresses)


def _watches_metadata(setting: WatchMetadata) -> bool:
    on = setting is WatchMetadata.ON
    return on or (setting is WatchMetadata.AUTO and is_on_ec2(os.environ))


async def _until_over(
    departure: Departure,
    host: RunningHost,
    ready_file: Path | None,
    addresses: Mapping[str, str],
) -> None:
    """Announce the host once it is registered; return when it has to end, or raise the error of a
    task."""

    async def served() -> None:
        await host.link.registered()
        write_ready(ready_file, {"gateway": host.gateway, **addresses})
        logger.info("serving", extra={"event": "serving", "gateway": host.gateway})
        await host.link.failed()

    over = departure.over(host.link, host.leases, host.nursery)
    await until_first(over, host.nursery.failed(), served())


def _hide() -> None:
    try:
        make_undumpable()
    except OSError as error:
        raise AppError(ErrorCode.UNAVAILABLE, f"gpud cannot hide its memory: {error}") from None


def _access(options: HostOptions) -> Access:
    """The access to the scheduler; its key is removed from the environment."""
    access = find_access(key_file=options.key_file, ca=options.ca)
    take((KEY_VARIABLE,))
    if not options.join_iam:
        return access
    if access.key is not None:
        raise invalid("--join-iam and a key of the scheduler exclude each other")
    # botocore takes half a second to load, and only these hosts need it
    from remote_gpu.host.credentials.iam import RoleProof

    proof = RoleProof(os.environ.get("AWS_REGION"), endpoint=os.environ.get("AWS_ENDPOINT_URL_STS"))
    return replace(access, source=IamJoin(options.host_id, options.join_iam, proof.url))


def _secret_files(key_file: Path | None) -> tuple[Path, ...]:
    named = os.environ.get(KEY_FILE_VARIABLE)
    return tuple(one for one in (key_file, Path(named) if named else None) if one is not None)


def _use_mps(folder: Path | None) -> None:
    if folder is not None:
        if not (folder / "control").exists():
            text = f"no MPS control daemon listens in {folder}: start nvidia-cuda-mps-control"
            raise invalid(f"--mps: {text}")
        os.environ[MPS_DIRECTORY] = str(folder)


def _advertised(text: str) -> tuple[str, int]:
    """The gateway's address for clients. Raises INVALID for a wildcard address."""
    advertised = _address("--advertise", text)
    if _is_any(advertised[0]):
        raise invalid(f"clients cannot connect to {advertised[0]}; give --advertise ADDRESS:PORT")
    return advertised


def _address(option: str, text: str) -> tuple[str, int]:
    try:
        return parse_address(text)
    except AppError as error:
        raise invalid(f"{option}: {error.message}") from None


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
        raise invalid(f"--door-ports {text!r} is not FIRST-LAST, such as 20000-20999")
    if not 0 < int(first) <= int(last) <= 65535:
        raise invalid(f"--door-ports {text!r} must lie in 1-65535, the first before the last")
    return range(int(first), int(last) + 1)


def _is_any(address: str) -> bool:
    """True for 0.0.0.0 and ::, addresses to listen on but not to connect to."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address).is_unspecified
    return False


def _operations(named: tuple[str, ...]) -> tuple[str, ...]:
    known = sorted(installed())
    for name in named:
        _check_known("--operation", name, known)
    return named


def _check_known(option: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise invalid(f"{option} {name!r} is unknown{one_of_known(name, known)}")


def _pairs(option: str, value: str, items: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The parts of each NAME=VALUE. Raises INVALID for a malformed item and a repeated name."""
    seen: set[str] = set()
    for item in items:
        name, equals, text = item.partition("=")
        if not equals or not name:
            raise invalid(f"{option} {item!r} is not NAME={value}")
        if name in seen:
            raise invalid(f"{option} {name!r} is given twice")
        if not is_data_name(name):
            raise invalid(f"{option}: the name {name!r} must have letters, digits, - . _ only")
        seen.add(name)
        yield name, text


def _programs(items: Iterable[str]) -> dict[str, ListedProgram]:
    """The commands of `--program`: `blast=/usr/bin/blastp -db nr -evalue {evalue}`."""
    found: dict[str, ListedProgram] = {}
    for name, command in _pairs("--program", "COMMAND", items):
        if name in HOST_PROGRAMS:
            raise invalid(f"--program {name}: this name is that of a host's own program")
        try:
            found[name] = parse_program(command)
        except ValueError as error:
            raise invalid(f"--program {name}: {error}") from None
    return found


def _middlewares(items: Iterable[str]) -> dict[str, Path]:
    """The programs of `--middleware`; gpud starts no other program for a client."""
    found: dict[str, Path] = {}
    for name, path in _pairs("--middleware", "PROGRAM", items):
        _check_known("--middleware", name, [known for known in names() if known != "builtin"])
        program = Path(path)
        if not program.is_absolute() or not program.is_file() or not os.access(program, os.X_OK):
            raise invalid(f"--middleware {name}: {path!r} is not the absolute path of a program")
        found[name] = program
    return found


def _data(items: Iterable[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for name, path in _pairs("--data", "PATH", items):
        if not Path(path).exists():
            raise invalid(f"--data {name}: {path} does not exist")
        found[name] = Path(path).resolve()
    return found

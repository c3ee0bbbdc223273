"""`ssgmd`: the scheduler as a process, and commands on its files."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click

from corekit.aio.environment import budget_from_environment
from corekit.aio.process import exiting_by_code, log_as_json, run_program, write_ready
from corekit.cli.program import DaemonGroup
from corekit.cli.screen import echo, echo_json, json_option
from corekit.decode import encode
from corekit.errors import invalid
from gpu_scheduler.daemon import config
from gpu_scheduler.daemon.access.keys import NAME as KEYS_NAME
from gpu_scheduler.daemon.access.keys import KeyEntry, KeyRole, add_key, keys_in, revoke_key
from gpu_scheduler.daemon.access.sources import FileSecret, SecretSource, is_stored, source_of
from gpu_scheduler.daemon.access.tls import Certificate
from gpu_scheduler.daemon.app import running_daemon
from gpu_scheduler.daemon.capacity import declared_devices
from gpu_scheduler.daemon.collection import visited_once
from gpu_scheduler.daemon.config import SETTINGS, Config, log_address_of, state_of
from gpu_scheduler.daemon.journal.reader import LogTrimmed
from gpu_scheduler.daemon.journal_commands import journal_group
from gpu_scheduler.daemon.log.writer import LogSuperseded
from gpu_scheduler.daemon.settings import DaemonSettings
from gpu_scheduler.daemon.waker import sender_of
from gpu_scheduler.protocol.keys import checked_name

logger = logging.getLogger(__name__)


def _settings(command: click.Group) -> click.Group:
    command.params += [setting.option(resolved_later=True) for setting in SETTINGS]
    return command


@_settings
@click.group(
    "ssgmd",
    cls=DaemonGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="orchgpu", prog_name="ssgmd")
@click.option("--config", "config_file", default=None, help="TOML file of the settings below.")
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path),
    default=None,
    help='JSON file, written once it serves or stands by: {"pid", "socket", "http", "epoch", '
    '"role"}.',
)
@click.pass_context
def main(
    context: click.Context,
    /,
    config_file: str | None,
    ready_file: Path | None,
    *,
    standby: bool | None,
    **flags: str | None,
) -> None:
    """The scheduler: it decides who gets which device, and writes leases and job records.

    Without a command it serves. SIGTERM stops it cleanly (exit 0); hosts and orchestrators wait
    for the next start. SIGHUP rereads keys and certificate. Every setting is a flag, else a
    variable (SSGMD_STATE for --state), else in the --config file (or SSGMD_CONFIG).

    \b
    Example:  ssgmd --state /var/lib/ssgmd --listen 10.0.1.10:4700 \\
                    --tls-cert ssgmd.pem --tls-key ssgmd.key
    """
    with exiting_by_code("ssgmd"):
        switches = {"standby": "yes" if standby else None}
        found = config.resolve({"config": config_file, **switches, **flags}, os.environ)
    context.obj = found
    if context.invoked_subcommand is None:
        log_as_json()
        with exiting_by_code("ssgmd"):
            settings = DaemonSettings(
                state=state_of(found),
                log=log_address_of(found),
                budget=budget_from_environment(),
                listen=found.text("listen") or "",
                http=found.text("http") or "",
                join_iam=found.path("join_iam"),
                advertise=found.text("advertise"),
                advertise_http=found.text("advertise_http"),
                standby=found.switch("standby"),
                keys=_source(found, "keys"),
                master_key=_source(found, "master_key"),
                certificate=_certificate(found),
                wake=sender_of(wake) if (wake := found.text("wake")) else None,
                parameters=found.parameters,
            )
        run_program("ssgmd", _serve(settings, found.path("capacity"), ready_file), fast=True)


async def _serve(settings: DaemonSettings, capacity: Path | None, ready_file: Path | None) -> None:
    if capacity is not None:
        settings = replace(settings, capacity=declared_devices(capacity))

    def standing_by(addresses: Mapping[str, object]) -> None:
        write_ready(ready_file, addresses)

    while True:
        try:
            await _serve_once(settings, ready_file, standing_by)
        except (LogSuperseded, LogTrimmed) as error:
            if not settings.standby:
                raise
            logger.warning("standby again: %s", error.message, extra={"event": "standby_again"})
            await asyncio.sleep(settings.budget.standby_poll_s)


async def _serve_once(
    settings: DaemonSettings,
    ready_file: Path | None,
    standing_by: Callable[[Mapping[str, object]], None],
) -> None:
    async with running_daemon(settings, standing_by=standing_by) as daemon:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, daemon.reread.set)
        addresses = {"socket": daemon.socket, "http": daemon.http, "epoch": daemon.epoch}
        with visited_once():
            write_ready(ready_file, {**addresses, "role": "leader"})
            await daemon.nursery.failed()


def _source(found: Config, name: str) -> SecretSource | None:
    text = found.text(name)
    return source_of(text) if text else None


def _certificate(found: Config) -> Certificate | None:
    cert, key = found.path("tls_cert"), found.path("tls_key")
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise invalid("--tls-cert and --tls-key go together")
    return Certificate(cert, key)


# ---------------------------------------------------------------------- config


@main.group("config")
def config_group() -> None:
    """The settings of the next start."""


@config_group.command("show")
@json_option
@click.pass_obj
def config_show(found: Config, as_json: bool) -> None:
    """Every setting with its value and its source.

    Changes by `ssgm set` at run time are in the journal: see `ssgm get`.

    \b
    Example:  ssgmd --config /etc/ssgmd.toml config show
    """
    if as_json:
        echo_json(encode(found))
        return
    names = {**found.settings, **{f"parameters.{n}": t for n, t in found.parameter_sources.items()}}
    width = max(map(len, names))
    for name, setting in names.items():
        echo(f"{name:<{width}}  {setting.value or '-':<24}  {setting.source}")


# ---------------------------------------------------------------------- keys


def _keys_file(found: Config) -> Path:
    text = found.text("keys") or ""
    if is_stored(text):
        why = f"{text} is changed where it is stored: change a keys file, ssgmd --keys FILE keys …,"
        why += " and store its text as the new value; running daemons read it within a minute"
        raise invalid(why)
    return found.path("keys") or state_of(found) / KEYS_NAME


@main.group("keys")
def keys_group() -> None:
    """Keys of clients and hosts. A running daemon applies changes within seconds."""


@keys_group.command("add")
@click.argument("name")
@click.option(
    "--role",
    required=True,
    type=click.Choice([role.value for role in KeyRole]),
    help="The operations it allows.",
)
@click.option(
    "--tenant", default=None, help="Restricts a requester or reader to the jobs of this tenant."
)
@click.option("--host", default=None, help="Restricts a host's key to this host.")
@click.option(
    "--priority-max",
    type=click.IntRange(-100, 100),
    default=0,
    show_default=True,
    help="The highest priority that a requester may give: above 0 it passes other tenants.",
)
@click.pass_obj
def keys_add(
    found: Config, name: str, role: str, tenant: str | None, host: str | None, priority_max: int
) -> None:
    """Create a key and print it once: only its hash is stored.

    From the first key on, callers without a key are refused.

    \b
    Example:  ssgmd --state /var/lib/ssgmd keys add gpu-a --role host --host gpu-a
    """
    with exiting_by_code("ssgmd"):
        entry = KeyEntry(
            name=checked_name(name),
            role=KeyRole(role),
            sha256="0" * 64,
            tenant=tenant,
            host=host,
            priority_max=priority_max,
            made=datetime.now(UTC).date().isoformat(),
        )
        echo(add_key(_keys_file(found), entry))


@keys_group.command("list")
@json_option
@click.pass_obj
def keys_list(found: Config, as_json: bool) -> None:
    """The keys, without their secrets."""
    with exiting_by_code("ssgmd"):
        source = _source(found, "keys") or FileSecret(_keys_file(found))
        source.refresh()
        keys = [] if source.stamp() is None else list(keys_in(source).values())
    if as_json:
        shown = [{k: v for k, v in encode(key).items() if k != "sha256"} for key in keys]
        echo_json({"keys": shown})
        return
    for key in keys:
        bound = key.tenant or key.host or "-"
        most = f"  priority up to {key.priority_max}" if key.role is KeyRole.REQUESTER else ""
        echo(f"{key.name:<24}  {key.role.value:<9}  {bound:<16}  {key.made}{most}")


@keys_group.command("revoke")
@click.argument("name")
@click.pass_obj
def keys_revoke(found: Config, name: str) -> None:
    """Revoke a key; its connections are closed within seconds."""
    with exiting_by_code("ssgmd"):
        revoke_key(_keys_file(found), name)
    echo(f"{name} is revoked")


main.add_command(journal_group)

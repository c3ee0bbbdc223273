"""`ssgm` commands of an operator: which hosts and devices lend, and by which rules."""

from __future__ import annotations

import click

from corekit.decode import encode
from corekit.errors import AppError, ErrorCode
from corekit.plugins import find_plugins
from corekit.units import parse_duration_s
from gpu_scheduler.client.client import SchedulerClient
from gpu_scheduler.client.commands import tables
from gpu_scheduler.client.commands.forms import Drained, Forgotten, Standing, Undrained
from gpu_scheduler.client.commands.options import Line, connected
from gpu_scheduler.parameters import POLICY_PLUGINS, Given, known_name
from gpu_scheduler.protocol.answers import ParametersAnswer

#: A host or one of its devices, as `ssgm devices` names it: `gpu-a`, `gpu-a/0`.
Place = tuple[str, str | None]


async def _find(client: SchedulerClient, name: str) -> Place:
    """The host and, after a slash, the id of the device with this index. Raises NOT_FOUND."""
    host, slash, index = name.rpartition("/")
    if not slash:
        return name, None
    for found in (await client.inventory()).hosts:
        for view in found.devices:
            if found.host == host and index == str(view.device.index):
                return host, view.device.id
    raise AppError(ErrorCode.NOT_FOUND, f"no device {name} is known; `ssgm devices` lists them")


@click.command(epilog="Example: ssgm drain gpu-a/0 --revoke")
@click.argument("name", metavar="HOST[/INDEX]")
@click.option("--revoke", is_flag=True, help="End the leases that live there, as REVOKED.")
@connected
def drain(line: Line, name: str, revoke: bool) -> None:
    """No new leases on a host or device.

    Those that live there go on, unless --revoke is said.
    """

    async def ask(client: SchedulerClient) -> None:
        host, device = await _find(client, name)
        await client.drain(host, device, revoke=revoke)

    line.ask(ask)
    line.show(Drained(drained=name), lambda: f"{name} is drained: no new leases there")


@click.command(epilog="Example: ssgm undrain gpu-a")
@click.argument("name", metavar="HOST[/INDEX]")
@connected
def undrain(line: Line, name: str) -> None:
    """New leases on a host or device again."""

    async def ask(client: SchedulerClient) -> None:
        host, device = await _find(client, name)
        await client.undrain(host, device)

    line.ask(ask)
    line.show(Undrained(undrained=name), lambda: f"{name} takes leases again")


@click.command(epilog="Example: ssgm forget gpu-old")
@click.argument("host")
@connected
def forget(line: Line, host: str) -> None:
    """HOST is gone for good.

    Its devices leave the inventory, its leases end. Refused (exit 4) while the host is heard.
    Requests that only it could serve are impossible from then on, and their waiters are told.
    """
    line.ask(lambda client: client.forget(host))
    line.show(Forgotten(forgotten=host), lambda: f"{host} is forgotten")


@click.command("get", epilog="Example: ssgm get policy")
@click.argument("name", required=False)
@connected
def get_parameter(line: Line, name: str | None) -> None:
    """The rules and limits that hold.

    All of them, or one by NAME. Names: policy, aging_s, lease_s_max, usage_half_life_s,
    bypass_max, leases_max; waiting_max, records_max, rate_per_s, each also with key_ or tenant_
    before it; weight.TENANT, quota.TENANT.devices, quota.TENANT.memory_mib,
    quota.TENANT.compute_pct.
    """
    if name is not None:
        known_name(name)
    found = line.ask(lambda client: client.parameters())
    values = _values(found)
    if name is not None:
        values = {name: values.get(name)}
    overridden = tuple(word for word in found.overridden if word in values)
    line.show(
        Standing(parameters=values, overridden=overridden),
        lambda: tables.parameters(values, overridden),
    )


class _SetCommand(click.Command):
    """`ssgm set`; its help lists the policies that are installed here."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        names = ", ".join(sorted(find_plugins(*POLICY_PLUGINS)))
        with formatter.indentation():
            formatter.write_paragraph()
            formatter.write_text(f"Queue policies installed here: {names}")


@click.command(
    "set",
    cls=_SetCommand,
    epilog="Example: ssgm set quota.genomics.devices 8",
    context_settings={"ignore_unknown_options": True},  # -1 is a value, and refused as one
)
@click.argument("name")
@click.argument("value")
@connected
def set_parameter(line: Line, name: str, value: str) -> None:
    """Change a rule or limit while ssgmd runs.

    Durable, and in force at once. VALUE `none` takes a limit away; `default` takes the change
    back, so that what ssgmd was configured with holds again. Lengths may have a unit: ssgm set
    aging_s 5m
    """
    found = line.ask(lambda client: client.set_parameter(name, _given(name, value)))
    now = _values(found).get(name)
    overridden = tuple(word for word in found.overridden if word == name)
    line.show(
        Standing(parameters={name: now}, overridden=overridden),
        lambda: tables.parameters({name: now}, overridden),
    )


def _given(name: str, text: str) -> Given:
    """Lengths with a unit are seconds; everything else is for the scheduler to judge."""
    if name in ("aging_s", "lease_s_max", "usage_half_life_s") and text[:1].isdecimal():
        return parse_duration_s(text)
    return text


def _values(found: ParametersAnswer) -> dict[str, Given]:
    """By the names that `set` takes."""
    said = encode(found.parameters)
    weights, quotas = said.pop("weights"), said.pop("quotas")
    said.update((f"weight.{tenant}", weight) for tenant, weight in weights.items())
    for tenant, quota in quotas.items():
        said.update(
            (f"quota.{tenant}.{what}", limit) for what, limit in quota.items() if limit is not None
        )
    values: dict[str, Given] = said
    return values


COMMANDS = (drain, undrain, forget, get_parameter, set_parameter)

"""`ssgm` commands of an operator: drained hosts and devices, and parameters."""

from __future__ import annotations

from collections.abc import Mapping

import click

from corekit.cli.screen import echo
from corekit.decode import encode
from corekit.errors import AppError, ErrorCode, invalid
from corekit.ids import DeviceId, HostId
from corekit.plugins import find_plugins
from corekit.suggest import one_of_known
from gpu_scheduler.client.client import SchedulerClient
from gpu_scheduler.client.commands import tables
from gpu_scheduler.client.commands.forms import (
    Drained,
    Forgotten,
    ParametersInForce,
    Policies,
    Undrained,
)
from gpu_scheduler.client.commands.options import CommandContext, connected
from gpu_scheduler.parameters import (
    POLICY_PLUGINS,
    canonical_name,
    declared_parameter,
    given_of,
    installed_name,
    known_name,
)
from gpu_scheduler.policy_parameters import Given
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import ParametersAnswer

#: A host and, for one of its devices (`gpu-a/0`), the device's id.
Place = tuple[HostId, DeviceId | None]


async def _find(client: SchedulerClient, name: str) -> Place:
    """The host and, when an index follows a slash, that device of it. Raises NOT_FOUND."""
    host, slash, index = name.rpartition("/")
    if not slash:
        return HostId(name), None
    for found in (await client.inventory()).hosts:
        for view in found.devices:
            if found.host == host and index == str(view.device.index):
                return found.host, view.device.id
    raise AppError(ErrorCode.NOT_FOUND, f"no device {name} is known; `ssgm devices` lists them")


@click.command(epilog="Example: ssgm drain gpu-a/0 --revoke")
@click.argument("name", metavar="HOST[/INDEX]")
@click.option("--revoke", is_flag=True, help="End the live leases there, as REVOKED.")
@connected
def drain(context: CommandContext, name: str, revoke: bool) -> None:
    """Grant no new leases on a host or device.

    Without --revoke, live leases continue.
    """

    async def ask(client: SchedulerClient) -> None:
        host, device = await _find(client, name)
        await client.ask(ops.Drain(host=host, device=device, revoke=revoke))

    context.ask(ask)
    context.show(Drained(drained=name), lambda: echo(f"{name} is drained: no new leases there"))


@click.command(epilog="Example: ssgm undrain gpu-a")
@click.argument("name", metavar="HOST[/INDEX]")
@connected
def undrain(context: CommandContext, name: str) -> None:
    """Grant new leases on a host or device again."""

    async def ask(client: SchedulerClient) -> None:
        host, device = await _find(client, name)
        await client.ask(ops.Undrain(host=host, device=device))

    context.ask(ask)
    context.show(Undrained(undrained=name), lambda: echo(f"{name} takes leases again"))


@click.command(epilog="Example: ssgm forget gpu-old")
@click.argument("host")
@connected
def forget(context: CommandContext, host: str) -> None:
    """Remove a permanently lost HOST.

    The host's devices leave the inventory, and its leases end. Refused (exit 4) while the host is
    up. Requests that only this host could serve become impossible, including waiting ones.
    """
    context.ask(lambda client: client.ask(ops.Forget(host=HostId(host))))
    context.show(Forgotten(forgotten=host), lambda: echo(f"{host} is forgotten"))


@click.command("get", epilog="Example: ssgm get policy")
@click.argument("name", required=False)
@connected
def get_parameter(context: CommandContext, name: str | None) -> None:
    """Parameters in force: policy and limits.

    Prints all of them, or the one named NAME. Names: policy, aging_s, lease_s_max,
    usage_half_life_s, bypass_max, leases_max, preempt_grace_s, advance_s_max,
    forget_after_s; warm_workers_max,
    warm_idle_s_max, warm_memory_pct_max, warm_loads_max; record_leases_max,
    record_attempts_max, record_past_s;
    waiting_max, records_max, rate_per_s, each also with key_
    or tenant_ before it; policy.POLICY.PARAMETER; weight.TENANT, quota.TENANT.devices,
    quota.TENANT.memory_mib, quota.TENANT.compute_pct.
    """
    if name is not None:
        known_name(name)
    found = context.ask(lambda client: client.ask(ops.ParametersOf()))
    _show_parameters(context, found, _values(found) if name is None else _named(name, found))


@click.command(epilog="Example: ssgm policies srtf")
@click.argument("name", required=False)
@connected
def policies(context: CommandContext, name: str | None) -> None:
    """Queue policies that the scheduler has: rule, bound on waiting, parameters.

    Lists all of them, or shows the one named NAME with its parameters; `ssgm set policy NAME` puts
    it in force.
    """
    found = context.ask(lambda client: client.ask(ops.ParametersOf()))
    known = {one.name: one for one in found.policies}
    if name is None:
        chosen = tuple(known.values())
    elif (own := installed_name(name, known)) is not None:
        chosen = (known[own],)
    else:
        message = f"{name!r} is not an installed policy{one_of_known(name, known)}"
        raise AppError(ErrorCode.NOT_FOUND, message)
    in_force = found.parameters.policy

    def show() -> None:
        if name is None:
            tables.echo_policies(chosen, in_force)
        else:
            tables.echo_policy(chosen[0], in_force)

    context.show(Policies(in_force=in_force, policies=chosen), show)


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
    context_settings={"ignore_unknown_options": True},  # -1 is a value, refused by the scheduler
)
@click.argument("name")
@click.argument("value")
@connected
def set_parameter(context: CommandContext, name: str, value: str) -> None:
    """Change a parameter while ssgmd runs.

    The change is durable, and in force at once. VALUE `none` removes a limit; `default` reverts to
    the configured value. Durations may have a unit: ssgm set aging_s 5m
    """
    found = context.ask(
        lambda client: client.ask(ops.SetParameter(name=name, value=given_of(name, value)))
    )
    _show_parameters(context, found, _named(name, found))


def _show_parameters(
    context: CommandContext, found: ParametersAnswer, values: Mapping[str, Given]
) -> None:
    overridden = tuple(word for word in found.overridden if word in values)
    context.show(
        ParametersInForce(parameters=values, overridden=overridden),
        lambda: tables.echo_parameters(values, overridden),
    )


def _named(name: str, found: ParametersAnswer) -> dict[str, Given]:
    policies = {one.name: one for one in found.policies}
    name = canonical_name(name, policies)
    policy, _, parameter = name.removeprefix("policy.").rpartition(".")
    if not name.startswith("policy."):
        return {name: _values(found).get(name)}
    if policy not in policies:
        raise invalid(f"{policy!r} is not an installed policy{one_of_known(policy, policies)}")
    default = declared_parameter(policy, parameter, policies).default
    return {name: policies[policy].values.get(parameter, default)}


def _values(found: ParametersAnswer) -> dict[str, Given]:
    values: dict[str, Given] = encode(found.parameters)
    weights, quotas = found.parameters.weights, encode(found.parameters.quotas)
    del values["weights"], values["quotas"], values["policy_parameters"]
    of_policies = found.parameters.policy_parameters
    values.update((f"policy.{name}", value) for name, value in of_policies.items())
    values.update((f"weight.{tenant}", weight) for tenant, weight in weights.items())
    for tenant, quota in quotas.items():
        values.update(
            (f"quota.{tenant}.{name}", limit) for name, limit in quota.items() if limit is not None
        )
    return values


COMMANDS = (drain, undrain, forget, get_parameter, set_parameter, policies)

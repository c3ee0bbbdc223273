"""Print the IAM policy of a role."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

from corekit.cli.screen import echo
from fdl.plan.groups import deployed
from fdl.plan.resources import DeployTarget
from orchgpu.cli.completing import definition
from orchgpu.cli.definition.target import declared_address
from orchgpu.cloud_services import Address
from orchgpu.deploy.files import read_document
from orchgpu.jobs.provider import provider
from orchgpu.permissions.model import Scope, document, trust
from orchgpu.permissions.registry import role_kind, role_names

#: The names of AWS's partitions by the beginning of a region's name.
_PARTITIONS = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}


@click.command("iam")
@click.argument("role", metavar="[ROLE]", default="", shell_complete=lambda *_: role_names())
@click.argument("file", type=click.Path(path_type=Path), required=False, shell_complete=definition)
@click.option(
    "--trust",
    "trusted",
    is_flag=True,
    help="Print the policy by which the role is assumed instead.",
)
@click.option("--account", metavar="ID", help="Account number. [default: the caller's]")
@click.option("--region", help="AWS region. [default: FILE's, else the environment's]")
def command(
    role: str, file: Path | None, trusted: bool, account: str | None, region: str | None
) -> None:
    """Print the IAM policy of ROLE as JSON; without ROLE, list the roles.

    With FILE the policy names the resources of its functions; without it, those of all functions of
    the account. With --account and --region nothing is called.

    \b
    Example:  orchgpu iam orchestrator fdl.yaml > policy.json
    """
    if not role:
        for name in role_names():
            echo(f"{name:<13} {role_kind(name).summary}")
        return
    kind = role_kind(role)
    definition_ = None if file is None else read_document(file)
    functions = () if definition_ is None else tuple(deployed(definition_))
    declared = Address() if definition_ is None else declared_address(definition_)
    place = _place(account, Address(region=region), declared)
    if trusted:
        _echo_policy(trust(kind.service, place))
        return
    _echo_policy(document(kind.statements(Scope(place=place, functions=functions))))


def _echo_policy(policy: Mapping[str, object]) -> None:
    """The policy alone: IAM refuses keys that it does not know."""
    echo(json.dumps(policy, indent=2))


def _place(account: str | None, given: Address, declared: Address) -> DeployTarget:
    region = given.region or declared.region
    if account and region:
        partitions = (name for start, name in _PARTITIONS.items() if region.startswith(start))
        return DeployTarget(account=account, region=region, partition=next(partitions, "aws"))
    with provider().deploy_cloud(given, declared) as target:
        place = target.cloud.place
    return DeployTarget(
        account=account or place.account, region=place.region, partition=place.partition
    )

"""Print the IAM policy of a role."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import click

from corekit.cli.screen import echo
from corekit.errors import invalid
from fdl.plan.groups import deployed
from fdl.plan.placeholders import at_place
from fdl.plan.resources import DeployTarget
from orchgpu.cli.completing import definition
from orchgpu.cli.definition.target import declared_address
from orchgpu.cloud_services import Address
from orchgpu.deploy.files import read_document
from orchgpu.jobs.provider import provider
from orchgpu.permissions.model import STACK, RoleKind, Scope, document, trust
from orchgpu.permissions.roles import role_kind, role_names

_STEM = re.compile(r"[A-Za-z0-9/_.-]+")
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
@click.option(
    "--bucket-prefix", metavar="STEM", help="Without FILE: the beginning of buckets' names."
)
@click.option(
    "--function-prefix",
    metavar="STEM",
    help="Without FILE: the beginning of names of functions, their queues, roles and logs.",
)
@click.option(
    "--secret-prefix",
    metavar="STEM",
    help="For the boundary without FILE: the secrets that functions may read. [default: none]",
)
@click.option(
    "--stack",
    metavar="NAME",
    default=STACK,
    show_default=True,
    help="For the machines of `orchgpu infra`: the name of their stack.",
)
@click.option(
    "--provider",
    "hosts",
    metavar="PROVIDER",
    default="auto-scaling",
    show_default=True,
    help="For `fleet`: `auto-scaling` or `ecs:CLUSTER`, as its --provider.",
)
@click.option("--account", metavar="ID", help="Account number. [default: the caller's]")
@click.option("--region", help="AWS region. [default: FILE's, else the environment's]")
def command(
    role: str,
    file: Path | None,
    trusted: bool,
    bucket_prefix: str | None,
    function_prefix: str | None,
    secret_prefix: str | None,
    stack: str,
    hosts: str,
    account: str | None,
    region: str | None,
) -> None:
    """Print the IAM policy of ROLE as JSON; without ROLE, list the roles.

    With FILE the policy names the resources of its functions; without it, all whose names begin
    with the prefixes, also those of later functions: no role gets every bucket or function of an
    account. `boundary` is the policy that limits the roles of functions. With --account and
    --region nothing is called.

    \b
    Example:  orchgpu iam orchestrator fdl.yaml > policy.json
              orchgpu iam boundary --bucket-prefix lab- --function-prefix lab- > boundary.json
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
    prefixes = (bucket_prefix or "", function_prefix or "", secret_prefix)
    if file is not None and any(prefixes):
        raise invalid("FILE names the resources: give it, or prefixes")
    _check_prefixes(kind, place, *prefixes, given=file is not None)
    scope = Scope(
        place=place,
        functions=tuple(at_place(function, place) for function in functions),
        bucket_prefix=prefixes[0],
        function_prefix=prefixes[1],
        secret_prefix=secret_prefix,
        stack=stack,
        cluster=_cluster(hosts),
    )
    _echo_policy(document(kind.statements(scope)))


def _check_prefixes(
    kind: RoleKind,
    place: DeployTarget,
    bucket: str,
    function: str,
    secret: str | None,
    *,
    given: bool,
) -> None:
    for option, value in (("bucket", bucket), ("function", function), ("secret", secret)):
        if value and not _STEM.fullmatch(value):
            raise invalid(f"--{option}-prefix {value!r}: letters, digits and /_.- only")
    if given or (bucket and function):
        return
    example = Scope(place=place, bucket_prefix="example", function_prefix="example")
    if kind.statements(Scope(place=place)) != kind.statements(example):
        raise invalid(
            "this policy would cover every bucket and function of the account: give a FILE, or"
            " --bucket-prefix and --function-prefix"
        )


def _cluster(hosts: str) -> str:
    """The cluster of a provider of hosts; "" = it has none."""
    kind, _, rest = hosts.partition(":")
    cluster = rest.partition(":")[0]
    if kind == "auto-scaling" or (kind == "ecs" and _STEM.fullmatch(cluster)):
        return cluster if kind == "ecs" else ""
    raise invalid(f"--provider {hosts!r}: only `auto-scaling` and `ecs:CLUSTER` call AWS")


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

"""A granted lease as the `env.json` of an envelope."""

from __future__ import annotations

from typing import TypedDict

from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.model import GrantedLease, Share
from remote_gpu.middleware.registry import find
from remote_gpu.wire.variables import check_variables


class Environment(TypedDict):
    """The session's connection, which every middleware needs, and its client's variables."""

    middleware: str
    connection: dict[str, object]
    variables: dict[str, str]


def render(name: str, granted: GrantedLease) -> Environment:
    """The environment of a job's function.

    Raises INVALID for an unknown middleware, for a lease that its client cannot use as a whole, and
    for a lease with a share on a host without a gateway (an advisory one, watched by a monitor
    only).
    """
    middleware = find(name)
    hosts = {share.host for share in granted.lease.shares}
    if middleware.one_host and len(hosts) > 1:
        raise invalid(
            f"a client of {name} reaches one host, and lease {granted.lease.id} has devices on"
            f" {len(hosts)}; ask for them with placement same_host"
        )
    variables = middleware.variables(granted)
    return {
        "middleware": name,
        "connection": connection(name, granted),
        "variables": check_variables(name, middleware.client, variables),
    }


def connection(name: str, granted: GrantedLease) -> dict[str, object]:
    """The argument of `remote_gpu.client.Session.open`; hosts in the order of their first share."""
    lease = granted.lease
    shares: dict[str, list[Share]] = {}
    for share in lease.shares:
        shares.setdefault(share.host, []).append(share)
    return {
        "middleware": name,
        "lease": lease.id,
        "fence": lease.fence,
        "hosts": [
            {
                "host": host,
                "gateway": _gateway_of(granted, host),
                "secret": granted.secrets[host],
                "devices": [
                    {
                        "index": share.index,
                        "kind": share.kind.value,
                        "model": share.model,
                        "memory_mib": share.memory_mib,
                    }
                    for share in of_host
                ],
            }
            for host, of_host in shares.items()
        ],
    }


def _gateway_of(granted: GrantedLease, host: str) -> str:
    """Raises INVALID where the host has no gateway, or its secret is missing."""
    gateway = granted.gateways.get(host)
    if gateway is None or host not in granted.secrets:
        raise AppError(
            ErrorCode.INVALID,
            f"lease {granted.lease.id} has a share on {host}, which has no gateway; ask for"
            " devices with one (advisory: false)",
        )
    return gateway

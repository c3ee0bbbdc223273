"""The port that every middleware implements, and the registry of them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.model import GrantedLease, Share
from remote_gpu.wire.variables import allowed_variables

#: Modules of this package; the FDL's `gpu.middleware` names one of them.
_NAMES = ("builtin", "rcuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    """What a host starts for one lease, behind its gateway."""

    arguments: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)  #: beside the host's own
    port: int  #: it listens there, on 127.0.0.1


class Middleware(Protocol):
    """One remote-GPU software; a module-level `MIDDLEWARE` of its file."""

    @property
    def name(self) -> str: ...

    def variables(self, granted: GrantedLease) -> dict[str, str]:
        """What its unmodified client needs in the function's environment."""
        ...

    def server_command(self, share: Share, port: int) -> ServerCommand | None:
        """What the host starts for one share; None when gpud itself is the server."""
        ...


def names() -> tuple[str, ...]:
    """The middlewares there are."""
    return _NAMES


def find(name: str) -> Middleware:
    """Raises INVALID for a name that has no file here."""
    if name not in _NAMES:
        raise invalid(f"unknown middleware {name!r}; known are {', '.join(_NAMES)}")
    module = importlib.import_module(f"remote_gpu.middleware.{name}")
    return cast("Middleware", module.MIDDLEWARE)


def render(middleware: str, granted: GrantedLease) -> dict[str, Any]:
    """The `env.json` of an envelope: {"middleware", "connection", "variables"}.

    `connection` opens the session, which every middleware needs; `variables` are for its client,
    already held against the allow-list. Raises INVALID for an unknown middleware, and for a lease
    with a share on a host without a gateway (an advisory one, watched by a monitor alone).
    """
    variables = find(middleware).variables(granted)
    return {
        "middleware": middleware,
        "connection": connection(middleware, granted),
        "variables": allowed_variables(middleware, variables),
    }


def connection(middleware: str, granted: GrantedLease) -> dict[str, Any]:
    """What `remote_gpu.client.Session.open` takes; hosts in the order of their first share."""
    lease = granted.lease
    shares: dict[str, list[Share]] = {}
    for share in lease.shares:
        shares.setdefault(share.host, []).append(share)
    return {
        "middleware": middleware,
        "lease": lease.id,
        "fence": lease.fence,
        "hosts": [
            {
                "host": host,
                "gateway": gateway_of(granted, host),
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


def gateway_of(granted: GrantedLease, host: str) -> str:
    """Raises INVALID where the host has none, or its secret is missing."""
    gateway = granted.gateways.get(host)
    if gateway is None or host not in granted.secrets:
        raise AppError(
            ErrorCode.INVALID,
            f"lease {granted.lease.id} has a share on {host}, which has no gateway; ask for"
            " devices with one (advisory: false)",
        )
    return gateway

"""The port that every middleware implements, and the registry of them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.model import DeviceKind, GrantedLease, Share
from remote_gpu.wire.variables import allowed_variables

#: Modules of this package; the FDL's `gpu.middleware` names one of them.
_NAMES = ("builtin", "rcuda", "lupine", "cricket", "gvirtus", "pocl", "vaccel")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    """What a host starts for one lease, behind its gateway; the program is the operator's to name.

    It runs in a folder of its own, which holds `files`; `{folder}` in a variable is its path.
    """

    arguments: tuple[str, ...] = ()  #: after the program
    variables: Mapping[str, str] = field(default_factory=dict)  #: beside the few of the host
    files: Mapping[str, str] = field(default_factory=dict)  #: name → contents
    port: int  #: the first one it listens on; 0 = one of its own choice, which the host looks up


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the function finds one device of its lease."""

    host: int  #: number of the host in the connection, whose door is `127.0.0.1:{host}`
    device: int  #: as that host's server numbers those it sees


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleDevices:
    """How many devices a server on this host can see, lent or not, unless it is stopped."""

    cuda: int = 0  #: NVIDIA's, whichever interface finds them
    opencl_cards: int = 0  #: of OpenCL, NVIDIA's left out
    opencl_cpus: int = 0
    opencl_known: bool = True  #: False without the library that lists OpenCL's devices


class Middleware(Protocol):
    """One remote-GPU software; a module-level `MIDDLEWARE` of its file.

    What is implemented here is right for a server of CUDA devices alone, which sees no others than
    `device_variables` names.
    """

    @property
    def name(self) -> str: ...

    @property
    def server_ports(self) -> int:
        """How many consecutive ports its server listens on; clients may reach fewer (`PORTS`)."""
        return 1

    def refusal(self, devices: VisibleDevices, shares: Sequence[Share] = ()) -> str | None:
        """Why a server of it would see devices beside those of its lease; None: it would not.

        Asked when a host starts, without `shares`, and for each lease.
        """
        del devices, shares
        return None

    def variables(self, granted: GrantedLease) -> dict[str, str]:
        """What its unmodified client needs in the function's environment."""
        ...

    def server_command(
        self, fence: int, shares: tuple[Share, ...], port: int
    ) -> ServerCommand | None:
        """What a host starts for its shares of a lease; None when gpud itself is the server."""
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


def places(granted: GrantedLease) -> tuple[Place, ...]:
    """Where each share of a lease is found, in the order of the lease."""
    found: list[Place] = []
    devices: dict[str, int] = {}  # seen so far, by host in the order of the connection
    for share in granted.lease.shares:
        device = devices[share.host] = devices.get(share.host, -1) + 1
        found.append(Place(host=list(devices).index(share.host), device=device))
    return tuple(found)


def check_one_host(middleware: str, granted: GrantedLease) -> None:
    """Raises INVALID for a lease that a client with one server address cannot use whole."""
    hosts = {share.host for share in granted.lease.shares}
    if len(hosts) > 1:
        raise AppError(
            ErrorCode.INVALID,
            f"a client of {middleware} reaches one host, and lease {granted.lease.id} has devices"
            f" on {len(hosts)}; ask for them with placement same_host",
        )


def device_variables(shares: tuple[Share, ...]) -> dict[str, str]:
    """A server sees the CUDA devices of its lease alone, in the lease's order, with its limits.

    MPS holds a process to its limits where its daemon runs; HAMi-core where the operator's program
    preloads it. Without either, limits of a shared device are advice.
    """
    cuda = [share for share in shares if share.kind is DeviceKind.CUDA]
    variables = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order of NVML's indices
        "CUDA_VISIBLE_DEVICES": ",".join(_visible(share) for share in cuda),  # empty = none
    }
    shared = [(number, share) for number, share in enumerate(cuda) if not share.exclusive]
    if shared:
        limits = ",".join(f"{number}={share.memory_mib}M" for number, share in shared)
        compute_pct = str(min(share.compute_limit_pct for _, share in shared))
        variables |= {
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limits,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": compute_pct,
            "CUDA_DEVICE_SM_LIMIT": compute_pct,  # HAMi-core's, as the next ones
        }
        for number, share in shared:
            variables[f"CUDA_DEVICE_MEMORY_LIMIT_{number}"] = f"{share.memory_mib}m"
    return variables


def _visible(share: Share) -> str:
    """As CUDA takes it: the driver's UUID, which says the same whatever is plugged in."""
    return share.device if share.device.startswith(("GPU-", "MIG-")) else str(share.index)


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

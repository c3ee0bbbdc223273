"""The port that every middleware implements: one file declares everything about one software."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from gpu_scheduler.model import DeviceKind, GrantedLease, Share
from remote_gpu.wire.variables import ClientRules


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLease:
    """A lease on one host, as its server needs it."""

    fence: int
    shares: tuple[Share, ...]  #: shares on this host
    port: int  #: the first of `server_ports` free ones


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcProgram:
    """A program of ONC RPC, as a server registers it with its machine's rpcbind."""

    number: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    """The server of one lease, behind the gateway; the operator chooses the program.

    It runs in a folder of its own, which holds `files`; `{folder}` in a variable is its path.
    """

    arguments: tuple[str, ...] = ()  #: arguments after the program
    #: variables in addition to those of the host
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  #: name → contents
    port: int  #: the first one it listens on; 0 = one of its own choice, which the host looks up
    #: a registration that the host removes, before the server's start and after its end
    rpc_program: RpcProgram | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAddress:
    """Position of one device of a lease, as the function counts hosts and devices."""

    host: int  #: number of the host in the connection; its port is `127.0.0.1:{host}`
    device: int  #: number of the device at that host's server


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleDevices:
    """Numbers of devices that a server on this host can see, lent or not."""

    cuda: int = 0  #: NVIDIA's, whichever interface finds them
    opencl_cards: int = 0  #: OpenCL cards, NVIDIA's left out
    opencl_cpus: int = 0
    opencl_known: bool = True  #: False without the library that lists OpenCL's devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One row of the table in docs/how-to/middlewares.md, in Markdown."""

    programs: str  #: programs that the middleware carries
    image: str  #: libraries and variables that the function declares
    server: str  #: program of the host


class Middleware(abc.ABC):
    """One remote-GPU software; the module-level `MIDDLEWARE` of its file is an instance.

    The defaults are right for a server of CUDA devices that sees only those that
    `device_variables` names.
    """

    name: ClassVar[str]
    summary: ClassVar[Summary]
    #: Rules for the variables of its client in the function, which does not contain this code.
    client: ClassVar[ClientRules]
    #: The client supports one server: all devices of a lease must be on one host.
    one_host: ClassVar[bool] = False
    #: Consecutive ports its server listens on; clients may reach fewer (`client.ports`).
    server_ports: ClassVar[int] = 1
    #: Variables of gpud's own environment that its server inherits.
    inherited: ClassVar[tuple[str, ...]] = ()
    #: Loader variables of the function's environment by which its client is found.
    loaders: ClassVar[tuple[str, ...]] = ()

    def refusal(self, devices: VisibleDevices, shares: Sequence[Share] = ()) -> str | None:
        """The reason why its server would see devices of other leases; None: it would not.

        Called when a host starts, without `shares`, and for each lease.
        """
        del devices, shares
        return None

    @abc.abstractmethod
    def variables(self, granted: GrantedLease) -> dict[str, str]:
        """The variables its unmodified client needs in the function's environment.

        Raises INVALID for a lease that its client cannot use as a whole.
        """

    @abc.abstractmethod
    def server_command(self, lease: ServerLease) -> ServerCommand | None:
        """The command a host starts for its shares of a lease; None when gpud is the server."""


def addresses(granted: GrantedLease) -> tuple[DeviceAddress, ...]:
    """The address of each share of a lease, in the order of the lease."""
    found: list[DeviceAddress] = []
    devices: dict[str, int] = {}  # last number by host, in the order of the connection
    for share in granted.lease.shares:
        device = devices[share.host] = devices.get(share.host, -1) + 1
        found.append(DeviceAddress(host=list(devices).index(share.host), device=device))
    return tuple(found)


def device_variables(shares: tuple[Share, ...]) -> dict[str, str]:
    """Variables that show a server the CUDA devices of its lease only, in order, with its limits.

    MPS enforces the limits where its daemon runs; HAMi-core where the operator's program preloads
    it. Without either, limits of a shared device are advice.
    """
    cuda = [share for share in shares if share.kind is DeviceKind.CUDA]
    variables = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order of NVML's indices
        "CUDA_VISIBLE_DEVICES": ",".join(_visible(share) for share in cuda),  # empty = none
    }
    shared = [(number, share) for number, share in enumerate(cuda) if not share.exclusive]
    if shared:
        limits = ",".join(f"{number}={share.memory_mib}M" for number, share in shared)
        # both take whole percents; rounded up, so that no lease gets less than its guarantee
        compute_pct = str(math.ceil(min(share.compute_limit_pct for _, share in shared)))
        variables |= {
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limits,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": compute_pct,
            "CUDA_DEVICE_SM_LIMIT": compute_pct,  # HAMi-core's, as the next ones
        }
        for number, share in shared:
            variables[f"CUDA_DEVICE_MEMORY_LIMIT_{number}"] = f"{share.memory_mib}m"
    return variables


def _visible(share: Share) -> str:
    """A device's name for CUDA: the driver's UUID, which is independent of other devices."""
    return share.device if share.device.startswith(("GPU-", "MIG-")) else str(share.index)

"""`lupine`: Lupine (formerly SCUDA), a shim of the CUDA driver and of NVML; Apache-2.0.

    LUPINE_SERVER=127.0.0.1:40001,127.0.0.1:40002   LUPINE_DISABLE_LOCAL=1   LUPINE_SESSION=lease-9

The comma list numbers the devices in the order of the servers, of which the client takes sixteen.
The session is the lease: the client names it in each connection and each download (the header
`x-lupine-session`), and the server knows the connections of one lease.
The function needs the client that goes with the server: Lupine's Lambda layer or image for a server
built from its repository (`/opt/lib` with `libcuda.so.1` is on Lambda's own LD_LIBRARY_PATH), which
needs the `libcuda.so.1` of its own build; `pip install "lupine[auto]"` for a server that hands its
client out over HTTP: `[auto]` fetches it when the program imports PyTorch, which `lupine` alone
leaves to the program (`lupine.connect()`).

Carries unmodified CUDA 11.8, 12.4 and 13 programs, stock PyTorch among them, statically linked
runtimes too; no `cuMemcpy3DPeer`, and NCCL stays outside. NVML is not limited to the lease: the
tenant's `nvidia-smi` lists every board of the host. The server forks for each connection and
listens on every interface: the host's firewall must close every port but the gateway's.
"""

from __future__ import annotations

from corekit.errors import invalid
from gpu_scheduler.model import GrantedLease
from remote_gpu.middleware.base import (
    Middleware,
    ServerCommand,
    ServerLease,
    Summary,
    addresses,
    device_variables,
)
from remote_gpu.wire.variables import ADDRESS, ClientRules

_SERVERS_MAX = 16  #: Lupine's client connects to the first sixteen of its list


class Lupine(Middleware):
    """One lupine_driver_server per lease and host."""

    name = "lupine"
    client = ClientRules(
        variables={
            "LUPINE_SERVER": rf"{ADDRESS}(?:,{ADDRESS}){{0,{_SERVERS_MAX - 1}}}",
            "LUPINE_DISABLE_LOCAL": "1",
            "LUPINE_SESSION": r"[\w.-]{1,100}",
        }
    )
    summary = Summary(
        programs="CUDA driver and NVML, 11.8 to 13, stock PyTorch",
        image="its server's client: Lupine's Lambda layer (`/opt/lib`) or pip's `lupine[auto]`",
        server="`lupine_driver_server`, with the `libcuda.so.1` of its own build",
    )

    def variables(self, granted: GrantedLease) -> dict[str, str]:
        """One server per host, in the order of the lease's hosts. Raises INVALID for too many."""
        hosts = dict.fromkeys(found.host for found in addresses(granted))
        if len(hosts) > _SERVERS_MAX:
            raise invalid(
                f"a client of lupine uses {_SERVERS_MAX} servers, and lease {granted.lease.id} has"
                f" devices on {len(hosts)} hosts; ask for fewer, or for placement same_host"
            )
        servers = ",".join(f"127.0.0.1:{{{host}}}" for host in hosts)
        return {
            "LUPINE_SERVER": servers,
            "LUPINE_DISABLE_LOCAL": "1",
            "LUPINE_SESSION": granted.lease.id,
        }

    def server_command(self, lease: ServerLease) -> ServerCommand | None:
        """The server takes its port from a variable, and has no arguments."""
        return ServerCommand(
            variables={"LUPINE_PORT": str(lease.port), **device_variables(lease.shares)},
            port=lease.port,
        )


MIDDLEWARE = Lupine()

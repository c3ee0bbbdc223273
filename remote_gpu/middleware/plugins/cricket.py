"""`cricket`: Cricket of RWTH Aachen, the CUDA runtime over ONC RPC; MIT.

    REMOTE_GPU_ADDRESS=127.0.0.1:40001   CRICKET_RPCID=41

The id is the version of the RPC program that both sides must name; here it is the lease's fence.
The function's image holds `cricket-client.so`, which the function's own variables preload
(`LD_PRELOAD`), and libtirpc. With a port in the address the client needs no rpcbind; the server
does, on its host, and listens on a port of its own choice.

Carries the CUDA runtime (`-cudart shared`), parts of the driver, cuBLAS, cuDNN, cuSOLVER; PyTorch
must be built for it. One thread serves all connections. Several hosts: no.
"""

from __future__ import annotations

from gpu_scheduler.model import GrantedLease
from remote_gpu.middleware.base import (
    Middleware,
    ServerCommand,
    ServerLease,
    Summary,
    device_variables,
)
from remote_gpu.wire.variables import ADDRESS, ClientRules

_RPC_VERSION_MAX = 2**31 - 1  #: ONC RPC's versions are 32 bits wide


class Cricket(Middleware):
    """One cricket-rpc-server per lease."""

    name = "cricket"
    one_host = True
    loaders = ("LD_PRELOAD",)
    #: The client treats a server at its own address as local, and then uses shared memory.
    client = ClientRules(
        variables={"REMOTE_GPU_ADDRESS": ADDRESS, "CRICKET_RPCID": r"\d{1,10}"}, address="127.0.0.2"
    )
    summary = Summary(
        programs="CUDA runtime, `-cudart shared`",
        image="`LD_PRELOAD=…/cricket-client.so`, libtirpc",
        server="`cricket-rpc-server`, beside rpcbind",
    )

    def variables(self, granted: GrantedLease) -> dict[str, str]:
        """The address, and the program's version."""
        return {
            "REMOTE_GPU_ADDRESS": "127.0.0.1:{0}",
            "CRICKET_RPCID": _rpc_id(granted.lease.fence),
        }

    def server_command(self, lease: ServerLease) -> ServerCommand | None:
        """The server takes no port as an argument: the host looks up the one it chose."""
        return ServerCommand(
            arguments=(_rpc_id(lease.fence),), variables=device_variables(lease.shares), port=0
        )


def _rpc_id(fence: int) -> str:
    return str(fence % _RPC_VERSION_MAX)


MIDDLEWARE = Cricket()

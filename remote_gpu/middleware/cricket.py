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

from gpu_scheduler.model import GrantedLease, Share
from remote_gpu.middleware.base import Middleware, ServerCommand, check_one_host, device_variables

_RPC_VERSION_MAX = 2**31 - 1  #: ONC RPC's versions are 32 bits wide


class Cricket(Middleware):
    """One cricket-rpc-server per lease."""

    name = "cricket"

    def variables(self, granted: GrantedLease) -> dict[str, str]:
        """Raises INVALID for a lease over several hosts."""
        check_one_host(self.name, granted)
        return {
            "REMOTE_GPU_ADDRESS": "127.0.0.1:{0}",
            "CRICKET_RPCID": _rpc_id(granted.lease.fence),
        }

    def server_command(
        self, fence: int, shares: tuple[Share, ...], port: int
    ) -> ServerCommand | None:
        """It cannot be told a port: the host looks up which one it took."""
        del port
        return ServerCommand(
            arguments=(_rpc_id(fence),), variables=device_variables(shares), port=0
        )


def _rpc_id(fence: int) -> str:
    return str(fence % _RPC_VERSION_MAX)


MIDDLEWARE = Cricket()

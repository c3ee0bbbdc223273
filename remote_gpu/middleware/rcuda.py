"""`rcuda`: the environment that rCUDA's client libraries read, and the server they speak to.

    RCUDA_DEVICE_COUNT=2   RCUDA_DEVICE_0=10.0.0.7@8308:0   RCUDA_DEVICE_1=…

Syntax as in rCUDA's user guide and in mrCUDA's parser: the port after `@`, the device after `:`.
rCUDA itself is proprietary and not part of this project; its client libraries must be in the
function's image, and the program linked with `--cudart=shared`. It has no authentication of its
own, so the addresses are only good inside a network that nobody else is in.
"""

from __future__ import annotations

from gpu_scheduler.model import GrantedLease, Share
from remote_gpu.middleware.base import ServerCommand, gateway_of

#: rCUDAd's default port (`rCUDAd -h`).
DEFAULT_PORT = 8308


class Rcuda:
    """One rCUDAd per lease, for one client."""

    name = "rcuda"

    def variables(self, granted: GrantedLease) -> dict[str, str]:
        """One variable per share, in the order of the lease."""
        shares = granted.lease.shares
        variables = {"RCUDA_DEVICE_COUNT": str(len(shares))}
        for number, share in enumerate(shares):
            address = gateway_of(granted, share.host).rpartition(":")[0]
            variables[f"RCUDA_DEVICE_{number}"] = f"{address}@{DEFAULT_PORT}:{share.index}"
        return variables

    def server_command(self, share: Share, port: int) -> ServerCommand | None:
        """rCUDAd over TCP, in the foreground, serving one client at a time."""
        del share
        return ServerCommand(
            arguments=("rCUDAd", "-i", "-l", "TCP", "-n", "1", "-p", str(port)),
            variables={"RCUDAPROTO": "TCP"},  # it sees all devices: clients name one by its index
            port=port,
        )


MIDDLEWARE = Rcuda()

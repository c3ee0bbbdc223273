"""`rcuda`: the environment that rCUDA's client libraries read, and their server.

    RCUDA_DEVICE_COUNT=2   RCUDA_DEVICE_0=127.0.0.1@40001:0   RCUDA_DEVICE_1=127.0.0.1@40001:1

Syntax as in rCUDA's user guide and in mrCUDA's parser: the port after `@`, the device after `:`.
rCUDA itself is proprietary and not part of this project; its client libraries must be in the
function's image, on its LD_LIBRARY_PATH, and the program linked with `--cudart=shared`.

Carries the CUDA runtime, the driver and most libraries of CUDA 9 and 10. Several hosts: yes.
"""

from __future__ import annotations

from gpu_scheduler.model import GrantedLease
from remote_gpu.middleware.base import (
    Middleware,
    ServerCommand,
    ServerLease,
    Summary,
    addresses,
    device_variables,
)
from remote_gpu.wire.variables import PORT, ClientRules


class Rcuda(Middleware):
    """One rCUDAd per lease and host."""

    name = "rcuda"
    client = ClientRules(
        variables={
            "RCUDA_DEVICE_COUNT": r"[1-9]\d?",
            r"RCUDA_DEVICE_\d{1,2}": rf"127\.0\.0\.1@{PORT}:\d{{1,2}}",
            "RCUDAPROTO": "TCP",
        }
    )
    summary = Summary(
        programs="CUDA runtime, 9 and 10, `--cudart=shared`",
        image="rCUDA's libraries on `LD_LIBRARY_PATH`",
        server="`rCUDAd`",
    )

    def variables(self, granted: GrantedLease) -> dict[str, str]:
        """One variable per share, in the order of the lease."""
        found = addresses(granted)
        variables = {"RCUDA_DEVICE_COUNT": str(len(found)), "RCUDAPROTO": "TCP"}
        for number, address in enumerate(found):
            variables[f"RCUDA_DEVICE_{number}"] = f"127.0.0.1@{{{address.host}}}:{address.device}"
        return variables

    def server_command(self, lease: ServerLease) -> ServerCommand | None:
        """rCUDAd in the foreground over TCP, for as many clients (`-n 0`) as the lease has."""
        return ServerCommand(
            arguments=("-i", "-l", "TCP", "-n", "0", "-p", str(lease.port)),
            variables={"RCUDAPROTO": "TCP", **device_variables(lease.shares)},
            port=lease.port,
        )


MIDDLEWARE = Rcuda()

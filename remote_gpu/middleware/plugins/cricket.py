"""`cricket`: Cricket of RWTH Aachen, the CUDA runtime over ONC RPC; MIT.

    REMOTE_GPU_ADDRESS=127.0.0.1:40001   CRICKET_RPCID=41

The id is the version of the RPC program that both sides must name; here it is the lease's fence.
The function's image holds `cricket-client.so` and libtirpc. The script preloads it for the one
program (`LD_PRELOAD=…/cricket-client.so ./program`), not by a variable of the function: whatever
loads it connects when it starts, and ends where `REMOTE_GPU_ADDRESS` is not set, as in the
function's runner. Its messages go to the program's standard output. With a port in the address the
client needs no rpcbind; the server does, on its host, and listens on a port of its own choice, on
every interface. A server that is killed stays registered, so the host removes its registration.

Carries the CUDA runtime (`-cudart shared`), parts of the driver, cuBLAS, cuDNN, cuSOLVER; PyTorch
must be built for it. One thread serves all connections. Several hosts: no.
"""

from __future__ import annotations

from gpu_scheduler.model import GrantedLease
from remote_gpu.middleware.base import (
    Middleware,
    RpcProgram,
    ServerCommand,
    ServerLease,
    Summary,
    device_variables,
)
from remote_gpu.wire.variables import ADDRESS, ClientRules

_RPC_PROGRAM = 99  #: of all Cricket servers
_RPC_VERSION_MAX = 2**31 - 1  #: ONC RPC's versions are 32 bits wide


class Cricket(Middleware):
    """One cricket-rpc-server per lease."""

    name = "cricket"
    one_host = True
    #: The client treats a server at its own address as local, and then uses shared memory.
    client = ClientRules(
        variables={"REMOTE_GPU_ADDRESS": ADDRESS, "CRICKET_RPCID": r"\d{1,10}"}, address="127.0.0.2"
    )
    summary = Summary(
        programs="CUDA runtime, `-cudart shared`",
        image="`cricket-client.so`, which the script preloads for its program, and libtirpc",
        server="`cricket-rpc-server`, beside rpcbind",
    )

    def variables(self, granted: GrantedLease) -> dict[str, str]:
        """The address, and the program's version."""
        return {
            "REMOTE_GPU_ADDRESS": "127.0.0.1:{0}",
            "CRICKET_RPCID": str(_rpc_version(granted.lease.fence)),
        }

    def server_command(self, lease: ServerLease) -> ServerCommand | None:
        """The server takes no port as an argument: the host looks up the one it chose."""
        version = _rpc_version(lease.fence)
        return ServerCommand(
            arguments=(str(version),),
            variables=device_variables(lease.shares),
            port=0,
            rpc_program=RpcProgram(number=_RPC_PROGRAM, version=version),
        )


def _rpc_version(fence: int) -> int:
    return fence % _RPC_VERSION_MAX


MIDDLEWARE = Cricket()

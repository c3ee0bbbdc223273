"""`vaccel`: vAccel's rpc plugin and its agent, operations by name; Apache-2.0.

    VACCEL_PLUGINS=libvaccel-rpc.so   VACCEL_RPC_ADDRESS=tcp://127.0.0.1:40001

The function's image holds libvaccel and the plugin (`LD_LIBRARY_PATH`). The host chooses the
plugins that compute: VACCEL_PLUGINS in gpud's own environment, or a program that wraps the agent.

Carries programs written to vAccel's interface. `exec` is one of its operations: the holder of the
lease runs code on the host as the agent's user. Several hosts: no.
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


class Vaccel(Middleware):
    """One vaccel-rpc-agent per lease."""

    name = "vaccel"
    one_host = True
    inherited = ("VACCEL_PLUGINS",)
    client = ClientRules(
        variables={"VACCEL_PLUGINS": r"libvaccel-rpc\.so", "VACCEL_RPC_ADDRESS": f"tcp://{ADDRESS}"}
    )
    summary = Summary(
        programs="vAccel",
        image="libvaccel and the plugin on `LD_LIBRARY_PATH`",
        server="`vaccel-rpc-agent`",
    )

    def variables(self, granted: GrantedLease) -> dict[str, str]:
        """The rpc plugin and the address of its agent."""
        del granted
        return {"VACCEL_PLUGINS": "libvaccel-rpc.so", "VACCEL_RPC_ADDRESS": "tcp://127.0.0.1:{0}"}

    def server_command(self, lease: ServerLease) -> ServerCommand | None:
        """The agent on 127.0.0.1, initialised by its own environment."""
        return ServerCommand(
            arguments=("-a", f"tcp://127.0.0.1:{lease.port}"),
            variables={"VACCEL_BOOTSTRAP_ENABLED": "0", **device_variables(lease.shares)},
            port=lease.port,
        )


MIDDLEWARE = Vaccel()

"""`vaccel`: vAccel's rpc plugin and its agent, operations by name; Apache-2.0.

    VACCEL_PLUGINS=libvaccel-rpc.so   VACCEL_RPC_ADDRESS=tcp://127.0.0.1:40001

The function's image holds libvaccel and the plugin (`LD_LIBRARY_PATH`). Which plugins compute is
the host's affair: VACCEL_PLUGINS in gpud's own environment, or a program that wraps the agent.

Carries programs written to vAccel's interface. `exec` is one of its operations: whoever has the
lease runs code on the host as the agent's user. Several hosts: no.
"""

from __future__ import annotations

from gpu_scheduler.model import GrantedLease, Share
from remote_gpu.middleware.base import Middleware, ServerCommand, check_one_host, device_variables


class Vaccel(Middleware):
    """One vaccel-rpc-agent per lease."""

    name = "vaccel"

    def variables(self, granted: GrantedLease) -> dict[str, str]:
        """Raises INVALID for a lease over several hosts."""
        check_one_host(self.name, granted)
        return {
            "VACCEL_PLUGINS": "libvaccel-rpc.so",
            "VACCEL_RPC_ADDRESS": "tcp://127.0.0.1:{0}",
        }

    def server_command(
        self, fence: int, shares: tuple[Share, ...], port: int
    ) -> ServerCommand | None:
        """The agent on 127.0.0.1, initialised by its own environment."""
        del fence
        return ServerCommand(
            arguments=("-a", f"tcp://127.0.0.1:{port}"),
            variables={"VACCEL_BOOTSTRAP_ENABLED": "0", **device_variables(shares)},
            port=port,
        )


MIDDLEWARE = Vaccel()

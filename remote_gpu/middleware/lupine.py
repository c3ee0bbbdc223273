"""`lupine`: Lupine (formerly SCUDA), a shim of the CUDA driver and of NVML; Apache-2.0.

    LUPINE_SERVER=127.0.0.1:40001,127.0.0.1:40002   LUPINE_DISABLE_LOCAL=1   LUPINE_AUTO=0

The comma list numbers the devices in the order of the servers. The function needs Lupine's Lambda
layer or image: `/opt/lib` with `libcuda.so.1` is on Lambda's own LD_LIBRARY_PATH. LUPINE_AUTO=0
keeps `lupine[auto]` from asking a commercial cloud for devices.

Carries unmodified CUDA 11.8, 12.4 and 13 programs, stock PyTorch among them, statically linked
runtimes too; no `cuMemcpy3DPeer`, and NCCL stays outside. The server forks for each connection and
listens on every interface: the host's firewall keeps all but the gateway's port closed.
"""

from __future__ import annotations

from gpu_scheduler.model import GrantedLease, Share
from remote_gpu.middleware.base import ServerCommand, device_variables, places


class Lupine:
    """One lupine_driver_server per lease and host."""

    name = "lupine"

    def variables(self, granted: GrantedLease) -> dict[str, str]:
        """One server per host, in the order of the lease's hosts."""
        hosts = dict.fromkeys(place.host for place in places(granted))
        servers = ",".join(f"127.0.0.1:{{{host}}}" for host in hosts)
        return {"LUPINE_SERVER": servers, "LUPINE_DISABLE_LOCAL": "1", "LUPINE_AUTO": "0"}

    def server_command(
        self, fence: int, shares: tuple[Share, ...], port: int
    ) -> ServerCommand | None:
        """It takes its port from a variable, and has no arguments."""
        del fence
        return ServerCommand(
            variables={"LUPINE_PORT": str(port), **device_variables(shares)}, port=port
        )


MIDDLEWARE = Lupine()

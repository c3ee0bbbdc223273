"""`pocl`: PoCL-Remote, whole OpenCL devices over TCP; MIT.

    POCL_DEVICES=remote remote
    POCL_REMOTE0_PARAMETERS=127.0.0.1:40001/0   POCL_REMOTE1_PARAMETERS=127.0.0.1:40001/1

The number after `/` is the device as the server numbers it. pocld uses three consecutive ports, and
so does the forwarder: the client knows the first one only. The function's image holds a PoCL (5.0
or later) with the remote driver; its own variables name it (`OCL_ICD_VENDORS`).

Carries unmodified OpenCL programs of 1.2 to 3.0, on whatever OpenCL devices the server finds; each
command of a queue waits for the one before it. Several hosts: yes.
"""

from __future__ import annotations

from gpu_scheduler.model import GrantedLease, Share
from remote_gpu.middleware.base import ServerCommand, device_variables, places


class Pocl:
    """One pocld per lease and host."""

    name = "pocl"

    def variables(self, granted: GrantedLease) -> dict[str, str]:
        """One remote device per share, in the order of the lease."""
        found = places(granted)
        variables = {"POCL_DEVICES": " ".join(["remote"] * len(found))}
        for number, place in enumerate(found):
            at = f"127.0.0.1:{{{place.host}}}/{place.device}"
            variables[f"POCL_REMOTE{number}_PARAMETERS"] = at
        return variables

    def server_command(
        self, fence: int, shares: tuple[Share, ...], port: int
    ) -> ServerCommand | None:
        """pocld on 127.0.0.1; a client that lost its connection has lost its lease."""
        del fence
        return ServerCommand(
            arguments=("-a", "127.0.0.1", "-p", str(port)),
            variables={"POCLD_ALLOW_CLIENT_RECONNECT": "0", **device_variables(shares)},
            port=port,
        )


MIDDLEWARE = Pocl()

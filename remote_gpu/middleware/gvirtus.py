"""`gvirtus`: GVirtuS, split drivers for the CUDA libraries; Apache-2.0.

    GVIRTUS_CONFIG=/tmp/…/gvirtus.json

Address and port are in that file only, and its form is the same on both sides; the forwarder writes
it. The function's image holds GVirtuS; its own variables name GVIRTUS_HOME and LD_LIBRARY_PATH
(`$GVIRTUS_HOME/lib:$GVIRTUS_HOME/lib/frontend`).

Carries the CUDA runtime (`-cudart shared`), the driver, cuBLAS, cuDNN, cuFFT, cuRAND, cuSOLVER and
cuSPARSE by plugins. Its authors call it not production-ready: not thread-safe, memory leaks. One
thread per client in one process. Several hosts: no.
"""

from __future__ import annotations

from gpu_scheduler.model import GrantedLease, Share
from remote_gpu.middleware.base import Middleware, ServerCommand, check_one_host, device_variables
from remote_gpu.wire.variables import gvirtus_properties

_PROPERTIES = "properties.json"


class Gvirtus(Middleware):
    """One gvirtus-backend per lease."""

    name = "gvirtus"

    def variables(self, granted: GrantedLease) -> dict[str, str]:
        """Raises INVALID for a lease over several hosts."""
        check_one_host(self.name, granted)
        return {"GVIRTUS_CONFIG": "{file}"}

    def server_command(
        self, fence: int, shares: tuple[Share, ...], port: int
    ) -> ServerCommand | None:
        """Its one argument is its file."""
        del fence
        return ServerCommand(
            arguments=(_PROPERTIES,),
            variables=device_variables(shares),
            files={_PROPERTIES: gvirtus_properties(port)},
            port=port,
        )


MIDDLEWARE = Gvirtus()

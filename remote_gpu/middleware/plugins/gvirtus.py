"""`gvirtus`: GVirtuS, split drivers for the CUDA libraries; Apache-2.0.

    GVIRTUS_CONFIG=/tmp/…/gvirtus.json

Address and port are in that file only, and its form is the same on both sides; the forwarder writes
it. The function's image holds GVirtuS; its own variables name GVIRTUS_HOME and LD_LIBRARY_PATH
(`$GVIRTUS_HOME/lib:$GVIRTUS_HOME/lib/frontend`).

Carries the CUDA runtime (`-cudart shared`), the driver, cuBLAS, cuDNN, cuFFT, cuRAND, cuSOLVER and
cuSPARSE by plugins. Its authors describe it as not production-ready: it is not thread-safe, and
leaks memory. One thread per client in one process. Several hosts: no.
"""

from __future__ import annotations

import json

from gpu_scheduler.model import GrantedLease
from remote_gpu.middleware.base import (
    Middleware,
    ServerCommand,
    ServerLease,
    Summary,
    device_variables,
)
from remote_gpu.wire.variables import ClientRules

_PROPERTIES = "properties.json"
#: Plugins that both sides load.
_PLUGINS = ("cudart", "cublas", "cufft", "curand", "cudnn")


def _properties(port: str) -> str:
    endpoint = {"suite": "tcp/ip", "protocol": "tcp", "server_address": "127.0.0.1", "port": port}
    communicator = {"endpoint": endpoint, "plugins": list(_PLUGINS)}
    return json.dumps({"communicator": [communicator], "secure_application": False})


class Gvirtus(Middleware):
    """One gvirtus-backend per lease."""

    name = "gvirtus"
    one_host = True
    inherited = ("GVIRTUS_HOME",)
    client = ClientRules(variables={"GVIRTUS_CONFIG": r"\{file\}"}, file=_properties("{0}"))
    summary = Summary(
        programs="CUDA runtime and libraries, `-cudart shared`",
        image="`GVIRTUS_HOME`, `LD_LIBRARY_PATH`",
        server="`gvirtus-backend`",
    )

    def variables(self, granted: GrantedLease) -> dict[str, str]:
        """The forwarder's file."""
        del granted
        return {"GVIRTUS_CONFIG": "{file}"}

    def server_command(self, lease: ServerLease) -> ServerCommand | None:
        """The server reads its file, its only argument."""
        return ServerCommand(
            arguments=(_PROPERTIES,),
            variables=device_variables(lease.shares),
            files={_PROPERTIES: _properties(str(lease.port))},
            port=lease.port,
        )


MIDDLEWARE = Gvirtus()

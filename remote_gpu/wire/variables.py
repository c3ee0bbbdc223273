"""The variables each middleware's own client needs, with the grammar of their values.

One list for both sides: what a middleware renders on the way out, and what a runner takes from an
envelope on the way in. Anything beyond it is refused: it could be LD_PRELOAD. A client connects to
the forwarder in its own function and nowhere else, so 127.0.0.1 is the only address there is. The
ports are known only there: an envelope says `{0}` for the one of the lease's first host, `{1}` for
its second, and `{file}` for the configuration file the forwarder writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from remote_gpu.wire.errors import WireError

_PORT = r"\{\d{1,2}\}"  # never a number: 9001 is Lambda's runtime interface
_ADDRESS = rf"127\.0\.0\.1:{_PORT}"

#: middleware → name of a variable → its values, both as regular expressions for whole strings
ALLOWED: Mapping[str, Mapping[str, str]] = {
    "builtin": {},
    "rcuda": {
        r"RCUDA_DEVICE_COUNT": r"[1-9]\d?",
        r"RCUDA_DEVICE_\d{1,2}": rf"127\.0\.0\.1@{_PORT}:\d{{1,2}}",  # port after @, device after :
        r"RCUDAPROTO": r"TCP",
    },
    "lupine": {
        r"LUPINE_SERVER": rf"{_ADDRESS}(?:,{_ADDRESS}){{0,63}}",
        r"LUPINE_DISABLE_LOCAL": r"1",
        r"LUPINE_AUTO": r"0",  # of orchestrators up to 0.1
    },
    "cricket": {
        r"REMOTE_GPU_ADDRESS": _ADDRESS,
        r"CRICKET_RPCID": r"\d{1,10}",
    },
    "gvirtus": {
        r"GVIRTUS_CONFIG": r"\{file\}",
    },
    "pocl": {
        r"POCL_DEVICES": r"remote(?: remote){0,63}",
        r"POCL_REMOTE\d{1,2}_PARAMETERS": rf"{_ADDRESS}/\d{{1,2}}",
    },
    "vaccel": {
        r"VACCEL_PLUGINS": r"libvaccel-rpc\.so",
        r"VACCEL_RPC_ADDRESS": rf"tcp://{_ADDRESS}",
    },
}

#: How many consecutive ports of a server its clients reach: pocld's are one for commands and one
#: for bulk data. Its third, for other servers, stays shut: whoever reaches it is a peer.
PORTS: Mapping[str, int] = {name: 2 if name == "pocl" else 1 for name in ALLOWED}

_LOOPBACK = "127.0.0.1"
#: Where the forwarder listens, if not there. Cricket's client takes a server for one on its own
#: machine when both ends of the connection have one address, and then passes memory by /dev/shm.
_ADDRESSES: Mapping[str, str] = {"cricket": "127.0.0.2"}

#: GVirtuS's plugins that both sides load.
_GVIRTUS_PLUGINS = ("cudart", "cublas", "cufft", "curand", "cudnn")


def client_address(middleware: str) -> str:
    """The loopback address at which the middleware's client finds the forwarder."""
    return _ADDRESSES.get(middleware, _LOOPBACK)


def allowed_variables(middleware: str, variables: Mapping[str, str]) -> dict[str, str]:
    """`variables`, when the middleware may set every one of them to its value.

    Raises WireError naming the middleware, variable or value that is not allowed.
    """
    grammar = ALLOWED.get(middleware)
    if grammar is None:
        raise WireError(f"unknown middleware {middleware!r}; known are {', '.join(ALLOWED)}")
    for name, value in variables.items():
        values = next((v for n, v in grammar.items() if re.fullmatch(n, name, re.ASCII)), None)
        if values is None:
            raise WireError(f"middleware {middleware} may not set {name!r}")
        if not isinstance(value, str) or not re.fullmatch(values, value, re.ASCII):
            raise WireError(f"middleware {middleware}: {value!r} is no value for {name}")
    return dict(variables)


def filled_variables(
    middleware: str, variables: Mapping[str, str], ports: Sequence[int], file: str
) -> dict[str, str]:
    """`variables` with the forwarder's ports, by host of the lease, and its file in them.

    Raises WireError for what is not allowed, and for a host that the lease does not have.
    """
    values = {str(number): str(port) for number, port in enumerate(ports)} | {"file": file}

    def value(found: re.Match[str]) -> str:
        if found[1] not in values:
            raise WireError(f"{found[0]} in a variable of {middleware} is no host of the lease")
        return values[found[1]]

    allowed = allowed_variables(middleware, variables)
    address = client_address(middleware)
    return {
        name: re.sub(r"\{(\w+)\}", value, text).replace(_LOOPBACK, address)
        for name, text in allowed.items()
    }


def gvirtus_properties(port: int) -> str:
    """The JSON that GVirtuS's client and server read their endpoint from; it has no variable."""
    endpoint = {
        "suite": "tcp/ip",
        "protocol": "tcp",
        "server_address": "127.0.0.1",
        "port": str(port),
    }
    communicator = {"endpoint": endpoint, "plugins": list(_GVIRTUS_PLUGINS)}
    return json.dumps({"communicator": [communicator], "secure_application": False})

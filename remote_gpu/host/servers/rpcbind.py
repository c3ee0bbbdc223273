"""The registration of an ONC RPC server with this machine's rpcbind, which outlives the server.

A server that is killed stays registered, and rpcbind lets only the user who registered a program
(or root) register it again: a later server of another user could not start under its number.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path

from remote_gpu.middleware import RpcProgram

RPCBIND_SOCKET = Path("/run/rpcbind.sock")
_ANSWER_S = 2.0
_RPCBIND, _RPCBIND_VERSION, _UNSET = 100_000, 4, 2  #: RFC 1833
_CALL, _RPC_VERSION, _AUTH_NONE = 0, 2, 0  #: RFC 5531
_LAST_FRAGMENT = 1 << 31
_NO_TEXT = 0  #: length of an empty string: any transport, any address, the caller's user


def unregister(program: RpcProgram, path: Path | None = None) -> None:
    """Remove a program from rpcbind, on all transports; idempotent. `path`: another socket.

    Nothing happens where no rpcbind answers, or where it may not be removed: the server then
    reports what it lacks. Blocks for `_ANSWER_S` at most.
    """
    call = struct.pack(">6I", 1, _CALL, _RPC_VERSION, _RPCBIND, _RPCBIND_VERSION, _UNSET)
    call += struct.pack(">4I", _AUTH_NONE, 0, _AUTH_NONE, 0)
    call += struct.pack(">5I", program.number, program.version, _NO_TEXT, _NO_TEXT, _NO_TEXT)
    try:
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(_ANSWER_S)
            stream.connect(str(path or RPCBIND_SOCKET))
            stream.sendall(struct.pack(">I", _LAST_FRAGMENT | len(call)) + call)
            stream.recv(64)  # the answer: it is done
    except OSError:
        return

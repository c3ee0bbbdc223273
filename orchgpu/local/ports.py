"""Ports of programs that start again at the address they had before.

Such a program must not have an ephemeral port: while it is down, the kernel may give that port to
any outgoing connection of the machine, and the program cannot listen there as long as that
connection lasts. Port 0, which asks for an ephemeral one, is right for a program that starts once.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from itertools import cycle

#: Below the ephemeral ports of Linux (32768 to 60999; ip(7), ip_local_port_range).
_FIRST, _LAST = 11_000, 32_000


def _candidates() -> Iterator[int]:
    """Ports in an order of the process's own: parallel processes rarely try the same one."""
    size = _LAST - _FIRST
    begin = os.getpid() * 101 % size
    return cycle([*range(_FIRST + begin, _LAST), *range(_FIRST, _FIRST + begin)])


_ports = _candidates()


def fixed_port() -> int:
    """A port of the loopback that is free and that no outgoing connection takes later.

    Raises OSError when all are in use.
    """
    for _ in range(_LAST - _FIRST):
        port = next(_ports)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port between {_FIRST} and {_LAST}")


def fixed_address() -> str:
    """`127.0.0.1:PORT` with a port of `fixed_port`."""
    return f"127.0.0.1:{fixed_port()}"

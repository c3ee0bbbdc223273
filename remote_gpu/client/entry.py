"""`connect()`: the devices of the lease that the environment names."""

from __future__ import annotations

import os
from collections.abc import Mapping

from remote_gpu.client.devices import Devices
from remote_gpu.client.transport.session import Session
from remote_gpu.client.uncaught import end_in_own_line
from remote_gpu.wire.connection import CONNECTION_VARIABLE, SESSION_VARIABLE, parse_access
from remote_gpu.wire.errors import Refusal, Refused, WireError

#: Without a runner: the longest run of a Lambda function, plus 30 s.
DEFAULT_CAP_S = 930.0


def connect(environ: Mapping[str, str] | None = None, *, cap_s: float = DEFAULT_CAP_S) -> Devices:
    """The devices of the lease that the environment names; used as one, they are the first.

    With a runner (`ORCHGPU_SESSION`) their lanes are on the runner's session. Without one
    (`ORCHGPU_CONNECTION`) this opens a session of at most `cap_s` seconds, which closing the
    devices ends. The traceback of an uncaught device error ends at the program's own line. Raises
    Refused: NOT_INSTALLED when the environment names no lease.
    """
    end_in_own_line()
    variables = os.environ if environ is None else environ
    if text := variables.get(SESSION_VARIABLE):
        try:
            return Devices(parse_access(text))
        except WireError as error:
            raise Refused(Refusal.PROTOCOL, f"{SESSION_VARIABLE}: {error}") from None
    if text := variables.get(CONNECTION_VARIABLE):
        session = Session.open(text, cap_s)
        try:
            return Devices(session.view(), on_close=session.close)
        except BaseException:
            session.close()
            raise
    raise Refused(
        Refusal.NOT_INSTALLED,
        f"neither {SESSION_VARIABLE} nor {CONNECTION_VARIABLE} is set: this program has no lease;"
        " Local() runs the same operations on its own CPU",
    )

"""`connect()`: from the environment to a device."""

from __future__ import annotations

import os
from collections.abc import Mapping

from remote_gpu.client.device import Lane
from remote_gpu.client.session import Session
from remote_gpu.wire.connection import CONNECTION_VARIABLE, SESSION_VARIABLE, parse_access
from remote_gpu.wire.errors import Refusal, Refused, WireError

#: Without a runner nobody says how long the work may take: Lambda's longest function, plus 30 s.
DEFAULT_CAP_S = 930.0


def connect(
    environ: Mapping[str, str] | None = None, *, index: int = 0, cap_s: float = DEFAULT_CAP_S
) -> Lane:
    """A lane to device number `index` of the lease that the environment names.

    With a runner (`ORCHGPU_SESSION`) it is a lane on the runner's session. Without one
    (`ORCHGPU_CONNECTION`) it opens the session itself, capped at `cap_s`, and closing the lane
    closes it. Raises Refused: NOT_INSTALLED when the environment names no lease.
    """
    variables = os.environ if environ is None else environ
    if text := variables.get(SESSION_VARIABLE):
        try:
            return Lane.open(parse_access(text), index)
        except WireError as error:
            raise Refused(Refusal.PROTOCOL, f"{SESSION_VARIABLE}: {error}") from None
    if text := variables.get(CONNECTION_VARIABLE):
        session = Session.open(text, cap_s)
        try:
            return Lane.open(session.view(), index, on_close=session.close)
        except BaseException:
            session.close()
            raise
    raise Refused(
        Refusal.NOT_INSTALLED,
        f"neither {SESSION_VARIABLE} nor {CONNECTION_VARIABLE} is set: no device was lent to this"
        " program; Local() runs the same operations on its own CPU",
    )

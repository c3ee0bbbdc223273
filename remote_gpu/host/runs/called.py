"""The calls of a run that is an endpoint: connections on their way to its runner.

gpud relays each one to a socket of its own, whose other end the runner gets over a socket that it
was started with. So a certificate's key stays with gpud, and calls with the runner: the user's
code has neither.
"""

from __future__ import annotations

import contextlib
import socket

from remote_gpu.client.transport.relay import Relay
from remote_gpu.wire.errors import Refusal, Refused

#: Of one run at once: each costs two threads. Twice the calls that a run answers side by side, as
#: an ended one counts until it is cut.
CONNECTIONS_MAX = 32


class CallSocket:
    """gpud's end."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self.descriptor = self._theirs.fileno()  #: of the runner's end, in its process too
        self.relays: list[Relay] = []  #: to the runner

    def inherited(self) -> None:
        """The runner's process has its end."""
        self._theirs.close()

    def connect(self) -> socket.socket:
        """A new connection to the runner, which may not be ready to read it. Raises Refused."""
        if len(self.relays) >= CONNECTIONS_MAX:
            text = f"an endpoint has at most {CONNECTIONS_MAX} callers at once"
            raise Refused(Refusal.BUSY, text)
        with contextlib.ExitStack() as stack:
            try:
                inner, theirs = socket.socketpair()
                stack.callback(theirs.close)
                undo = stack.enter_context(contextlib.ExitStack())
                undo.callback(inner.close)
                socket.send_fds(self._ours, [b"call"], [theirs.fileno()])
                undo.pop_all()
            except OSError as error:
                text = f"the endpoint takes no connection: {error.strerror or error}"
                raise Refused(Refusal.NOT_READY, text) from None
        return inner

    def close(self) -> None:
        """Cut all connections, and take none. Idempotent."""
        self._theirs.close()
        self._ours.close()
        self.cut()

    def cut(self) -> None:
        """Cut all connections."""
        for relay in self.relays:
            relay.cut()

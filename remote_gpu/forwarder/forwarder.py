"""The forwarder of one lease: a range of local ports per host, relayed to the gateways.

Any process of the function may connect, as it may read the session's key: the function belongs to
the tenant. A connection that the gateway refuses is closed; the log has the reason.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from remote_gpu.client.transport.handshake import RELAY_S, Carrier, open_connection, tune
from remote_gpu.client.transport.readiness import readable
from remote_gpu.client.transport.relay import Relay
from remote_gpu.wire.connection import Access, HostAccess
from remote_gpu.wire.errors import Refusal, Refused
from remote_gpu.wire.proof import ConnectionRole
from remote_gpu.wire.variables import client_file, filled_variables, rules_of

logger = logging.getLogger(__name__)

CONNECTIONS_MAX = 64  #: at once; the host's own limit
_BACKLOG = 64
_RANGE_TRIES = 50  #: ranges of consecutive ports to try
_END_S = 10.0  #: for threads to end after their sockets were shut down
#: Final refusals close the ports: clients that reconnect without a pause stop only when a port is
#: closed.
_FINAL = frozenset({Refusal.CLAIMED, Refusal.DENIED, Refusal.ENDED})
_CLOSE, _REFUSE = b"c", b"r"  #: commands to the accepting thread


class Forwarder:
    """A context manager that listens from `enter` to `exit`, which ends open relays.

    A connection that still waits for its server ends when the devices are given back.
    """

    def __init__(self, access: Access, middleware: str) -> None:
        """`access` is a session's view. Raises WireError for an unknown middleware."""
        self._rules = rules_of(middleware)
        self._access = access
        self._middleware = middleware
        self._lock = threading.Lock()
        self._closing = False
        self._waiting = 0  # connections that are being opened
        self._relays: set[Relay] = set()
        self._listeners: dict[socket.socket, tuple[HostAccess, int]] = {}
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._accept, name="forwarder", daemon=True)
        self.ports: tuple[int, ...] = ()  #: the first one of each host of the lease

    def __enter__(self) -> Self:
        """Raises OSError when no ports are free."""
        try:
            self.ports = tuple(self._listen(host) for host in self._access.hosts)
        except BaseException:
            self._close_sockets()
            raise
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wake.send(_CLOSE)
        self._thread.join(_END_S)
        with self._lock:
            self._closing = True  # threads end relays that they start from now on
            relays = list(self._relays)
        for relay in relays:
            relay.cut()
        for relay in relays:
            relay.join(_END_S)
        self._close_sockets()

    def _close_sockets(self) -> None:
        for stream in (*self._listeners, self._wake, self._woken):
            stream.close()

    def _listen(self, host: HostAccess) -> int:
        """Listen on as many consecutive ports as the middleware's server has; returns the first."""
        for _ in range(_RANGE_TRIES):
            streams: list[socket.socket] = []
            try:
                for number in range(self._rules.ports):
                    port = streams[0].getsockname()[1] + number if streams else 0
                    address = (self._rules.address, port)
                    stream = socket.create_server(address, backlog=_BACKLOG)
                    stream.setblocking(False)
                    streams.append(stream)
            except (OSError, OverflowError):  # in use, or beyond the last port
                for stream in streams:
                    stream.close()
                continue
            self._listeners |= {stream: (host, number) for number, stream in enumerate(streams)}
            return int(streams[0].getsockname()[1])
        raise OSError(f"no {self._rules.ports} consecutive ports are free")

    def _accept(self) -> None:
        while True:
            ready = readable([*self._listeners, self._woken])
            if self._woken in ready:
                if _CLOSE in self._woken.recv(64):
                    return
                self._refuse_all()
                continue
            for listener in ready:
                with contextlib.suppress(OSError):  # the client has gone
                    self._take(listener.accept()[0], *self._listeners[listener])

    def _refuse_all(self) -> None:
        """Close all listeners; called by the accepting thread, which alone uses them."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def _take(self, stream: socket.socket, host: HostAccess, number: int) -> None:
        with self._lock:
            full = self._waiting + len(self._relays) >= CONNECTIONS_MAX
            self._waiting += not full
        if full:
            logger.warning("%d connections are open; refusing one more", CONNECTIONS_MAX)
            stream.close()
            return
        stream.setblocking(True)
        carry = (stream, host, number)
        try:
            threading.Thread(target=self._carry, args=carry, name="relay", daemon=True).start()
        except RuntimeError as error:  # the function's limit of threads
            logger.warning("cannot connect a client of %s: %s", self._middleware, error)
            stream.close()
            with self._lock:
                self._waiting -= 1

    def _carry(self, stream: socket.socket, host: HostAccess, number: int) -> None:
        try:
            tune(stream)
            self._relay(stream, self._open(stream, host, number))
        except (Refused, OSError, RuntimeError) as error:
            logger.warning("cannot connect a client of %s: %s", self._middleware, error)
            if isinstance(error, Refused) and error.code in _FINAL:
                with contextlib.suppress(OSError):  # closed meanwhile
                    self._wake.send(_REFUSE)
            stream.close()
        finally:
            with self._lock:
                self._waiting -= 1

    def _open(self, stream: socket.socket, host: HostAccess, number: int) -> Carrier:
        """The proven connection to the server; early bytes of the server are passed on."""
        outer, channel, _ = open_connection(
            host,
            role=ConnectionRole.RELAY,
            lease=self._access.lease,
            fence=self._access.fence,
            session=self._access.session,
            timeout_s=RELAY_S,
            middleware=self._middleware,
            port=number,
        )
        try:
            stream.sendall(channel.take_rest())
        except BaseException:
            outer.close()
            raise
        return outer

    def _relay(self, stream: socket.socket, outer: Carrier) -> None:
        relay = Relay(stream, outer)
        with self._lock:
            self._relays.add(relay)
            try:
                relay.start(lambda: self._relays.discard(relay))
            except RuntimeError:  # no more threads; a started one ends with the sockets
                self._relays.discard(relay)
                relay.cut()
                outer.close()
                raise
            if self._closing:
                relay.cut()


@contextlib.contextmanager
def client_variables(
    access: Access, middleware: str, variables: Mapping[str, str], folder: Path
) -> Iterator[dict[str, str]]:
    """The variables of a middleware's client, valid inside the block.

    `variables` are the envelope's, with `{0}` for a port; the client's file, if it needs one, is
    written to `folder`. Raises WireError for variables that are not allowed, OSError without a free
    port.
    """
    if middleware == "builtin":
        yield filled_variables(middleware, variables, (), "")
        return
    with Forwarder(access, middleware) as forwarder:
        file = folder / f"{middleware}.json"
        if contents := client_file(middleware, forwarder.ports[0]):
            file.write_text(contents)
        yield filled_variables(middleware, variables, forwarder.ports, str(file))

"""The opening of a connection to a gateway: dial, mutual proof, welcome or refusal."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from remote_gpu.wire.channel import Channel
from remote_gpu.wire.connection import HostAccess
from remote_gpu.wire.errors import Refusal, Refused, WireError
from remote_gpu.wire.frames import HANDSHAKE, Meta, text_field
from remote_gpu.wire.proof import (
    AUTHORITY_CHARACTERS_MAX,
    NONCE_BYTES,
    ConnectionRole,
    Hello,
    client_bound,
    client_proof,
    connection_key,
    gateway_bound,
    gateway_proof,
    matches,
)

if TYPE_CHECKING:
    from remote_gpu.client.transport.tls import TlsStream

# The timeouts for a gateway. Only faults reach them. `corekit.budget`, which functions do not have,
# repeats them (`gateway_dial_s` and so on) and checks them against the host's own times.
#: Of the TCP connection alone.
DIAL_S = 5.0
#: Of one answer: longer than an install and the revocation of the previous lease may take, shorter
#: than a session's silence.
ANSWER_S = 20.0
#: Of opening a relay: a host has two minutes to start a server, then it reports the reason.
RELAY_S = 130.0

#: The stream of a proven connection: plain, on this machine, or in TLS.
Carrier: TypeAlias = "socket.socket | TlsStream"

#: Refusals on the Unix socket after which TCP is tried: the socket belongs to another machine, or
#: does not trust this user.
_NOT_HERE = frozenset({Refusal.UNREACHABLE, Refusal.DENIED, Refusal.PROTOCOL})
#: The kernel's own probe of a silent peer: after 60 s idle, every 15 s, 3 times.
_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The wait of a session for the shares of its lease."""

    until_s: float | None  #: monotonic; None = as long as the gateway lets it
    on_waiting: Callable[[], None]  #: called at each message that it waits

    def limit_s(self, timeout_s: float) -> float:
        """Seconds that the next message may take. Raises TimeoutError."""
        if self.until_s is None:
            return timeout_s
        if (left_s := self.until_s - time.monotonic()) <= 0:
            raise TimeoutError
        return min(timeout_s, left_s)


def new_nonce() -> str:
    """A fresh nonce in hex."""
    return secrets.token_hex(NONCE_BYTES)


def open_connection(
    access: HostAccess,
    *,
    role: ConnectionRole,
    lease: str,
    fence: int,
    session: str,
    timeout_s: float,
    cap_s: float = 0.0,
    device: int = 0,
    middleware: str = "",
    port: int = 0,
    wait: Wait | None = None,
    new_sandbox: bool | None = None,
) -> tuple[Carrier, Channel, Meta]:
    """Connect and prove; returns the stream, its channel and the gateway's welcome.

    Over the host's Unix socket if `access` has one that works, else over TCP, in TLS if the gateway
    requires it. `wait`: of a session; each message that it waits begins `timeout_s` again;
    `new_sandbox`: of a session, as `Session.open` has it. Raises Refused: UNREACHABLE, TIMEOUT,
    DENIED when the proof of either side is wrong, or the gateway's own code. Nothing stays open
    after an error.
    """
    hello = Hello(
        role=role,
        lease=lease,
        fence=fence,
        host=access.host,
        session=session,
        nonce=new_nonce(),
        cap_ms=int(cap_s * 1000),
        device=device,
        middleware=middleware,
        port=port,
        waits=wait is not None,
        new_sandbox=new_sandbox,
    )
    if access.unix:
        with contextlib.suppress(_NotHere):
            return _connected(access, hello, timeout_s, wait, local=True)
    return _connected(access, hello, timeout_s, wait, local=False)


class _NotHere(Exception):
    """The Unix socket is not usable; TCP may be."""


def _connected(
    access: HostAccess, hello: Hello, timeout_s: float, wait: Wait | None, *, local: bool
) -> tuple[Carrier, Channel, Meta]:
    """Dial and prove over one transport. Raises Refused, and _NotHere for the Unix socket."""
    try:
        with errors_as_refusals(f"gateway {access.gateway} of {access.host}"):
            stream = _dial_local(access.unix) if local else _dial(access, timeout_s)
            try:
                stream.settimeout(timeout_s)
                return _prove(stream, hello, bytes.fromhex(access.secret), wait)
            except BaseException:
                stream.close()
                raise
    except Refused as refused:
        if local and refused.code in _NOT_HERE:
            raise _NotHere from refused
        raise


def _dial(access: HostAccess, timeout_s: float) -> socket.socket:
    stream = socket.create_connection(access.address, timeout=min(DIAL_S, timeout_s))
    try:
        tune(stream)
    except BaseException:
        stream.close()
        raise
    return stream


def _dial_local(path: str) -> socket.socket:
    stream = socket.socket(socket.AF_UNIX)
    try:
        stream.settimeout(DIAL_S)
        stream.connect(path)
    except BaseException:
        stream.close()
        raise
    return stream


def is_reachable(path: str) -> bool:
    """Whether this user can connect to a Unix socket at `path`."""
    try:
        _dial_local(path).close()
    except (OSError, ValueError):  # ValueError: not a valid path
        return False
    return True


def tune(stream: socket.socket) -> None:
    """Disable Nagle's delay; enable keepalive where the platform has the options."""
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if (option := getattr(socket, name, None)) is not None:
            stream.setsockopt(socket.IPPROTO_TCP, option, value)


@contextlib.contextmanager
def errors_as_refusals(where: str) -> Iterator[None]:
    """Turn socket and protocol errors inside into `Refused`."""
    try:
        yield
    except TimeoutError:
        raise Refused(Refusal.TIMEOUT, f"{where} did not answer in time") from None
    except OSError as error:
        raise Refused(Refusal.UNREACHABLE, f"{where}: {error.strerror or error}") from None
    except WireError as error:
        raise Refused(Refusal.PROTOCOL, f"{where}: {error}") from None


def _prove(
    stream: socket.socket, hello: Hello, key: bytes, wait: Wait | None
) -> tuple[Carrier, Channel, Meta]:
    channel = Channel(stream, HANDSHAKE)
    channel.send(hello.to_meta())
    challenge = _answer(channel, "challenge")
    nonce, proof = text_field(challenge, "nonce"), text_field(challenge, "proof")
    authority = ""  # absent for a gateway without a certificate
    if "authority" in challenge:
        authority = text_field(challenge, "authority", AUTHORITY_CHARACTERS_MAX)
    if not matches(gateway_proof(key, hello, nonce, authority), proof):
        raise Refused(Refusal.DENIED, f"{hello.host} does not know the secret of {hello.lease}")
    channel.send({"proof": client_proof(key, hello, nonce, authority)})
    if not authority:
        return stream, channel, _welcome(stream, channel, wait)
    _answer(channel, "tls")
    own_key = connection_key(key, hello, nonce, authority)
    return _prove_in_tls(stream, authority, own_key, hello.host, wait)


def _prove_in_tls(
    stream: socket.socket, authority: str, key: bytes, host: str, wait: Wait | None
) -> tuple[Carrier, Channel, Meta]:
    from remote_gpu.client.transport.tls import (  # imports `ssl`
        TlsStream,
        client_context,
        secure,
    )

    try:
        machine = secure(stream, client_context(authority), server=False)
    except WireError as error:
        raise Refused(Refusal.DENIED, f"{host}: {error}") from None
    carrier = TlsStream(stream, machine)
    channel = Channel(carrier, HANDSHAKE)
    channel.send({"bound": client_bound(key, machine.binding)})
    welcome = _welcome(stream, channel, wait)
    if not matches(gateway_bound(key, machine.binding), text_field(welcome, "bound")):
        raise Refused(
            Refusal.DENIED, f"channel binding mismatch with {host} (possible man in the middle)"
        )
    return carrier, channel, welcome


def _welcome(stream: socket.socket, channel: Channel, wait: Wait | None) -> Meta:
    """The welcome, after any number of messages that the session waits."""
    if wait is None:
        return _answer(channel, "welcome")
    timeout_s = stream.gettimeout() or ANSWER_S
    while True:
        stream.settimeout(wait.limit_s(timeout_s))
        meta = _received(channel)
        if "waiting" not in meta:
            return _field(meta, "welcome")
        wait.on_waiting()


def _answer(channel: Channel, expected: str) -> Meta:
    return _field(_received(channel), expected)


def _received(channel: Channel) -> Meta:
    received = channel.receive()
    if received is None:
        raise Refused(Refusal.UNREACHABLE, "the gateway closed the connection")
    meta = received[1]
    if isinstance(refused := meta.get("refused"), dict):
        raise Refused(text_field(refused, "code", 32), text_field(refused, "message", 1000))
    return meta


def _field(meta: Meta, expected: str) -> Meta:
    value = meta.get(expected)
    if not isinstance(value, dict):
        raise WireError(f"the gateway's frame has no {expected!r}")
    return value

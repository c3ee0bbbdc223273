"""One connection through a gateway: dial, prove, be let in or be refused with a code."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Iterator
from typing import Any

from remote_gpu.wire.channel import Channel
from remote_gpu.wire.connection import HostAccess
from remote_gpu.wire.errors import Refusal, Refused, WireError
from remote_gpu.wire.frames import HANDSHAKE, text_field
from remote_gpu.wire.proof import NONCE_BYTES, Hello, Role, client_proof, gateway_proof, matches

#: Seconds for the TCP connection alone: a host that does not answer by then is gone.
DIAL_S = 5.0
#: The kernel's own probe of a silent peer: after 60 s idle, every 15 s, 3 times.
_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 3))


def new_nonce() -> str:
    """A fresh nonce in hex."""
    return secrets.token_hex(NONCE_BYTES)


def open_connection(
    access: HostAccess,
    *,
    role: Role,
    lease: str,
    fence: int,
    session: str,
    timeout_s: float,
    cap_s: float = 0.0,
    device: int = 0,
    middleware: str = "",
    port: int = 0,
) -> tuple[socket.socket, Channel, dict[str, Any]]:
    """Connect and prove; returns the socket, its channel and the gateway's welcome.

    Raises Refused: UNREACHABLE, TIMEOUT, DENIED when either side's proof is wrong, or whatever the
    gateway says. Nothing stays open after an error.
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
    )
    with errors_as_refusals(f"gateway {access.gateway} of {access.host}"):
        stream = socket.create_connection(access.address, timeout=min(DIAL_S, timeout_s))
        try:
            tune(stream)
            stream.settimeout(timeout_s)
            channel = Channel(stream, HANDSHAKE)
            welcome = _prove(channel, hello, bytes.fromhex(access.secret))
        except BaseException:
            stream.close()
            raise
    return stream, channel, welcome


def tune(stream: socket.socket) -> None:
    """No Nagle delay; keepalive 60/15/3 where the platform has the options."""
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if (option := getattr(socket, name, None)) is not None:
            stream.setsockopt(socket.IPPROTO_TCP, option, value)


@contextlib.contextmanager
def errors_as_refusals(where: str) -> Iterator[None]:
    """Socket and protocol errors leave this block as `Refused`."""
    try:
        yield
    except TimeoutError:
        raise Refused(Refusal.TIMEOUT, f"{where} did not answer in time") from None
    except OSError as error:
        raise Refused(Refusal.UNREACHABLE, f"{where}: {error.strerror or error}") from None
    except WireError as error:
        raise Refused(Refusal.PROTOCOL, f"{where}: {error}") from None


def _prove(channel: Channel, hello: Hello, key: bytes) -> dict[str, Any]:
    channel.send(hello.to_meta())
    challenge = _answer(channel, "challenge")
    nonce, proof = text_field(challenge, "nonce"), text_field(challenge, "proof")
    if not matches(gateway_proof(key, hello, nonce), proof):
        raise Refused(Refusal.DENIED, f"{hello.host} does not know the secret of {hello.lease}")
    channel.send({"proof": client_proof(key, hello, nonce)})
    return _answer(channel, "welcome")


def _answer(channel: Channel, expected: str) -> dict[str, Any]:
    received = channel.receive()
    if received is None:
        raise Refused(Refusal.UNREACHABLE, "the gateway closed the connection")
    meta = received[1]
    if isinstance(refused := meta.get("refused"), dict):
        raise Refused(text_field(refused, "code", 32), text_field(refused, "message", 1000))
    value = meta.get(expected)
    if not isinstance(value, dict):
        raise WireError(f"expected {expected!r}")
    return value

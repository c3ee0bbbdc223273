"""The mutual proof that both ends know the secret of a lease, safe against replay.

    client  → hello      (role, lease, fence, host, session, client nonce, …)
    gateway → challenge  (gateway nonce, authority, HMAC(key, "gateway" ‖ transcript))
    client  → answer     (HMAC(key, "client" ‖ transcript))
    gateway → welcome    or a refusal, at any point

A session whose client sends `waits` with its hello gets `waiting` once and then every beat, before
the welcome, while the shares of its lease are not free.

The transcript holds every field of the hello, both nonces and the authority, so a proof is valid
for one lease, fence, host, session and connection only. A session, an order to run and a caller of
an endpoint prove with the lease's secret; a lane or relay with a key derived from it for that
session, so a user's program never has the secret, and can neither order nor call a run.

With an authority (a certificate in PEM; "" = none) the connection continues in TLS, and both sides
also prove that they are the two ends of the same TLS connection:

    gateway → tls        and the handshake follows, which the authority must have signed
    client  → bound      (HMAC(connection key, "client" ‖ binding))
    gateway → welcome    with bound (HMAC(connection key, "gateway" ‖ binding))

A man in the middle of two TLS connections has two bindings and no key. The requirement of TLS and
the authority are part of the proof, so they cannot be removed.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum

from remote_gpu.wire.errors import Refusal, Refused, WireError
from remote_gpu.wire.frames import Meta, int_field, text_field

NONCE_BYTES = 16
SECRET_BYTES = 32
#: PEM text of an authority: it travels in a challenge, which is a frame of 4 KiB at most.
AUTHORITY_CHARACTERS_MAX = 3400
#: Fields of a hello that travel beside it.
_BESIDE = frozenset({"waits", "new_sandbox"})


class ConnectionRole(StrEnum):
    """The purpose of a connection."""

    SESSION = "session"  #: holds the lease
    LANE = "lane"  #: carries work
    RELAY = "door"  #: carries the bytes of another middleware's client
    RUN = "run"  #: orders the run of its function on this host
    CALLS = "calls"  #: calls that run, which is an endpoint (`remote_gpu.wire.calls`)


#: These prove with the secret itself.
_WITH_SECRET = (ConnectionRole.SESSION, ConnectionRole.RUN, ConnectionRole.CALLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first frame of a client."""

    role: ConnectionRole
    lease: str
    fence: int
    host: str
    session: str  #: hex nonce of the session; the first one binds the lease
    nonce: str  #: hex nonce of this connection
    cap_ms: int = 0  #: session: its hard limit
    device: int = 0  #: lane: index of the device on the host
    middleware: str = ""  #: relay: of the server
    port: int = 0  #: relay: number of the server's port, from 0
    #: Session: its client understands `waiting`. Beside the hello in the frame, and not proven: a
    #: gateway that does not know it ignores it.
    waits: bool = False
    #: Session, beside the hello too: its function started a sandbox; None = unknown.
    new_sandbox: bool | None = None

    def proven(self) -> Meta:
        """The fields that a proof holds."""
        return {name: value for name, value in asdict(self).items() if name not in _BESIDE}

    def to_meta(self) -> Meta:
        known = {} if self.new_sandbox is None else {"new_sandbox": self.new_sandbox}
        return {"hello": self.proven(), **({"waits": True} if self.waits else {}), **known}

    @classmethod
    def from_meta(cls, meta: Mapping[str, object]) -> Hello:
        """Raises WireError for anything but a well-formed hello."""
        value = meta.get("hello")
        if not isinstance(value, dict) or set(value) != {f.name for f in fields(cls)} - _BESIDE:
            raise WireError("the first frame must be a hello")
        role = text_field(value, "role", 16)
        if role not in set(ConnectionRole):
            raise WireError(f"role {role!r} is not one of {', '.join(ConnectionRole)}")
        return cls(
            role=ConnectionRole(role),
            lease=text_field(value, "lease", 128),
            fence=int_field(value, "fence"),
            host=text_field(value, "host", 128),
            session=_hex_field(value, "session"),
            nonce=_hex_field(value, "nonce"),
            cap_ms=int_field(value, "cap_ms", 2**40),
            device=int_field(value, "device", 1023),
            middleware=text_field(value, "middleware", 32),
            port=int_field(value, "port", 15),
            waits=meta.get("waits") is True,
            new_sandbox=new if isinstance(new := meta.get("new_sandbox"), bool) else None,
        )


def gateway_proof(key: bytes, hello: Hello, gateway_nonce: str, authority: str = "") -> str:
    """The gateway's proof, in hex."""
    return _mac(key, "gateway", _transcript(hello, gateway_nonce, authority))


def client_proof(key: bytes, hello: Hello, gateway_nonce: str, authority: str = "") -> str:
    """The client's proof, in hex."""
    return _mac(key, "client", _transcript(hello, gateway_nonce, authority))


def connection_key(key: bytes, hello: Hello, gateway_nonce: str, authority: str) -> bytes:
    """The key of one connection, which may be given to the process that serves it."""
    return bytes.fromhex(_mac(key, "connection", _transcript(hello, gateway_nonce, authority)))


def gateway_bound(key: bytes, binding: bytes) -> str:
    """The gateway's proof, in hex, of being the other end of this TLS connection."""
    return _mac(key, "gateway-bound", binding)


def client_bound(key: bytes, binding: bytes) -> str:
    """The client's proof, in hex, of being the other end of this TLS connection."""
    return _mac(key, "client-bound", binding)


def confirm_binding(key: bytes, binding: bytes, meta: Mapping[str, object]) -> dict[str, object]:
    """The second proof, after the TLS handshake: the gateway's answer to the client's `bound`.

    Raises Refused(DENIED) when the client's connection has another binding than this one.
    """
    if not matches(client_bound(key, binding), text_field(meta, "bound", 64)):
        message = "channel binding mismatch (possible man in the middle)"
        raise Refused(Refusal.DENIED, message)
    return {"bound": gateway_bound(key, binding)}


class Proving:
    """The gateway's side of one proof, for a lease whose secret it has; pure."""

    def __init__(self, secret: bytes, hello: Hello, nonce: str, authority: str = "") -> None:
        """`nonce`: fresh and random, against replays."""
        key = secret
        if hello.role not in _WITH_SECRET:
            key = lane_key(secret, hello.lease, hello.fence, hello.host, hello.session)
        self.hello = hello
        self._expected = client_proof(key, hello, nonce, authority)
        self._nonce, self._authority = nonce, authority
        self._proof = gateway_proof(key, hello, nonce, authority)
        #: Of this connection, for the second proof; empty without TLS.
        self.key = connection_key(key, hello, nonce, authority) if authority else b""

    @property
    def challenge(self) -> Meta:
        """The frame that answers the hello."""
        challenge = {"nonce": self._nonce, "authority": self._authority, "proof": self._proof}
        return {"challenge": challenge}

    def accepts(self, presented: str) -> bool:
        """Whether the client knows the key; in constant time, never raises."""
        return matches(self._expected, presented)


def port_key(lease: str) -> bytes:
    """The key at a lease's own port, derived from the lease's id: not a secret."""
    return bytes.fromhex(_mac(b"port", "port", _joined(lease)))


def matches(expected: str, presented: str) -> bool:
    """Compare two proofs in constant time; never raises."""
    return hmac.compare_digest(expected.encode(), presented.encode("utf-8", "replace"))


def lane_key(secret: bytes, lease: str, fence: int, host: str, session: str) -> bytes:
    """The key of all lanes and relays of one session on one host; does not reveal the secret."""
    return bytes.fromhex(_mac(secret, "lane", _joined(lease, str(fence), host, session)))


def _transcript(hello: Hello, gateway_nonce: str, authority: str) -> bytes:
    values = (str(value) for value in hello.proven().values())
    return _joined(*values, gateway_nonce, authority)


def _joined(*parts: str) -> bytes:
    """Length-prefixed parts: different lists of parts give different bytes."""
    encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
    return b"".join(len(part).to_bytes(4, "big") + part for part in encoded)


def _mac(key: bytes, label: str, message: bytes) -> str:
    text = b"orchgpu/1/" + label.encode() + b"\0" + message
    return hmac.new(key, text, hashlib.sha256).hexdigest()


def _hex_field(value: Mapping[str, object], key: str) -> str:
    text = text_field(value, key, 2 * NONCE_BYTES)
    if len(text) != 2 * NONCE_BYTES or set(text) - set("0123456789abcdef"):
        raise WireError(f"{key!r} must be {2 * NONCE_BYTES} lower-case hex digits")
    return text

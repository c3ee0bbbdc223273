"""The mutual proof that both ends know the secret of a lease; nothing replayable on the wire.

    client  → hello      (role, lease, fence, host, session, client nonce, …)
    gateway → challenge  (gateway nonce, HMAC(key, "gateway" ‖ transcript))
    client  → answer     (HMAC(key, "client" ‖ transcript))
    gateway → welcome    or a refusal, at any point

The transcript holds every field of the hello and both nonces, so a proof is good for one lease,
fence, host, session and connection. A session proves with the lease's secret; a lane or a door with
a key derived from it for that one session, so a user's program never holds the secret itself.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from remote_gpu.wire.errors import WireError
from remote_gpu.wire.frames import int_field, text_field

NONCE_BYTES = 16
SECRET_BYTES = 32


class Role(StrEnum):
    """What a connection is for."""

    SESSION = "session"  #: holds the lease
    LANE = "lane"  #: carries work
    DOOR = "door"  #: carries the bytes of another middleware's client


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a client says first."""

    role: Role
    lease: str
    fence: int
    host: str
    session: str  #: hex nonce of the session; the first one binds the lease
    nonce: str  #: hex nonce of this connection
    cap_ms: int = 0  #: session: it ends by itself after this
    device: int = 0  #: lane: index of the device on the host
    middleware: str = ""  #: door: whose server
    port: int = 0  #: door: which of the server's consecutive ports, from 0

    def to_meta(self) -> dict[str, Any]:
        return {"hello": asdict(self)}

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> Hello:
        """Raises WireError for anything but a well-formed hello."""
        value = meta.get("hello")
        if not isinstance(value, dict) or set(value) != {f.name for f in fields(cls)}:
            raise WireError("the first frame must be a hello")
        role = text_field(value, "role", 16)
        if role not in set(Role):
            raise WireError(f"role {role!r} is not one of {', '.join(Role)}")
        return cls(
            role=Role(role),
            lease=text_field(value, "lease", 128),
            fence=int_field(value, "fence"),
            host=text_field(value, "host", 128),
            session=_hex_field(value, "session"),
            nonce=_hex_field(value, "nonce"),
            cap_ms=int_field(value, "cap_ms", 2**40),
            device=int_field(value, "device", 1023),
            middleware=text_field(value, "middleware", 32),
            port=int_field(value, "port", 15),
        )


def gateway_proof(key: bytes, hello: Hello, gateway_nonce: str) -> str:
    """What the gateway answers with, in hex."""
    return _mac(key, "gateway", _transcript(hello, gateway_nonce))


def client_proof(key: bytes, hello: Hello, gateway_nonce: str) -> str:
    """What the client answers with, in hex."""
    return _mac(key, "client", _transcript(hello, gateway_nonce))


def matches(expected: str, presented: str) -> bool:
    """Compare two proofs in constant time; never raises."""
    return hmac.compare_digest(expected.encode(), presented.encode("utf-8", "replace"))


def lane_key(secret: bytes, lease: str, fence: int, host: str, session: str) -> bytes:
    """The key of all lanes and doors of one session on one host; says nothing of the secret."""
    return bytes.fromhex(_mac(secret, "lane", _joined(lease, str(fence), host, session)))


def _transcript(hello: Hello, gateway_nonce: str) -> bytes:
    return _joined(*(str(getattr(hello, f.name)) for f in fields(hello)), gateway_nonce)


def _joined(*parts: str) -> bytes:
    """Parts with their lengths before them: no two lists of parts give the same bytes."""
    encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
    return b"".join(len(part).to_bytes(4, "big") + part for part in encoded)


def _mac(key: bytes, label: str, message: bytes) -> str:
    text = b"orchgpu/1/" + label.encode() + b"\0" + message
    return hmac.new(key, text, hashlib.sha256).hexdigest()


def _hex_field(value: Mapping[str, Any], key: str) -> str:
    text = text_field(value, key, 2 * NONCE_BYTES)
    if len(text) != 2 * NONCE_BYTES or set(text) - set("0123456789abcdef"):
        raise WireError(f"{key!r} must be {2 * NONCE_BYTES} lower-case hex digits")
    return text

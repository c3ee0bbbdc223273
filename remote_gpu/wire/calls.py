"""Calls of an endpoint: a run that answers requests in place of its one input. Pure.

A caller connects to the gateway with the role CALLS and the secret of the lease, and the gateway
passes the connection to the run, which sends `ready` once it has loaded. Then one call after
another:

    caller → call     {"name": …} with the input as payload
    run    → part     a part of a streamed answer, as payload; any number of them
    run    → answer   {"name": …} with the content as payload, which follows the parts
    run    → failed   {"code": …, "message": …} in place of the answer

A connection that ends without an answer leaves it open whether the call was made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from remote_gpu.wire.channel import Channel
from remote_gpu.wire.errors import WireError
from remote_gpu.wire.frames import FrameLimits, text_field

#: Of an input, of an answer, and of each part.
CALL_BYTES_MAX = 8 * 2**20
CALLS = FrameLimits(meta_bytes_max=1 << 16, payload_bytes_max=CALL_BYTES_MAX, buffers_max=1)
NAME_CHARACTERS_MAX = 255
MESSAGE_CHARACTERS_MAX = 8000
#: Codes of `failed`: the code itself failed; it took too long; it was not called, or not to its
#: end, because the run ends.
FAILED, TIMEOUT, UNAVAILABLE = "failed", "timeout", "unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One frame of a call."""

    kind: str  #: ready, call, part, answer or failed
    name: str = ""  #: of the file: a call's and an answer's
    content: bytes = b""
    code: str = ""
    message: str = ""


def send(channel: Channel, message: Message) -> None:
    """Send one message. Raises OSError when the connection has ended."""
    fields = {"name": message.name, "code": message.code, "message": message.message}
    meta = {message.kind: {name: value for name, value in fields.items() if value}}
    channel.send(meta, (message.content,) if message.content else ())


def receive(channel: Channel) -> Message | None:
    """The next message; None when the peer closed. Raises WireError, OSError."""
    if (received := channel.receive()) is None:
        return None
    header, meta = received
    content = bytearray(header.payload_bytes)
    channel.receive_payload([memoryview(content)])
    kind, given = next(_known(meta), ("", {}))
    if not kind:
        raise WireError("not a message of a call")
    return Message(
        kind=kind,
        content=bytes(content),
        name=_text(given, "name", NAME_CHARACTERS_MAX),
        code=_text(given, "code", 32),
        message=_text(given, "message", MESSAGE_CHARACTERS_MAX),
    )


def _known(meta: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, object]]]:
    for kind in ("ready", "call", "part", "answer", "failed"):
        if isinstance(given := meta.get(kind), dict):
            yield kind, given


def _text(given: Mapping[str, object], name: str, characters_max: int) -> str:
    return text_field(given, name, characters_max) if name in given else ""

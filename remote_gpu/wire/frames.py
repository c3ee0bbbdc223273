"""One frame: a 20-byte header, a JSON object (meta), then raw payload.

    magic u16 · version u8 · flags u8 · call id u32 · meta_len u32 · payload_len u64   (big endian)

Every length is checked against `FrameLimits` before memory of that length is allocated.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeAlias

from remote_gpu.wire.errors import OpCode, OpFailed, WireError

#: A JSON object of a frame. Readers check every field that they use.
Meta: TypeAlias = dict[str, Any]
#: Anything contiguous with the buffer protocol: bytes, memoryview, numpy.ndarray. Its static type
#: (`collections.abc.Buffer`) needs Python 3.12.
BufferLike: TypeAlias = Any
#: Targets for the results of a call, if not new memory.
Out: TypeAlias = "Sequence[BufferLike] | None"

HEADER = struct.Struct("!HBBIIQ")
HEADER_BYTES = HEADER.size  #: 20
_CALL, _CALL_AT = struct.Struct("!I"), 4
MAGIC = 0x6F67  #: "og"
VERSION = 1
NO_REPLY = 0x01  #: flag: pipelined; an error is kept for the next call with a reply
SHARED = 0x02  #: flag: the payload is in shared memory (`remote_gpu.wire.segment`)
_KNOWN_FLAGS = NO_REPLY | SHARED
CALL_MAX = 2**32 - 1
META_BYTES_MAX = 1 << 20  #: of JSON in one frame, after the proof


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    """The limits of one side for received frames."""

    meta_bytes_max: int = META_BYTES_MAX
    payload_bytes_max: int = 1 << 31
    buffers_max: int = 64  #: segments of one payload; far below IOV_MAX (1,024)


#: Before the proof: small metas only. A hello has about 300 bytes.
HANDSHAKE = FrameLimits(meta_bytes_max=4096 - HEADER_BYTES, payload_bytes_max=0, buffers_max=0)
#: On an open session: heartbeats and ends.
SESSION = FrameLimits(meta_bytes_max=4096, payload_bytes_max=0, buffers_max=0)


class Header(NamedTuple):
    """The decoded header of a frame."""

    call: int
    flags: int
    meta_bytes: int
    payload_bytes: int


def numbered(frame: bytearray, call: int) -> bytearray:
    """Set the call of a packed frame, which is sent repeatedly."""
    _CALL.pack_into(frame, _CALL_AT, call)
    return frame


def pack(
    meta: Mapping[str, object], *, call: int = 0, flags: int = 0, payload_bytes: int = 0
) -> bytes:
    """Header and meta of one frame; the payload follows it on the wire.

    Raises OpFailed(E2BIG) above META_BYTES_MAX; and as `encode_meta` does.
    """
    body = encode_meta(meta)
    if len(body) > META_BYTES_MAX:
        message = (
            f"{len(body)} bytes of JSON, but a frame has at most {META_BYTES_MAX}; use a buffer"
        )
        raise OpFailed(OpCode.E2BIG, message)
    return HEADER.pack(MAGIC, VERSION, flags, call, len(body), payload_bytes) + body


def encode_meta(meta: Mapping[str, object]) -> bytes:
    """The JSON of a meta. Raises ValueError or TypeError for values that JSON lacks."""
    return _encode(meta).encode()


def parse_header(
    data: bytes | bytearray | memoryview, limits: FrameLimits, offset: int = 0
) -> Header:
    """Decode a header. Raises WireError for another protocol and for lengths over the limits."""
    magic, version, flags, call, meta_bytes, payload_bytes = HEADER.unpack_from(data, offset)
    if magic != MAGIC:
        raise WireError(f"not this protocol: magic {magic:#06x}")
    if version != VERSION:
        raise WireError(f"version {version} of the protocol; this side has {VERSION}")
    if flags & ~_KNOWN_FLAGS:
        raise WireError(f"unknown flags {flags:#04x}")
    if not 2 <= meta_bytes <= limits.meta_bytes_max:
        raise WireError(f"meta of {meta_bytes} bytes, not 2…{limits.meta_bytes_max}")
    if payload_bytes > limits.payload_bytes_max:
        raise WireError(f"payload of {payload_bytes} bytes; at most {limits.payload_bytes_max}")
    # as Header(…), in half the time
    return tuple.__new__(Header, (call, flags, meta_bytes, payload_bytes))


def parse_meta(data: bytes | bytearray | memoryview) -> Meta:
    """Decode a meta. Raises WireError unless it is one JSON object of finite numbers."""
    try:
        text = str(data, "utf-8")
        value, end = _decode(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"meta is not JSON: {str(error)[:100]}") from None
    if not isinstance(value, dict) or end != len(text):
        raise WireError("meta is not one JSON object")
    return value


def parse_sizes(
    meta: Mapping[str, object], key: str, payload_bytes: int, limits: FrameLimits
) -> list[int]:
    """The segment sizes of a payload. Raises WireError unless they add up to it."""
    sizes = meta.get(key, [])
    if not isinstance(sizes, list) or len(sizes) > limits.buffers_max:
        raise WireError(f"{key!r} must list at most {limits.buffers_max} sizes")
    total = 0
    for size in sizes:
        if type(size) is not int or not 0 <= size <= payload_bytes:
            raise WireError(f"{key!r} must list sizes within the payload")
        total += size
    if total != payload_bytes:
        raise WireError(f"{key!r} adds up to {total}, the payload has {payload_bytes} bytes")
    return sizes


def text_field(meta: Mapping[str, object], key: str, length_max: int = 256) -> str:
    """A string of a meta. Raises WireError for anything else or longer."""
    value = meta.get(key)
    if not isinstance(value, str) or len(value) > length_max:
        raise WireError(f"{key!r} must be a string of at most {length_max} characters")
    return value


def int_field(meta: Mapping[str, object], key: str, most: int = 2**63 - 1) -> int:
    """An integer of 0…most. Raises WireError for anything else."""
    value = meta.get(key)
    if type(value) is not int or not 0 <= value <= most:
        raise WireError(f"{key!r} must be an integer of 0…{most}")
    return value


def flat_views(buffers: Sequence[BufferLike]) -> list[memoryview]:
    """Byte views of buffers. Raises TypeError for non-contiguous ones."""
    views: list[memoryview] = []
    for buffer in buffers:
        view = memoryview(buffer)
        if view.format == "B" and view.ndim == 1 and view.c_contiguous:
            views.append(view)  # as it is
            continue
        if not view.c_contiguous:
            raise TypeError("a buffer must be C-contiguous; copy it first")
        # a view with a zero in its shape cannot be cast, and has no bytes
        views.append(view.cast("B") if view.nbytes else memoryview(b""))
    return views


def _not_finite(constant: str) -> NoReturn:
    raise ValueError(f"{constant[:40]} is not a finite number")


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):  # 1e999
        _not_finite(text)
    return value


def _encoder() -> Callable[[Mapping[str, object]], str]:
    """CPython's encoder, made once: `JSONEncoder.encode` makes one per call, which takes twice the
    time of its use. Elsewhere `JSONEncoder.encode`."""
    encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return encoder.encode
    text = json.encoder.encode_basestring_ascii
    chunks = make(None, encoder.default, text, None, ":", ",", False, False, False)
    return lambda meta: "".join(chunks(meta, 0))


# made once: json.dumps and json.loads make new ones for every call with options
_encode = _encoder()
_decode = json.JSONDecoder(parse_float=_finite, parse_constant=_not_finite).raw_decode

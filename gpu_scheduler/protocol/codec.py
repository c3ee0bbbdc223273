"""JSON lines: bytes from a connection to frames, frames to bytes.

A *frame* is one line holding one JSON object of at most `LINE_BYTES_MAX`. What is no frame breaks
the connection (`BrokenFrame`), because nobody knows where the next one starts or whom to answer;
a frame with a wrong request in it is answered by a typed error and the connection lives on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corekit.decode import encode_json
from corekit.errors import AppError, invalid
from corekit.walk import parse_json

#: Version of the protocol; a daemon refuses any other in `hello`.
VERSION = 1
#: One message; a host's full state of 500 leases is about 200 KiB.
LINE_BYTES_MAX = 2**20
#: Request ids lie below this, so that every JSON library keeps them exact.
ID_MAX = 2**53


class BrokenFrame(Exception):
    """The byte stream cannot be followed any further; close the connection."""


class LineBuffer:
    """Bytes as they arrive in; whole lines out."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines completed by `data`, without newline. Raises BrokenFrame when too long."""
        lines = (self._tail + data).split(b"\n")
        self._tail = lines.pop()
        if len(self._tail) > LINE_BYTES_MAX or any(len(line) > LINE_BYTES_MAX for line in lines):
            raise BrokenFrame(f"a line is longer than {LINE_BYTES_MAX} bytes")
        return lines


def encode_line(value: Mapping[str, Any]) -> bytes:
    """One frame of plain JSON data. Raises INVALID when it is too long to send."""
    line = encode_json(value) + b"\n"
    if len(line) > LINE_BYTES_MAX:
        raise invalid(f"a message of {len(line)} bytes exceeds {LINE_BYTES_MAX}; ask for less")
    return line


def decode_line(line: bytes) -> dict[str, Any]:
    """The object in one line. Raises BrokenFrame for anything but one finite JSON object."""
    try:
        value = parse_json(line)
    except ValueError as error:
        raise BrokenFrame(f"not a JSON object: {error}") from None
    if not isinstance(value, dict):
        raise BrokenFrame(f"expected a JSON object, got {type(value).__name__}")
    return value


@dataclass(frozen=True, slots=True)
class RequestFrame:
    """A request as it came: `fields` are not decoded yet."""

    id: int
    op: str
    fields: Mapping[str, Any]


def request_of(value: dict[str, Any]) -> RequestFrame:
    """Split a frame into id, op and fields. Raises INVALID (with the id in details, if any)."""
    id_, op = value.pop("id", None), value.pop("op", None)
    if type(id_) is not int or not 0 <= id_ < ID_MAX:
        raise invalid("request: 'id' must be a whole number of at least 0", id=None)
    if not isinstance(op, str):
        raise invalid("request: 'op' must be a string, such as \"beat\"", id=id_)
    return RequestFrame(id_, op, value)


def ok_line(id_: int, answer: Mapping[str, Any]) -> bytes:
    """The frame of a good answer."""
    return encode_line({"id": id_, "ok": answer})


def error_line(id_: int | None, error: AppError) -> bytes:
    """The frame of an error; id null when the request had none."""
    return encode_line({"id": id_, "error": error.as_json()})


def push_line(name: str, fields: Mapping[str, Any]) -> bytes:
    """The frame of a push."""
    return encode_line({"push": name, **fields})

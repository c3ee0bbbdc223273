"""JSON lines: bytes from a connection to frames, frames to bytes.

A *frame* is one line with one JSON object of at most `LINE_BYTES_MAX`. Any other line ends the
connection (`BrokenFrame`), because the start of the next frame is unknown; a frame with an invalid
request is answered with a typed error and the connection stays open.

The envelope of a frame (id, op, ok, error, push) is read first; its content stays text, a `Body`,
until it is decoded as its class. Nothing is parsed into plain data on the way, and nothing is
encoded twice.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from corekit.decode import (
    Buffer,
    LoneSurrogate,
    decode,
    decode_known,
    encode_json,
    parse_json,
    read_json,
)
from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import Value

#: Version of the protocol. It rises when an older side would misread a message, not when a message
#: has one more key; see docs/reference/protocol.md, Versions.
VERSION: int = 1
#: The oldest version that this side speaks too: that of the release before.
OLDEST_VERSION: int = 1
#: `oldest_version` of a hello: left out where it is the only one.
HELLO_OLDEST_VERSION = OLDEST_VERSION if OLDEST_VERSION < VERSION else None
#: The longest message.
LINE_BYTES_MAX = 2**20
#: Data that grows with the number of leases, devices or records is sent in pages of this size.
PAGE_BYTES_MAX = LINE_BYTES_MAX // 2
#: Request ids are below this, so that every JSON library represents them exactly.
ID_MAX = 2**53

T = TypeVar("T")


class BrokenFrame(AppError):
    """A line that is not a JSON object. The byte stream is out of sync: close it."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID, message)


class LineBuffer:
    """A buffer that turns received bytes into whole lines."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""

    @property
    def held(self) -> int:
        """The number of bytes of the unfinished line."""
        return len(self._tail)

    def feed(self, data: bytes) -> list[bytes]:
        """The lines completed by `data`, without newline. Raises BrokenFrame when too long."""
        lines = (self._tail + data).split(b"\n")
        self._tail = lines.pop()
        if len(self._tail) > LINE_BYTES_MAX or any(len(line) > LINE_BYTES_MAX for line in lines):
            self._tail = b""
            raise BrokenFrame(f"a line is longer than {LINE_BYTES_MAX} bytes")
        return lines


class Body(NamedTuple):
    """JSON text of one object, to be read as a class or as plain data."""

    text: Buffer

    def read(self, cls: type[T], path: str = "") -> T:
        """The object as a `cls`. Raises INVALID, as BrokenFrame when the text is not an object."""
        found = read_json(cls, self.text)
        return decode(cls, self.plain(), path) if found is None else found

    def read_known(self, cls: type[T], path: str = "") -> tuple[T, tuple[str, ...]]:
        """As `read`, for a peer that may be newer: unknown keys are skipped, and returned.

        Only for messages in which no key can change a request: events, answers, pushes.
        """
        found = read_json(cls, self.text)
        return decode_known(cls, self.plain(), path) if found is None else (found, ())

    def plain(self) -> dict[str, Any]:
        """The object as plain data. Raises BrokenFrame when it is not an object."""
        return decode_line(bytes(self.text))

    def without(self, *keys: str) -> tuple[dict[str, Any], Body]:
        """The values of those of `keys` that are present, and the rest of the object."""
        try:
            fields = _FIELDS.decode(self.text)
            taken = {key: _PLAIN.decode(fields.pop(key)) for key in keys if key in fields}
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            self.plain()
            raise
        return taken, Body(encode_json(fields))


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_PLAIN = msgspec.json.Decoder()

#: `{}`.
EMPTY = Body(b"{}")


# ---------------------------------------------------------------------- requests


class RequestFrame(NamedTuple):
    """A request whose fields are not read yet."""

    id: int
    op: str
    body: Body


class _RequestHead(msgspec.Struct):
    id: Annotated[int, msgspec.Meta(ge=0, lt=ID_MAX)]
    op: str


_REQUEST_HEAD = msgspec.json.Decoder(_RequestHead)
#: The envelope as clients write it, first: the rest is the body and is read only once.
_PLAIN_HEAD = re.compile(rb'\{"id": ?([0-9]{1,15}), ?"op": ?"([a-z_]+)"(?:, ?(?=")|(?=\}))')


def read_request(line: bytes) -> RequestFrame:
    """Split a line into id, op and fields.

    Raises INVALID (with the id in details, if it has one) and, for anything but one finite JSON
    object, BrokenFrame; errors in the fields are only found when the fields are read.
    """
    plain = _PLAIN_HEAD.match(line)
    if plain is not None:
        body = Body(b"{" + line[plain.end() :])
        return RequestFrame(int(plain[1]), plain[2].decode(), body)
    try:
        head = _REQUEST_HEAD.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        raise _wrong_head(decode_line(line)) from None
    return RequestFrame(head.id, head.op, Body(line).without("id", "op")[1])


def _wrong_head(value: dict[str, Any]) -> AppError:
    id_ = value.get("id")
    if type(id_) is not int or not 0 <= id_ < ID_MAX:
        return invalid("request: 'id' must be an integer of at least 0", id=None)
    return invalid("request: 'op' must be a string, such as \"beat\"", id=id_)


def request_line(id_: int, op: str, fields: Any) -> bytes:
    """The frame of a request; `fields` is a value of the class of the op or a mapping."""
    return _line(b'{"id":%d,"op":%s' % (id_, encode_json(op)), encode_json(fields))


def hello_line(id_: int, role: str, key: str | None, hello: Value) -> bytes:
    """The frame of a hello: its role, and the API key of its sender if it has one."""
    head = b'{"id":%d,"op":"hello","role":%s' % (id_, encode_json(role))
    shown = b"" if key is None else b',"key":' + encode_json(key)
    return _line(head + shown, encode_json(hello))


# ---------------------------------------------------------------------- answers and pushes


class AnswerFrame(NamedTuple):
    """A frame from a daemon: a push, or the answer to a request (either `error` or `body`)."""

    id: int | None  #: of the request; None: a push, or an error without a request
    push: str | None
    error: AppError | None
    body: Body


class _AnswerHead(msgspec.Struct):
    id: int | None = None
    push: str | None = None
    ok: msgspec.Raw = msgspec.Raw(b"{}")
    error: dict[str, Any] | None = None


_ANSWER_HEAD = msgspec.json.Decoder(_AnswerHead)
#: The start of a successful answer and of a push; with it, the body is read only once.
_PLAIN_OK = re.compile(rb'\{"id":([0-9]{1,15}),"ok":(?=\{)')
_PLAIN_PUSH = re.compile(rb'\{"push":"([a-z_]+)"(?:,(?=")|(?=\}))')


def read_answer(line: bytes) -> AnswerFrame:
    """Split a line. Raises BrokenFrame if no daemon sends it; a body is checked when it is read."""
    plain = _PLAIN_OK.match(line)
    if plain is not None and line.endswith(b"}}"):
        return AnswerFrame(int(plain[1]), None, None, Body(line[plain.end() : -1]))
    plain = _PLAIN_PUSH.match(line)
    if plain is not None:
        body = Body(b"{" + line[plain.end() :])
        return AnswerFrame(None, plain[1].decode(), None, body)
    try:
        head = _ANSWER_HEAD.decode(line)
        error = None if head.error is None else AppError.from_json(head.error)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error_:
        raise BrokenFrame(f"not an answer or push: {error_}") from None
    body = Body(head.ok) if head.push is None else Body(line).without("push")[1]
    return AnswerFrame(head.id, head.push, error, body)


def ok_line(id_: int, text: bytes) -> bytes:
    """The frame of a successful answer. Raises INVALID when it is too long to send."""
    return _bounded(b'{"id":%d,"ok":%s}\n' % (id_, text))


def error_line(id_: int | None, error: AppError) -> bytes:
    """The frame of an error; the id is null when the request had none."""
    return encode_line({"id": id_, "error": error.as_json()})


def push_line(name: str, text: bytes) -> bytes:
    """The frame of a push with the object `text`. Raises INVALID when it is too long to send."""
    return _line(b'{"push":"%s"' % name.encode(), text)


# ---------------------------------------------------------------------- lines


def encode_line(value: Any) -> bytes:
    """The frame of one object. Raises INVALID when it is too long to send."""
    return _bounded(encode_json(value) + b"\n")


def decode_line(line: bytes) -> dict[str, Any]:
    """The object in one line. Raises BrokenFrame for anything but one finite JSON object, and
    INVALID, with its id in details if it has one, for an object that could not be sent on."""
    try:
        value = parse_json(line)
    except LoneSurrogate as error:
        if not isinstance(error.value, dict):
            raise BrokenFrame(f"not a JSON object: {error}") from None
        id_ = error.value.get("id")
        raise invalid(
            str(error), id=id_ if type(id_) is int and 0 <= id_ < ID_MAX else None
        ) from None
    except ValueError as error:
        raise BrokenFrame(f"not a JSON object: {error}") from None
    if not isinstance(value, dict):
        raise BrokenFrame(f"expected a JSON object, got {type(value).__name__}")
    return value


def _line(head: bytes, text: bytes) -> bytes:
    """One object with the fields of the envelope and those of `text`, which is also an object."""
    return _bounded(head + b"}\n" if text == b"{}" else b"%s,%s\n" % (head, text[1:]))


def _bounded(line: bytes) -> bytes:
    if len(line) > LINE_BYTES_MAX:
        raise invalid(f"a message of {len(line)} bytes exceeds {LINE_BYTES_MAX}; ask for less")
    return line

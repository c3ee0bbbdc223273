"""CloudEvents 1.0 over HTTP as inputs: the binary and the structured form.

Who sends an event repeats it with the same source and id, so both together are its idempotency key
(CloudEvents specification, "id"). Its data is the input as it came; without any, `dataref` (the
extension of that name) is the object that becomes the input. Other attributes are not read.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from urllib.parse import unquote

import msgspec

from corekit.errors import invalid
from corekit.values import Value

_TYPE = "application/cloudevents"
STRUCTURED = f"{_TYPE}+json"
#: Of the structured form. Larger data is sent in the binary form, or by `dataref`.
EVENT_BYTES_MAX = 2**20
_VERSION = "1.0"
_REQUIRED = ("specversion", "id", "source", "type")
_ATTRIBUTE_CHARACTERS_MAX = 1024


class Event(Value):
    """One event."""

    key: str  #: equal for its repetitions; no `Idempotency-Key` is
    data: bytes | None  #: None: the body of the request; b"": it has none
    dataref: str  #: "" = none


class _Structured(msgspec.Struct, rename={"type_": "type"}):
    specversion: str | None = None  #: null is as unset (the JSON format, section 2.2)
    id: str | None = None
    source: str | None = None
    type_: str | None = None
    datacontenttype: str | None = None
    dataref: str | None = None
    data: msgspec.Raw = msgspec.Raw()
    data_base64: str | None = None


def is_structured(content_type: str) -> bool:
    """True where the body is an event. Raises INVALID for a form that is not read."""
    if not content_type.startswith(_TYPE):
        return False
    if content_type != STRUCTURED:
        raise invalid(f"{content_type:.80} is not accepted: send each event alone, as {STRUCTURED}")
    return True


def binary_event(headers: Mapping[str, str], *, has_body: bool) -> Event | None:
    """The event whose data is the body; None without an event's headers. Raises INVALID."""
    if "ce-id" not in headers and "ce-specversion" not in headers:
        return None
    names = (*_REQUIRED, "dataref")
    given = {name: unquote(headers.get(f"ce-{name}", "")) for name in names}
    data = None if has_body else b""
    return Event(key=_key(given), data=data, dataref=given["dataref"])


def structured_event(body: bytes) -> Event:
    """The event that is the body. Raises INVALID."""
    try:
        read = msgspec.json.decode(body, type=_Structured)
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body is not a CloudEvent in JSON: {error}") from None
    found = {"type": read.type_, **msgspec.structs.asdict(read)}
    given = {name: found[name] or "" for name in (*_REQUIRED, "dataref")}
    return Event(key=_key(given), data=_data(read), dataref=given["dataref"])


def _key(given: Mapping[str, str]) -> str:
    missing = [name for name in _REQUIRED if not given[name]]
    if missing:
        raise invalid(f"the CloudEvent has no {', '.join(missing)}")
    for name, value in given.items():
        if not value.isprintable():  # also a lone surrogate, which no text in UTF-8 has
            raise invalid(f"{name} of the CloudEvent has a character that cannot be printed")
    if given["specversion"] != _VERSION:
        raise invalid(f"specversion {given['specversion']!r:.40} is not read: send {_VERSION}")
    key = f"{given['source']}\0{given['id']}"
    if len(key) > _ATTRIBUTE_CHARACTERS_MAX:
        most = _ATTRIBUTE_CHARACTERS_MAX
        raise invalid(f"source and id of the CloudEvent have more than {most} characters")
    return key


def _data(read: _Structured) -> bytes:
    raw = bytes(read.data)
    if read.data_base64 is not None:
        if raw:
            raise invalid("the CloudEvent has both data and data_base64; keep one")
        try:
            return base64.b64decode(read.data_base64, validate=True)
        except (binascii.Error, ValueError):
            raise invalid("data_base64 of the CloudEvent is not base64") from None
    if raw == b"null":
        return b""
    if raw.startswith(b'"') and not _is_json(read.datacontenttype or ""):
        try:
            return msgspec.json.decode(raw, type=str).encode()
        except ValueError as error:
            raise invalid(f"data of the CloudEvent is not text: {error}") from None
    return raw


def _is_json(content_type: str) -> bool:
    """True for data that is JSON; without a type it is."""
    kind = content_type.partition(";")[0].strip().lower()
    return not kind or kind.endswith(("/json", "+json"))

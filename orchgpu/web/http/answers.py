"""JSON answers and errors of the console's API; bodies and conditions of its requests."""

from __future__ import annotations

import math
from collections.abc import Mapping

from aiohttp import web

from corekit.decode import encode_json, parse_json
from corekit.errors import HTTP_STATUS, AppError, ErrorCode, invalid

#: A request's JSON: a key, a name and a value.
BODY_BYTES_MAX = 64 * 1024
_NO_STORE = {"Cache-Control": "no-store"}


def answered(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    return web.Response(
        body=encode_json(value),
        status=status,
        content_type="application/json",
        headers={**_NO_STORE, **(headers or {})},
    )


def refused(error: AppError, status: int | None = None) -> web.Response:
    """An error as JSON for the page, with the status of its code."""
    found, headers = _status_of(error, status)
    shown: dict[str, object] = {"code": error.code.value, "message": error.message}
    shown |= {name: error.details[name] for name in ("hint", "needs") if name in error.details}
    body: dict[str, object] = {"error": shown}
    body |= {"login_needed": True} if found == 401 else {}
    return web.Response(
        body=encode_json(body), status=found, content_type="application/json", headers=headers
    )


def api_refused(error: AppError, status: int | None = None) -> web.Response:
    """An error as JSON for programs, in the form of the scheduler's API."""
    found, headers = _status_of(error, status)
    if found == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = encode_json({"error": error.as_json()})
    return web.Response(body=body, status=found, content_type="application/json", headers=headers)


def _status_of(error: AppError, status: int | None) -> tuple[int, dict[str, str]]:
    """The status of an error, that of its code unless one is given, and its headers."""
    found, headers = HTTP_STATUS[error.code] if status is None else status, dict(_NO_STORE)
    if error.code is ErrorCode.DENIED and error.details.get("needs") == "key":
        found = 401
    if isinstance(pause_s := error.details.get("retry_in_s"), (int, float)):
        headers["Retry-After"] = str(math.ceil(pause_s))
    return found, headers


async def body_of(
    request: web.Request, names: Mapping[str, type], optional: Mapping[str, type] | None = None
) -> dict[str, object]:
    """The JSON object of a request, with these keys, of these types. Raises INVALID.

    An empty body is an empty object.
    """
    kinds = {**names, **(optional or {})}
    if not request.can_read_body and not names:
        return {}
    if request.content_type != "application/json":
        raise invalid("the body must be JSON: send Content-Type: application/json")
    try:
        value = parse_json(await small_body(request, BODY_BYTES_MAX))
    except ValueError:
        raise invalid("the body is not JSON") from None
    if not isinstance(value, dict) or not set(names) <= set(value) <= set(kinds):
        raise invalid(f"the body must be an object with {', '.join(names) or 'no keys'}")
    for name, kind in ((name, kinds[name]) for name in value):
        if kind is not object and type(value[name]) is not kind:
            raise invalid(f"{name} must be {_KINDS.get(kind, kind.__name__)}")
    return value


async def small_body(request: web.Request, bytes_max: int) -> bytes:
    """The whole body of a request. Raises INVALID, and 413 for a larger one."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise invalid("Content-Encoding is not accepted; send plain JSON")
    if (request.content_length or 0) > bytes_max:
        raise web.HTTPRequestEntityTooLarge(bytes_max, request.content_length or 0)
    text = await request.content.read(bytes_max + 1)
    while len(text) <= bytes_max and not request.content.at_eof():
        text += await request.content.read(bytes_max + 1 - len(text))
    if len(text) > bytes_max:
        raise web.HTTPRequestEntityTooLarge(bytes_max, len(text))
    return text


_KINDS = {str: "a text", int: "an integer", bool: "true or false"}


#: The most characters of a condition.
TEXT_MAX = 200


def text_of(request: web.Request, name: str) -> str | None:
    """A condition of the query; None for none. Raises INVALID for a long one."""
    text = request.query.get(name) or None
    if text is not None and len(text) > TEXT_MAX:
        raise invalid(f"{name} has {len(text)} characters; at most {TEXT_MAX}")
    return text


def number_of(request: web.Request, name: str) -> float | None:
    """A number of the query; None for none. Raises INVALID."""
    text = request.query.get(name)
    try:
        number = None if not text else float(text)
    except ValueError:
        number = math.nan
    if number is not None and not math.isfinite(number):
        raise invalid(f"{name} {text!r:.40} is not a number")
    return number

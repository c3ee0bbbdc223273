"""Conditions in the query of a request; the head of a stream of events."""

from __future__ import annotations

import math

from aiohttp import web

from corekit.errors import invalid

#: The most characters of a condition.
TEXT_MAX = 200


def stream_response() -> web.StreamResponse:
    """An answer of server-sent events."""
    headers = {
        "Content-Type": "text/event-stream; charset=utf-8",
        "Cache-Control": "no-store",
        "X-Accel-Buffering": "no",  # a proxy must not hold events back
    }
    return web.StreamResponse(headers=headers)


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

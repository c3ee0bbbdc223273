"""Dates of HTTP headers."""

from __future__ import annotations

import email.utils

from aiohttp import web


def http_time(at_s: float) -> str:
    """`Sat, 31 Jan 2026 12:00:00 GMT`."""
    return email.utils.formatdate(at_s, usegmt=True)


def header_time_s(request: web.BaseRequest, name: str) -> float | None:
    """A header's date in seconds since the epoch; None when it is missing or unreadable."""
    try:
        return email.utils.parsedate_to_datetime(request.headers[name]).timestamp()
    except (KeyError, ValueError):
        return None

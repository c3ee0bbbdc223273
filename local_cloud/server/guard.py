"""Refusal of requests by web pages of other sites: this port runs code."""

from __future__ import annotations

import json
from collections.abc import Collection

from aiohttp import web

from corekit.net.browsers import Foreign, foreign_part


def foreign(request: web.BaseRequest, allowed: Collection[str]) -> Foreign | None:
    """The header that names another site, or None."""
    return foreign_part(request.method, request.headers, _reached(request), allowed)


def refusal(found: Foreign) -> web.Response:
    """The answer to a foreign request, as plain JSON: no service is asked."""
    answer = web.Response(
        status=403,
        text=json.dumps({"__type": "AccessDenied", "message": found.refusal()}),
        content_type="application/json",
        headers={"x-amzn-ErrorType": "AccessDenied"},
    )
    answer.force_close()  # its body is not worth reading
    return answer


def _reached(request: web.BaseRequest) -> str:
    """The local IP address of the connection; empty once it is closed."""
    transport = request.transport
    name = transport.get_extra_info("sockname") if transport is not None else None
    return str(name[0]) if name else ""

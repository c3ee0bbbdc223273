"""Conditions of every request and headers of every answer of the console."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web

from corekit.errors import AppError, ErrorCode, invalid
from corekit.net.browsers import foreign_part
from orchgpu.web.console import CONSOLE
from orchgpu.web.http.answers import refused

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

#: Only files of this server run, are shown or are connected to; nothing may frame the page.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
#: Of content that users' code wrote: shown without any rights, in an origin of its own.
SANDBOX_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'self'"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_TLS_ONLY = {"Strict-Transport-Security": "max-age=31536000"}
READING = ("GET", "HEAD")


def protection(*, over_tls: bool) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """A signal that puts the headers on every answer, also on streams and errors."""

    async def protect(request: web.Request, response: web.StreamResponse) -> None:
        found = response.headers
        found.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        request.app[CONSOLE].metrics.requests[response.status] += 1
        for name, value in (HEADERS | (_TLS_ONLY if over_tls else {})).items():
            found.setdefault(name, value)

    return protect


def refuse_other_sites(request: web.Request, *, has_keys: bool, allowed: tuple[str, ...]) -> None:
    """Refuse requests that pages of other sites made. Raises DENIED.

    Without keys this machine's programs are trusted, so its `Host` must be this machine's as well:
    a foreign name may point here (DNS rebinding).
    """
    if not has_keys:
        found = foreign_part(request.method, request.headers, _reached(request), allowed)
        if found is not None:
            raise _denied(found.refusal().replace("start the cloud with", "start it with"))
    if request.method in READING:
        return
    origin = request.headers.get("Origin")
    if origin is not None and _netloc(origin) != request.headers.get("Host", "").lower():
        raise _denied(f"Origin {origin!r:.80} is another site than this console")
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    if site not in ("same-origin", "none"):
        raise _denied(f"Sec-Fetch-Site {site!r:.40}: only pages of this console may change things")


def _reached(request: web.Request) -> str:
    name = None if request.transport is None else request.transport.get_extra_info("sockname")
    return str(name[0]) if name else ""


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _denied(text: str) -> AppError:
    return AppError(ErrorCode.DENIED, text, needs="origin")


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every error as JSON with a code, including errors of the HTTP server."""
    try:
        return await handler(request)
    except AppError as error:
        return refused(error)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        code = ErrorCode.NOT_FOUND if error.status == 404 else ErrorCode.INVALID
        text = f"{request.method} {request.path:.200}: {error.reason}"
        answer = refused(AppError(code, text), error.status)
        if "Allow" in error.headers:
            answer.headers["Allow"] = error.headers["Allow"]
        return answer
    except web.RequestPayloadError:
        return refused(invalid("the body cannot be read"))
    except ConnectionError:
        raise  # the browser has disconnected
    except Exception as error:
        logger.error("%s %s failed", request.method, request.path, exc_info=error)
        return refused(AppError(ErrorCode.INTERNAL, "internal error; see the trace in the log"))

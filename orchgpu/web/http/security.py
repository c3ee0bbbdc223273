"""Conditions of every request and headers of every answer of the console.

The session of a request shows who sends it, and whether it may change anything.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from aiohttp import web

from contract.http_jobs import PREFIX
from corekit.errors import AppError, ErrorCode, invalid
from corekit.net.browsers import foreign_part
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.rights import KeyRights
from orchgpu.web.console import CONSOLE, Console
from orchgpu.web.http.answers import api_refused
from orchgpu.web.http.answers import refused as page_refused
from orchgpu.web.http.sessions import LENGTH_S, Session

T = TypeVar("T")
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
#: What a page of an allowed origin may send; no cookies.
_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST, DELETE",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, "
    "Range, If-Range",
    "Access-Control-Max-Age": "600",
}


def protection(*, over_tls: bool) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """A signal that puts the headers on every answer, also on streams and errors."""

    async def protect(request: web.Request, response: web.StreamResponse) -> None:
        found = response.headers
        found.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        request.app[CONSOLE].metrics.requests[response.status] += 1
        if is_of_allowed_page(request):
            found.update(
                {"Access-Control-Allow-Origin": request.headers["Origin"], "Vary": "Origin"}
            )
            found["Access-Control-Expose-Headers"] = "Location, Retry-After, Content-Range, ETag"
        for name, value in (HEADERS | (_TLS_ONLY if over_tls else {})).items():
            found.setdefault(name, value)

    return protect


def is_of_allowed_page(request: web.Request) -> bool:
    """Whether a page calls the API whose origin an option names; it needs a key of its own."""
    named = request.app[CONSOLE].settings.allowed_origins
    return request.path.startswith(PREFIX) and request.headers.get("Origin") in named


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
    refused = api_refused if request.path.startswith(PREFIX) else page_refused
    try:
        return await handler(request)
    except AppError as error:
        return refused(error)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        code = ErrorCode.NOT_FOUND if error.status == 404 else ErrorCode.INVALID
        text = f"{request.method} {request.path:.200}: {error.reason}"
        text += "; GET /v1/openapi.json lists all paths" if refused is api_refused else ""
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


COOKIE = "orchgpu_session"
CSRF_HEADER = "X-CSRF-Token"


@web.middleware
async def sites(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse other sites, before any route."""
    console = request.app[CONSOLE]
    if is_of_allowed_page(request):
        if request.method != "OPTIONS":
            return await handler(request)
        return web.Response(status=204, headers=_PREFLIGHT)
    refuse_other_sites(request, has_keys=console.has_keys, allowed=console.settings.allowed_hosts)
    return await handler(request)


async def session_of(request: web.Request) -> Session:
    """The session of a request; of a change, with its CSRF token. Raises DENIED."""
    console = request.app[CONSOLE]
    session = console.sessions.find(request.cookies.get(COOKIE))
    if session is None:
        raise AppError(ErrorCode.DENIED, "no session is open; log in with a key", needs="key")
    if request.method not in READING:
        session.check_csrf(request.headers.get(CSRF_HEADER))
    await check_key(console, session)
    return session


@dataclass(frozen=True, slots=True)
class Visit:
    """A request of an open session."""

    console: Console
    session: Session

    @property
    def viewer(self) -> KeyRights:
        return self.session.viewer

    async def ask_cloud(self, question: Callable[[JobCloud], T]) -> T:
        """One piece of work in the cloud; see `CloudDoor.ask`."""
        return await self.console.cloud.ask(self.session.party, question)


async def visit_of(request: web.Request) -> Visit:
    """The request with its session; of a change, with its CSRF token. Raises DENIED."""
    return Visit(request.app[CONSOLE], await session_of(request))


async def check_key(console: Console, session: Session) -> None:
    """End a session whose key was revoked since its last check. Raises DENIED then."""
    if not console.sessions.is_due(session):
        return
    try:
        session.viewer = await console.scheduler.viewer(session.key)
    except AppError as error:
        if error.code is ErrorCode.DENIED:
            console.sessions.close(session)
            raise


def set_cookie(console: Console, response: web.Response, token: str) -> None:
    """Give the browser the token of its session."""
    response.set_cookie(
        COOKIE,
        token,
        max_age=int(LENGTH_S),
        httponly=True,
        samesite="Strict",
        secure=console.settings.secure_cookies,
        path="/",
    )

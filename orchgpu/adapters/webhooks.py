"""POST requests to addresses that users name: no redirects, no link-local or metadata addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import aiohttp
from yarl import URL

from corekit.addresses import refused_address
from corekit.aio.checked_resolver import CheckedResolver, RefusedAddressError
from corekit.errors import AppError, ErrorCode

#: Of all webhooks, and of one host.
CONNECTIONS_MAX, CONNECTIONS_OF_HOST_MAX = 100, 32
#: Of an answer that is not a success; it is quoted in the log.
_QUOTED_BYTES = 200


class Webhooks:
    """One pool of connections, opened with the first request."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(self, url: str, body: str, headers: Mapping[str, str], within_s: float) -> None:
        """As `orchgpu.ports.NoticeSender.post`."""
        where = checked_url(url)
        with http_errors(_shown(where), within_s):
            async with asyncio.timeout(within_s):
                await self._post(where, body.encode(), headers)

    async def _post(self, url: URL, body: bytes, headers: Mapping[str, str]) -> None:
        session = self._opened()
        async with session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
            if 200 <= answer.status < 300:
                return
            message = f"{_shown(url)} answered {await quoted(answer)}"
            # 410: the receiver wants no more (Standard Webhooks, "Operational considerations")
            gone = {"gone": True} if answer.status == HTTPStatus.GONE else {}
            raise AppError(ErrorCode.UNAVAILABLE, message, **gone)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = open_session(
                limit=CONNECTIONS_MAX, limit_per_host=CONNECTIONS_OF_HOST_MAX
            )
        return self._session


def open_session(
    timeout: aiohttp.ClientTimeout | None = None, **connections: Any
) -> aiohttp.ClientSession:
    """Connections to addresses that users name. `connections`: arguments of aiohttp's connector."""
    connector = aiohttp.TCPConnector(resolver=CheckedResolver(), use_dns_cache=False, **connections)
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"user-agent": "orchgpu"},
        timeout=timeout or aiohttp.ClientTimeout(),
    )


def checked_url(url: str) -> URL:
    """Raises DENIED for an address; the resolver checks those of a name."""
    where = URL(url)
    if refused_address(where.host or ""):
        raise AppError(ErrorCode.DENIED, f"{where.host} is a link-local or metadata address")
    return where


@contextmanager
def http_errors(shown: str, within_s: float) -> Iterator[None]:
    """Errors of a request inside, as `orchgpu.ports.NoticeSender.post` has them."""
    try:
        yield
    except TimeoutError:
        raise AppError(ErrorCode.TIMEOUT, f"{shown}: no answer in {within_s:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        if isinstance(error, RefusedAddressError) or isinstance(
            error.__cause__, RefusedAddressError
        ):
            message = f"{shown} leads to a link-local or metadata address"
            raise AppError(ErrorCode.DENIED, message) from error
        message = f"{shown}: {str(error)[:_QUOTED_BYTES]}"
        raise AppError(ErrorCode.UNAVAILABLE, message) from error


async def quoted(answer: aiohttp.ClientResponse) -> str:
    """The status of an answer, and the begin of its text."""
    text = (await answer.content.read(_QUOTED_BYTES)).decode("utf-8", "replace")
    return f"{answer.status}: {text!r}"


def _shown(url: URL) -> str:
    """Without path and query, which may hold a secret of the receiver."""
    return str(url.origin())

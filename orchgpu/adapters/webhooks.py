"""POST requests to addresses that users name: no redirects, no link-local or metadata addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus

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
        where = URL(url)
        if refused_address(where.host or ""):  # a resolver is not asked about an address
            raise AppError(ErrorCode.DENIED, f"{where.host} is a link-local or metadata address")
        try:
            async with asyncio.timeout(within_s):
                await self._post(where, body.encode(), headers)
        except TimeoutError:
            raise AppError(
                ErrorCode.TIMEOUT, f"{_shown(where)}: no answer in {within_s:g} s"
            ) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error, RefusedAddressError) or isinstance(
                error.__cause__, RefusedAddressError
            ):
                message = f"{_shown(where)} leads to a link-local or metadata address"
                raise AppError(ErrorCode.DENIED, message) from error
            message = f"{_shown(where)}: {str(error)[:_QUOTED_BYTES]}"
            raise AppError(ErrorCode.UNAVAILABLE, message) from error

    async def _post(self, url: URL, body: bytes, headers: Mapping[str, str]) -> None:
        session = self._opened()
        async with session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
            if 200 <= answer.status < 300:
                return
            text = (await answer.content.read(_QUOTED_BYTES)).decode("utf-8", "replace")
            message = f"{_shown(url)} answered {answer.status}: {text!r}"
            # 410: the receiver wants no more (Standard Webhooks, "Operational considerations")
            gone = {"gone": True} if answer.status == HTTPStatus.GONE else {}
            raise AppError(ErrorCode.UNAVAILABLE, message, **gone)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                resolver=CheckedResolver(),
                limit=CONNECTIONS_MAX,
                limit_per_host=CONNECTIONS_OF_HOST_MAX,
                use_dns_cache=False,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"user-agent": "orchgpu"},
            )
        return self._session


def _shown(url: URL) -> str:
    """Without path and query, which may hold a secret of the receiver."""
    return str(url.origin())

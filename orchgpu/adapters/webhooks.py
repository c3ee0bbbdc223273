"""POST requests to addresses that users name: no redirects, no link-local or metadata addresses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from http import HTTPStatus

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from corekit.addresses import refused_address
from corekit.errors import AppError, ErrorCode

#: Of all webhooks, and of one host.
CONNECTIONS_MAX, CONNECTIONS_OF_HOST_MAX = 100, 32
#: Of an answer that is not a success; it is quoted in the log.
_QUOTED_BYTES = 200


class _Refused(OSError):
    """A name that leads to an address that no request may reach."""


class _CheckedResolver(AbstractResolver):
    """Checks the very addresses that are connected to: a name may change between two lookups."""

    def __init__(self) -> None:
        self._inner = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        if any(refused_address(one["host"]) for one in found):
            raise _Refused(f"{host} is a link-local or metadata address")
        return found

    async def close(self) -> None:
        await self._inner.close()


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
            if isinstance(error, _Refused) or isinstance(error.__cause__, _Refused):
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
                resolver=_CheckedResolver(),
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

"""Webhooks over real connections: answers, time-outs, redirects, addresses that are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from corekit.errors import AppError, ErrorCode
from orchgpu.adapters.webhooks import Webhooks
from orchgpu.core.notify import webhook_headers


class Receiver:
    """An HTTP server on a free port."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append((request.path, await request.text(), headers))
        match request.path:
            case "/slow":
                await asyncio.sleep(5.0)
            case "/moved":
                raise web.HTTPTemporaryRedirect("/ok")
            case "/gone":
                return web.Response(status=410)
            case "/error":
                return web.Response(status=503, text="later, please")
        return web.Response(status=204)


@asynccontextmanager
async def receiver() -> AsyncIterator[tuple[Receiver, Webhooks]]:
    found, webhooks = Receiver(), Webhooks()
    application = web.Application()
    application.router.add_post("/{path:.*}", found.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        found.url = f"http://{host}:{port}"
        yield found, webhooks
    finally:
        await webhooks.close()
        await runner.cleanup()


async def error_of(webhooks: Webhooks, url: str, within_s: float = 5.0) -> AppError:
    with pytest.raises(AppError) as caught:
        await webhooks.post(url, "{}", {}, within_s)
    return caught.value


def test_a_request_arrives_as_it_was_signed() -> None:
    async def main() -> None:
        async with receiver() as (server, webhooks):
            headers = webhook_headers('{"é": 1}', "msg_1", 7.0, b"key")
            await webhooks.post(f"{server.url}/ok?token=t", '{"é": 1}', headers, 5.0)
            [(path, body, got)] = server.requests
            assert (path, body) == ("/ok", '{"é": 1}')
            assert headers.items() <= got.items()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("/error", ErrorCode.UNAVAILABLE, "answered 503: 'later, please'"),
        ("/moved", ErrorCode.UNAVAILABLE, "answered 307"),
        ("/gone", ErrorCode.UNAVAILABLE, "answered 410"),
        ("/slow", ErrorCode.TIMEOUT, "no answer in 0.2 s"),
    ],
)
def test_anything_but_a_success_is_an_error(path: str, code: ErrorCode, words: str) -> None:
    async def main() -> None:
        async with receiver() as (server, webhooks):
            error = await error_of(webhooks, f"{server.url}{path}?token=t", 0.2)
            assert error.code is code
            assert words in error.message
            assert bool(error.details.get("gone")) == (path == "/gone")
            assert "token" not in error.message, "the path of a webhook may be a secret"
            assert len(server.requests) == 1, "no redirect is followed"

    asyncio.run(main())


def test_no_connection_is_an_error_that_may_be_repeated() -> None:
    async def main() -> None:
        async with receiver() as (server, webhooks):
            url = server.url
        webhooks = Webhooks()
        error = await error_of(webhooks, url)
        await webhooks.close()
        assert error.code is ErrorCode.UNAVAILABLE

    asyncio.run(main())


@pytest.mark.parametrize(
    "host",
    ["169.254.169.254", "[fd00:ec2::254]", "[::ffff:169.254.169.254]", "2852039166", "0xa9fea9fe"],
)
def test_metadata_is_not_reached_however_its_address_is_written(host: str) -> None:
    async def main() -> None:
        webhooks = Webhooks()
        error = await error_of(webhooks, f"http://{host}/latest/meta-data")
        await webhooks.close()
        refused = "is not a canonical" in error.message  # by aiohttp itself
        assert error.code is ErrorCode.DENIED or refused

    asyncio.run(main())

"""Bounds for each key: what one person opens takes nothing from another one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import aiohttp
import pytest

from corekit.errors import AppError, ErrorCode
from orchgpu.web.doors import AT_ONCE_OF_KEY, WAITING_OF_KEY_MAX
from orchgpu.web.http import sessions as sessions_module
from orchgpu.web.http.sessions import SESSIONS_OF_KEY_MAX, STREAMS_OF_KEY_MAX
from orchgpu.web.routes import session as login
from tests.integration.web.conftest import Browser, Site, asked, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def any_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logins as fast as a test makes them."""
    monkeypatch.setattr(login, "LOGINS_OF_KEY_PER_S", None)
    monkeypatch.setattr(login, "LOGINS_OF_SOURCE_PER_S", None)


@pytest.mark.usefixtures("any_rate")
async def test_many_logins_with_one_key_end_that_keys_sessions_only(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.console.sessions.places, "total_max", 30)
    async with site.browser("reader") as mine, site.browser("op") as first:
        for _ in range(60):
            async with site.anonymous(site.url) as browser:
                assert await browser.log_in(site.keys["op"]) == 200
        assert (await first.ask("GET", "/api/overview"))[0] == 401, "the same key's oldest went"
        assert (await mine.ask("GET", "/api/overview"))[0] == 200
        of_op = [one for one in site.console.sessions.all() if one.viewer.name == "op"]
        assert len(of_op) == SESSIONS_OF_KEY_MAX


async def _stream(browser: Browser, path: str) -> aiohttp.ClientResponse:
    answer = await browser.http.get(browser.url + path)
    assert answer.status == 200, await answer.text()
    return answer


@pytest.mark.usefixtures("any_rate")
async def test_streams_of_one_key_end_that_keys_oldest_ones_only(site: Site) -> None:
    async with contextlib.AsyncExitStack() as stack:
        mine = await stack.enter_async_context(site.browser("reader"))
        kept = await _stream(mine, "/api/events")
        opened = []
        for _ in range(8):
            browser = await stack.enter_async_context(site.browser("op"))
            opened += [await _stream(browser, "/api/events") for _ in range(5)]
        assert len(site.console.streams) == STREAMS_OF_KEY_MAX + 1
        text = b""
        async with asyncio.timeout(20):
            while b"event: evicted" not in text:
                text += await opened[0].content.readany()
            while not opened[0].content.at_eof():
                await opened[0].content.readany()
        assert not kept.content.at_eof()
        another = await stack.enter_async_context(site.browser("lab"))
        (await _stream(another, "/api/events")).close()
        for one in (*opened, kept):
            one.close()

    async def is_empty() -> bool:
        return len(site.console.streams) == 0

    await until(is_empty)


@pytest.mark.usefixtures("any_rate")
async def test_log_streams_count_as_streams(site: Site) -> None:
    async with (
        site.browser("lab") as browser,
        site.browser("op") as other,
        site.orchestrator() as peer,
    ):
        job = await site.begun(peer, "logs")
        path = f"/api/jobs/{job}/logs"
        opened = [await _stream(browser, path) for _ in range(STREAMS_OF_KEY_MAX + 8)]
        assert len(site.console.streams) == STREAMS_OF_KEY_MAX
        await other.get("/api/functions")
        for one in opened:
            one.close()
        await asked(peer, op="finish", holder=job, outcome="FAILED", reason="NONE")

    async def is_empty() -> bool:
        return len(site.console.streams) == 0

    await until(is_empty)


async def test_calls_of_one_key_wait_for_each_other_and_for_no_other_key(site: Site) -> None:
    go, running = threading.Event(), []

    def slow(cloud: Any) -> int:
        running.append(cloud)
        go.wait(20)
        return 1

    door = site.console.cloud
    many = [
        asyncio.create_task(door.ask("greedy", slow))
        for _ in range(AT_ONCE_OF_KEY + WAITING_OF_KEY_MAX + 3)
    ]
    try:
        async with asyncio.timeout(20):
            assert await door.ask("another", lambda _: 7) == 7

        async def is_running() -> bool:
            return len(running) == AT_ONCE_OF_KEY

        await until(is_running)
        refused = [one for one in many if one.done()]
        assert refused == many[AT_ONCE_OF_KEY : AT_ONCE_OF_KEY + 3], "the oldest that waited"
        for one in refused:
            with pytest.raises(AppError) as error:
                await one
            assert error.value.code is ErrorCode.EXHAUSTED
        many[-1].cancel()
    finally:
        go.set()
    done = await asyncio.gather(*many, return_exceptions=True)
    assert done.count(1) == AT_ONCE_OF_KEY + WAITING_OF_KEY_MAX - 1
    assert await door.ask("greedy", lambda _: 3) == 3


async def test_logins_have_a_rate_for_each_key_and_each_source(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "LOGINS_OF_KEY_PER_S", 0.0001)
    async with site.browser() as browser:
        statuses = [await browser.log_in(site.keys["labreader"]) for _ in range(3)]
        assert statuses[-1] == 429
        wrong = f"other.{'x' * 43}"
        for _ in range(5):
            assert await browser.log_in(wrong) == 401, "a wrong secret takes nothing from its name"
        assert await browser.log_in(site.keys["other"]) == 200
    monkeypatch.setattr(login, "LOGINS_OF_KEY_PER_S", None)
    monkeypatch.setattr(login, "LOGINS_OF_SOURCE_PER_S", 0.0001)
    async with site.browser() as browser:
        found = [await browser.ask("POST", "/api/session", {"key": wrong}) for _ in range(3)]
        status, value, headers = found[-1]
        assert (status, value["error"]["code"]) == (429, "exhausted")
        assert int(headers["Retry-After"]) > 0
    assert sessions_module.SESSIONS_MAX >= 10 * SESSIONS_OF_KEY_MAX

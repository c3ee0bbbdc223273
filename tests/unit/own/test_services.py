"""Starts by HTTP: the event, the meaning of each answer, and the open request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from aiohttp import web

from corekit.aio.http_server import listening
from corekit.errors import AppError, ErrorCode
from orchgpu.adapters.own.services import code_of, open_services

PAYLOAD = '{"Records": []}'


class Gateway:
    """Answers with the status in the path; `/run` lasts until `over`, or the connection."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, str]]] = []
        self.over = asyncio.Event()
        self.cut = asyncio.Event()
        self.ended = asyncio.Event()
        self.last = b'{"exit_status": 0}\n'  #: line of `/run`

    async def take(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.events.append((await request.text(), headers))
        if request.path != "/run":
            return web.Response(
                status=int(request.path[1:]), text="later", headers={"Location": "/"}
            )
        answer = web.StreamResponse(status=202)
        await answer.prepare(request)
        try:
            while not self.over.is_set():
                await answer.write(b"\n")
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.over.wait(), 0.01)
            await answer.write(self.last)
        except ConnectionResetError:
            self.cut.set()
        self.ended.set()
        return answer


def run(case: Callable[[Gateway, str], Awaitable[None]]) -> None:
    async def served() -> None:
        gateway, app = Gateway(), web.Application()
        app.router.add_post("/{path:.*}", gateway.take)
        async with asyncio.timeout(30), listening(app, "127.0.0.1:0", "events") as bound:
            await case(gateway, f"http://{bound}")

    asyncio.run(served())


def test_an_event_is_the_same_whenever_it_is_sent() -> None:
    async def case(gateway: Gateway, url: str) -> None:
        async with open_services("a-token-of-16-chars") as services:
            for _ in range(2):
                await services.start(f"{url}/202", PAYLOAD)
            await services.start(f"{url}/200", "{}")
        (first, headers), (second, again), (_, other) = gateway.events
        assert first == second == PAYLOAD
        assert headers["ce-id"] == again["ce-id"] != other["ce-id"]
        named = {name: value for name, value in headers.items() if name.startswith("ce-")}
        assert named == {
            "ce-id": headers["ce-id"],
            "ce-source": "urn:orchgpu:orchestrator",
            "ce-specversion": "1.0",
            "ce-type": "orchgpu.attempt.staged",
        }
        assert headers["content-type"] == "application/json"
        assert headers["authorization"] == "Bearer a-token-of-16-chars"

    run(case)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (307, ErrorCode.INVALID),
        (400, ErrorCode.INVALID),
        (401, ErrorCode.DENIED),
        (403, ErrorCode.DENIED),
        (404, ErrorCode.NOT_FOUND),
        (408, ErrorCode.TIMEOUT),
        (410, ErrorCode.NOT_FOUND),
        (413, ErrorCode.INVALID),
        (429, ErrorCode.EXHAUSTED),
        (500, ErrorCode.UNAVAILABLE),
        (502, ErrorCode.UNAVAILABLE),
        (503, ErrorCode.EXHAUSTED),
        (504, ErrorCode.TIMEOUT),
    ],
)
def test_an_answer_has_one_meaning(status: int, code: ErrorCode) -> None:
    async def case(gateway: Gateway, url: str) -> None:
        async with open_services("") as services:
            with pytest.raises(AppError) as caught:
                await services.start(f"{url}/{status}", PAYLOAD)
        assert caught.value.message == f"{url}/{status} answered {status}: 'later'"
        assert caught.value.code is code is code_of(status)
        ((_, headers),) = gateway.events
        assert "authorization" not in headers

    run(case)


def test_a_request_stays_open_as_long_as_its_run() -> None:
    async def case(gateway: Gateway, url: str) -> None:
        async with open_services("") as services:
            await services.start(f"{url}/run", PAYLOAD)
            assert not gateway.ended.is_set()
            gateway.over.set()
            await gateway.ended.wait()
            assert not gateway.cut.is_set()

    run(case)


@pytest.mark.parametrize(("status", "logged"), [(0, []), (-9, ['{"exit_status": -9}'])])
def test_the_status_of_a_run_that_failed_is_logged(
    status: int, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def case(gateway: Gateway, url: str) -> None:
        gateway.last = f'{{"exit_status": {status}}}\n'.encode()
        async with open_services("") as services:
            await services.start(f"{url}/run", PAYLOAD)
            reading = [task for task in asyncio.all_tasks() if "run/" in task.get_name()]
            gateway.over.set()
            await asyncio.gather(*reading)
        assert len(reading) == 1

    run(case)
    assert [one.getMessage().partition("a run ended: ")[2] for one in caplog.records] == logged


def test_an_orchestrator_that_ends_leaves_its_requests() -> None:
    async def case(gateway: Gateway, url: str) -> None:
        async with open_services("") as services:
            await services.start(f"{url}/run", PAYLOAD)
        await gateway.cut.wait()

    run(case)


@pytest.mark.parametrize(
    ("function", "code", "words"),
    [
        ("fold", ErrorCode.INVALID, "write `execution: host` and `gpu:`"),
        ("http://169.254.169.254/", ErrorCode.DENIED, "link-local or metadata address"),
        ("http://h:70000/", ErrorCode.UNAVAILABLE, "http://h:70000/: "),
        ("http://127.0.0.1:9/", ErrorCode.UNAVAILABLE, "http://127.0.0.1:9/: "),
    ],
)
def test_what_cannot_be_called_is_named(function: str, code: ErrorCode, words: str) -> None:
    async def case() -> None:
        async with open_services("") as services:
            with pytest.raises(AppError) as caught:
                await services.start(function, PAYLOAD)
        assert caught.value.code is code
        assert words in caught.value.message

    asyncio.run(case())

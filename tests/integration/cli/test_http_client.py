"""The client of the HTTP API, at a server that breaks off, forgets and fails."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import ClassVar

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from corekit.aio.backoff import Backoff
from corekit.errors import AppError, ErrorCode
from orchgpu.cli.jobs import http_client
from orchgpu.cli.jobs.http_client import HttpClient, connected
from orchgpu.web.api.model import JobFile

pytestmark = pytest.mark.asyncio

END = b"event: end\ndata: {}\n\n"


class Noted(Backoff):
    """Short pauses, in order."""

    grown: ClassVar[list[int]] = []
    _since = 0

    def next_s(self) -> float:
        self._since += 1
        self.grown.append(self._since)
        return 0.0

    def reset(self) -> None:
        self._since = 0


@pytest.fixture(autouse=True)
def _pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "Backoff", Noted)
    monkeypatch.setattr(Noted, "grown", [])


@contextlib.asynccontextmanager
async def client_of(
    answers: list[Callable[[web.Request], web.StreamResponse]],
) -> AsyncIterator[HttpClient]:
    """A client whose requests get these answers; the last one stays."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return (answers.pop(0) if len(answers) > 1 else answers[0])(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server, connected(str(server.make_url("")), None) as client:
        yield client


def events(*texts: bytes) -> Callable[[web.Request], web.StreamResponse]:
    return lambda _: web.Response(body=b"".join(texts))


def refused(code: ErrorCode, status: int) -> Callable[[web.Request], web.StreamResponse]:
    error = {"error": AppError(code, "why").as_json()}
    return lambda _: web.json_response(error, status=status)


def broken(request: web.Request) -> web.StreamResponse:
    """Less than its length promises."""
    assert request.transport is not None
    request.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\npart")
    request.transport.close()
    return web.Response()


async def test_a_broken_answer_is_an_error_of_ours(tmp_path: Path) -> None:
    file = tmp_path / "in"
    file.write_bytes(b"x")
    output = JobFile(
        name="o", content_type="text/plain", bytes=99, sha256="", url="s3://o", link="/o"
    )
    async with client_of([broken]) as client:
        with pytest.raises(AppError, match="broke off") as error:
            await client.job("j")
        assert error.value.code is ErrorCode.UNAVAILABLE
        with pytest.raises(AppError, match="broke off"):
            await client.submit("f", file, "in", "key")
        with pytest.raises(AppError, match="broke off"):
            assert [piece async for piece in client.content(output)] == []


async def test_a_job_that_another_server_does_not_know_yet_is_asked_for_again() -> None:
    unknown = refused(ErrorCode.NOT_FOUND, 404)
    async with client_of([unknown, unknown, events(END)]) as client:
        assert [event.name async for event in client.events("j")] == ["end"]
    async with client_of([unknown]) as client:
        with pytest.raises(AppError, match="why"):
            assert [event async for event in client.events("j")] == []


async def test_pauses_grow_while_the_stream_ends_with_an_error() -> None:
    state, error = b"event: state\ndata: {}\n\n", b"event: error\ndata: {}\n\n"
    failing, cut = events(state, error), events(state)
    async with client_of([failing, failing, failing, cut, broken, events(END)]) as client:
        names = [event.name async for event in client.events("j")]
    assert names == ["state", "error"] * 3 + ["state", "end"]
    assert Noted.grown == [1, 2, 3, 1, 2]

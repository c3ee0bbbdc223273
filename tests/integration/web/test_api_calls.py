"""Calls of endpoints over real HTTP, until the endpoint would answer: no host is here."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from yarl import URL

from corekit.decode import encode
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from orchgpu.adapters.calls import Line
from orchgpu.core.function import Function, HostRun
from orchgpu.web.api import calls as api_calls
from orchgpu.web.api import endpoints
from orchgpu.web.api.endpoints import Endpoint
from remote_gpu.wire import calls
from remote_gpu.wire.calls import CALL_BYTES_MAX, Message
from remote_gpu.wire.channel import Channel
from tests.integration.web.conftest import STATE, Site, asked, until
from tests.integration.web.programs import inputs, program, put, receive

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/functions/called/calls"


async def deployed(site: Site, name: str, prefix: str, calls_max: int = 1) -> Function:
    run = HostRun(package_bucket=STATE, package_key="p.zip", call_s=5.0, calls_max=calls_max)
    function = replace(site.function, name=name, execution="host", host=run, input_prefix=prefix)
    await put(site, STATE, f"functions/{name}.json", json.dumps(encode(function)).encode())
    return function


@pytest_asyncio.fixture(loop_scope="module")
async def _deployed(site: Site) -> None:
    await deployed(site, "called", "c")


@asynccontextmanager
async def answering(
    site: Site, name: str, monkeypatch: pytest.MonkeyPatch, calls_max: int = 1
) -> AsyncIterator[tuple[Endpoint, Channel]]:
    """An endpoint with a line, and the run's end of it."""
    endpoint = site.console.endpoints.of(await deployed(site, name, name, calls_max))
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as threads:
        theirs.settimeout(20)
        line, run = Line(ours, Channel(ours, calls.CALLS), threads), Channel(theirs, calls.CALLS)
        calls.send(run, Message(kind="ready"))
        await line.begin()
        monkeypatch.setattr(endpoint, "_free", [line])
        yield endpoint, run
        line.close()


@asynccontextmanager
async def stalled(site: Site, path: str) -> AsyncIterator[asyncio.StreamWriter]:
    """A caller that has sent its call, and reads nothing."""
    at = URL(site.url)
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, (at.host, at.port))
    _, writer = await asyncio.open_connection(sock=raw, limit=1024)
    headers = f"Host: {at.host}:{at.port}\r\nAuthorization: Bearer {site.keys['lab']}\r\n"
    writer.write(f"POST {path} HTTP/1.1\r\n{headers}Content-Length: 1\r\n\r\n2".encode())
    try:
        yield writer
    finally:
        writer.transport.abort()


async def received(run: Channel) -> Message | None:
    return await asyncio.to_thread(calls.receive, run)


async def turns(endpoint: Endpoint, count: int) -> None:
    """Until so many calls have, or wait for, their turn."""

    async def are() -> bool:
        return bool(vars(endpoint)["_calls"] == count)

    await until(are)


async def test_what_is_no_endpoint_or_not_for_the_caller_is_refused(site: Site) -> None:
    async with program(site, "lab") as lab, program(site, "other") as other:
        status, found, _ = await lab.ask("POST", "/v1/functions/f/calls", b"x")
        assert (status, found["error"]["code"]) == (400, "invalid")
        assert "endpoint: true" in found["error"]["message"]
        assert (await lab.ask("POST", "/v1/functions/nothing/calls", b"x"))[0] == 404
        assert (await other.ask("POST", "/v1/functions/f/calls", b"x"))[0] in (403, 404)
        assert (await lab.ask("POST", f"{PATH}?name=a/b", b"x"))[0] in (400, 404)


@pytest.mark.usefixtures("_deployed")
async def test_the_first_call_opens_it_by_one_job_whose_end_is_the_answer(site: Site) -> None:
    async with program(site, "lab") as lab, program(site, "other") as other:
        found: Any = {"error": {"details": {}}}
        while "job" not in found["error"]["details"]:
            status, found, headers = await lab.ask("POST", f"{PATH}?wait=0.1", b"x")
            assert (status, headers["Retry-After"]) == (503, "2")
        assert found["error"]["code"] == "unavailable"
        assert "nothing was called" in found["error"]["message"]
        status, again, _ = await lab.ask("POST", f"{PATH}?wait=0", b"x")
        assert (status, again["error"]["details"]) == (503, found["error"]["details"])
        (stored,) = await inputs(site, "c/endpoint-")
        head = await site.cloud(lambda s3: s3.head_object(Bucket="inputs", Key=stored["Key"]))
        assert head["Metadata"]["orchgpu-endpoint"] == "1"
        job = await lab.get(f"/v1/jobs/{found['error']['details']['job']}")
        assert (job["function"], job["state"]) == ("called", "QUEUED")
        too_large = io.BytesIO(bytes(CALL_BYTES_MAX + 1))
        assert (await lab.ask("POST", PATH, too_large))[0] == 422
        assert (await other.ask("POST", PATH, b"x"))[0] == 403
        await _failed(site, job)
        status, found, _ = await lab.ask("POST", PATH, b"x")
        assert (status, found["error"]["code"]) == (503, "unavailable")
        assert f"{job['id']} ended as FAILED" in found["error"]["message"]


async def test_a_job_that_is_over_and_forgotten_is_followed_by_another(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "FAILED_S", 0.0)
    await deployed(site, "again", "again")
    jobs = []
    async with program(site, "lab") as lab:
        for _ in range(3):
            job = ""
            while not job or job in jobs:
                _, found, _ = await lab.ask("POST", "/v1/functions/again/calls?wait=0.1", b"x")
                job = found["error"]["details"].get("job", "")
                assert "opens" in found["error"]["message"]  # no error of an earlier opening
            jobs.append(job)
            submitted = site.console.api.submitted(job)
            assert submitted is not None
            by = submitted.job_ids[-(len(jobs) % 2)]  # an event may name no version
            await _failed(site, {**await lab.get(f"/v1/jobs/{job}"), "id": by})
            await until(_nothing_opens)
            site.console.picture.forget_job(by)
    assert len(await inputs(site, "again/endpoint-")) == 3


async def test_an_opening_whose_answer_was_lost_is_repeated_with_its_input(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "FAILED_S", 0.0)
    function = await deployed(site, "lost", "lost")
    endpoint = site.console.endpoints.of(function)
    ask = site.console.cloud.ask

    async def lost(*asked: Any) -> Any:
        await ask(*asked)
        raise AppError(ErrorCode.UNAVAILABLE, "the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(site.console.cloud, "ask", lost)
        with pytest.raises(AppError, match="was lost"):
            async with endpoint.line(site.console, 10.0):
                pass
    with pytest.raises(AppError, match="opens"):
        async with endpoint.line(site.console, 1.0):
            pass
    assert len(await inputs(site, "lost/endpoint-")) == 1
    async with program(site, "lab") as lab:
        await _failed(site, await lab.get(f"/v1/jobs/{endpoint.job}"))
    await until(_nothing_opens)


async def test_an_answer_that_its_caller_does_not_read_keeps_no_other_waiting(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, large = "/v1/functions/whole/calls", bytes(CALL_BYTES_MAX)
    async with (
        answering(site, "whole", monkeypatch) as (_, run),
        program(site, "lab") as lab,
        stalled(site, path),
    ):
        assert await received(run) is not None
        await asyncio.to_thread(calls.send, run, Message(kind="answer", content=large))
        other = asyncio.create_task(lab.ask("POST", path, b"x"))
        assert await received(run) is not None
        calls.send(run, Message(kind="answer", content=b"y"))
        assert (await other)[:2] == (200, b"y")


async def test_a_stalled_reader_of_parts_is_cut(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_calls, "SILENCE_S", 0.2)
    async with (
        answering(site, "parts", monkeypatch) as (endpoint, run),
        stalled(site, "/v1/functions/parts/calls"),
    ):
        assert await received(run) is not None

        def send() -> None:
            with contextlib.suppress(OSError):  # it is cut
                for _ in range(3):
                    calls.send(run, Message(kind="part", content=bytes(CALL_BYTES_MAX)))

        await asyncio.to_thread(send)
        await turns(endpoint, 0)


async def test_the_call_of_a_caller_that_is_gone_is_not_made(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/v1/functions/gone/calls"
    async with answering(site, "gone", monkeypatch) as (endpoint, run), program(site, "lab") as lab:
        first = asyncio.create_task(lab.ask("POST", path, b"1"))
        made = [await received(run)]
        async with stalled(site, path):
            await turns(endpoint, 2)
        last = asyncio.create_task(lab.ask("POST", path, b"3"))
        await turns(endpoint, 3)
        calls.send(run, Message(kind="answer"))
        made.append(await received(run))
        calls.send(run, Message(kind="answer"))
        assert [status for status, _, _ in (await first, await last)] == [200, 200]
        assert [one.content for one in made if one is not None] == [b"1", b"3"]


async def test_calls_that_wait_get_further_connections_up_to_their_number(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/v1/functions/wide/calls"
    async with (
        answering(site, "wide", monkeypatch, calls_max=2) as (endpoint, run),
        answering(site, "beside", monkeypatch) as (beside, second),
        program(site, "lab") as lab,
    ):
        line: Line = vars(beside)["_free"][0]
        refused = [True]

        async def reached(*_: object) -> Line | None:
            if refused:
                raise AppError(ErrorCode.EXHAUSTED, "no further caller")
            return line

        monkeypatch.setattr(endpoint, "_reached", reached)
        first = asyncio.create_task(lab.ask("POST", path, b"1"))
        assert await received(run) is not None
        waiting = asyncio.create_task(lab.ask("POST", path, b"2"))
        await until(lambda: _of(vars(endpoint)["_opening"] is not None))
        calls.send(run, Message(kind="answer", content=b"1"))  # a refused one fails no call
        assert await received(run) is not None
        refused.clear()
        monkeypatch.setattr(endpoint, "_more_at_s", 0.0)
        third = asyncio.create_task(lab.ask("POST", path, b"3"))
        asked = await received(second)
        assert asked is not None
        assert asked.content == b"3"
        last = asyncio.create_task(lab.ask("POST", path, b"4"))
        await turns(endpoint, 3)
        for channel, content in ((second, b"3"), (run, b"2"), (second, b"4")):
            calls.send(channel, Message(kind="answer", content=content))
            if content == b"3":
                assert await received(second) is not None
        answers = [await one for one in (first, waiting, third, last)]
        assert [(status, found) for status, found, _ in answers] == [
            (200, str(number).encode()) for number in range(1, 5)
        ]


async def test_a_call_that_waits_is_woken_for_the_next_try_of_a_connection(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "FAILED_S", 0.05)
    path = "/v1/functions/again/calls"
    tries: list[Line] = []
    async with (
        answering(site, "again", monkeypatch, calls_max=2) as (endpoint, run),
        answering(site, "free", monkeypatch) as (free, second),
        program(site, "lab") as lab,
    ):
        line: Line = vars(free)["_free"][0]

        async def reached(*_: object) -> Line | None:
            tries.append(line)
            if len(tries) == 1:
                raise AppError(ErrorCode.EXHAUSTED, "no further caller")
            return line

        monkeypatch.setattr(endpoint, "_reached", reached)
        first = asyncio.create_task(lab.ask("POST", path, b"1"))
        assert await received(run) is not None
        waiting = asyncio.create_task(lab.ask("POST", path, b"2"))
        assert await received(second) is not None, "while the first one has no answer"
        for channel in (run, second):
            calls.send(channel, Message(kind="answer"))
        assert [status for status, _, _ in (await first, await waiting)] == [200, 200]


async def _of(value: bool) -> bool:
    return value


@pytest.mark.usefixtures("_deployed")
@pytest.mark.parametrize("counted", ["waiting", "inputs"])
async def test_a_call_is_counted_before_its_body_is_read(
    site: Site, monkeypatch: pytest.MonkeyPatch, counted: str
) -> None:
    monkeypatch.setattr(getattr(site.console.api, counted), "each_max", 0)
    async with program(site, "lab") as lab:
        too_large = io.BytesIO(bytes(CALL_BYTES_MAX + 1))
        assert (await lab.ask("POST", PATH, too_large))[0] == 429


async def _nothing_opens() -> bool:
    return not any(task.get_name().endswith("/endpoint") for task in asyncio.all_tasks())


async def _failed(site: Site, job: Any) -> None:
    async with site.orchestrator() as peer:
        await receive(site, peer, job)
        answer = await asked(
            peer, op="finish", holder=job["id"], outcome="FAILED", reason="SCRIPT_ERROR"
        )
        assert "ok" in answer, answer

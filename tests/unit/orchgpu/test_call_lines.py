"""A caller's connection to a run, and the messages on it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

import pytest
import pytest_asyncio

from corekit.errors import AppError, ErrorCode
from orchgpu.adapters.calls import THREADS_MAX, Line
from orchgpu.web.api.state import WAITING_MAX
from remote_gpu.wire import calls
from remote_gpu.wire.calls import Message
from remote_gpu.wire.channel import Channel
from remote_gpu.wire.errors import WireError

pytestmark = pytest.mark.asyncio

ANSWER = Message(kind="answer", name="a", content=b"1")


@pytest_asyncio.fixture
async def ends() -> AsyncIterator[tuple[Line, Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as threads:
        line = Line(ours, Channel(ours, calls.CALLS), threads)
        run = Channel(theirs, calls.CALLS)
        calls.send(run, Message(kind="ready"))
        await line.begin()
        yield line, run, theirs


async def called(line: Line) -> list[Message]:
    return [message async for message in line.call("in", b"x")]


async def test_answers_come_with_their_parts_and_the_line_stays(
    ends: tuple[Line, Channel, socket.socket],
) -> None:
    line, run, _ = ends
    part = Message(kind="part", content=b"0")
    for sent in ([ANSWER], [part, part, Message(kind="answer")]):
        for message in sent:
            calls.send(run, message)
        assert await called(line) == sent
        assert calls.receive(run) == Message(kind="call", name="in", content=b"x")
        assert line.is_open


@pytest.mark.parametrize(
    ("code", "expected", "details"),
    [
        ("failed", ErrorCode.INTERNAL, {"failed": True}),
        ("timeout", ErrorCode.TIMEOUT, {}),
        ("unavailable", ErrorCode.UNAVAILABLE, {"may_be_made": True}),
        ("newer", ErrorCode.INTERNAL, {"failed": True}),
    ],
)
async def test_a_failure_is_an_error_and_the_line_stays(
    ends: tuple[Line, Channel, socket.socket],
    code: str,
    expected: ErrorCode,
    details: dict[str, object],
) -> None:
    line, run, _ = ends
    calls.send(run, Message(kind="failed", code=code, message="why"))
    with pytest.raises(AppError, match="why") as caught:
        await called(line)
    assert (caught.value.code, caught.value.details) == (expected, details)
    assert line.is_open


async def test_each_call_that_may_wait_has_a_thread() -> None:
    assert THREADS_MAX >= 2 * WAITING_MAX  # of calls, and of endpoints that open


@pytest.mark.parametrize("sent", [b"", b"no frame of ours, but long enough"])
async def test_a_connection_that_breaks_leaves_the_call_open(
    ends: tuple[Line, Channel, socket.socket], sent: bytes
) -> None:
    line, _, theirs = ends
    theirs.sendall(sent)
    theirs.shutdown(socket.SHUT_WR)
    assert not line.is_open  # nothing is called on one that is known to have ended
    with pytest.raises(AppError, match="may have been made") as caught:
        await called(line)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert line.is_closed


async def test_a_call_that_is_given_up_breaks_the_connection(
    ends: tuple[Line, Channel, socket.socket],
) -> None:
    line, run, _ = ends
    calls.send(run, Message(kind="part", content=b"0"))
    async with aclosing(line.call("in", b"x")) as answer:
        assert (await anext(answer)).kind == "part"
    assert line.is_closed
    assert calls.receive(run) is not None
    assert calls.receive(run) is None


async def test_one_that_is_cancelled_is_closed(
    ends: tuple[Line, Channel, socket.socket],
) -> None:
    line, run, _ = ends
    task = asyncio.create_task(called(line))
    assert await asyncio.to_thread(calls.receive, run) is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert line.is_closed


async def test_a_run_that_ends_before_it_has_loaded_is_no_line() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as threads:
        line = Line(ours, Channel(ours, calls.CALLS), threads)
        theirs.close()
        with pytest.raises(AppError, match="has ended"):
            await line.begin()
        assert not line.is_open


@pytest.mark.parametrize("meta", [{}, {"call": 1}, {"other": {}}, {"call": {"name": 1}}])
async def test_what_is_no_message_is_refused(meta: dict[str, object]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Channel(ours, calls.CALLS).send(meta)
        with pytest.raises(WireError):
            calls.receive(Channel(theirs, calls.CALLS))

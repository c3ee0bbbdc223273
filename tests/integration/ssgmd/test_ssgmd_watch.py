"""`GET /v1/watch` streams every change, in both formats."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from corekit.budget import Budget
from tests.host_hello import host_hello
from tests.integration.ssgmd.conftest import Endpoints, serving

HELLO = host_hello(op="hello")


async def stream(endpoints: Endpoints, accept: str = "*/*") -> AsyncIterator[dict[str, Any]]:
    url = f"http://{endpoints.daemon.http}/v1/watch"
    async with endpoints.http.get(url, headers={"Accept": accept}) as answer:
        assert answer.status == 200
        async for line in answer.content:
            text = line.removeprefix(b"data: ").strip()
            if text and not text.startswith(b"id: "):
                yield json.loads(text)


async def until(events: AsyncIterator[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """The next event that has these values."""
    async with asyncio.timeout(60):
        async for event in events:
            if wanted.items() <= event.items():
                return event
    raise AssertionError(f"the stream ended before {wanted}")


@pytest.mark.asyncio
@pytest.mark.parametrize("accept", ["application/x-ndjson", "text/event-stream"])
async def test_every_kind_of_change_is_streamed(tmp_path: Path, accept: str) -> None:
    async with serving(tmp_path) as endpoints, endpoints.peer() as host:
        events = stream(endpoints, accept)
        assert (await anext(events))["event"] == "started"
        await host.ask(**HELLO)
        await until(events, event="host", host="h", state="UP")
        await until(events, event="device", device="h/0", health="OK", drained=False)

        async def reserve(attempt: str) -> Any:
            request = {"sharing": "exclusive"}
            body = {"attempt": attempt, "request": request, "wait": True}
            return (await endpoints.ask("POST", "/v1/reserve", body)).value

        lease = (await reserve("a"))["granted"]["lease"]["id"]
        await until(events, event="lease", lease=lease, state="RESERVED")
        assert (await reserve("b"))["outcome"] == "waiting"
        await until(events, event="queue", attempt="b", queued=True, waiting=1)
        await endpoints.ask("DELETE", f"/v1/leases/{lease}")
        await until(events, event="lease", lease=lease, state="ENDED", reason="RELEASED")
        await endpoints.ask("POST", "/v1/withdraw", {"attempt": "b"})
        await endpoints.ask("POST", "/v1/set", {"name": "policy", "value": "fair"})
        await until(events, event="parameter", name="policy", value="fair")
        await endpoints.ask("POST", "/v1/drain", {"host": "h"})
        await until(events, event="host", host="h", state="DRAINED")
        await endpoints.ask("POST", "/v1/drain", {"host": "h", "device": "h/0"})
        await until(events, event="device", device="h/0", drained=True)
        await events.aclose()  # type: ignore[attr-defined]


@pytest.mark.asyncio
async def test_the_silence_of_a_host_is_streamed(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, budget=Budget().scaled(0.02)) as endpoints,
        endpoints.peer() as host,
    ):
        events = stream(endpoints)
        assert (await anext(events))["event"] == "started"
        await host.ask(**HELLO)
        await until(events, event="host", host="h", state="LOST")
        await endpoints.ask("POST", "/v1/forget", {"host": "h"})
        await until(events, event="host", host="h", state=None)
        await until(events, event="beat")
        await events.aclose()  # type: ignore[attr-defined]


@pytest.mark.asyncio
async def test_a_stream_begins_with_the_current_state_and_ends_with_the_daemon(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as endpoints, endpoints.peer() as host:
        await host.ask(**HELLO)
        events = stream(endpoints)
        seen = [await anext(events) for _ in range(3)]
        assert [event["event"] for event in seen] == ["started", "host", "device"]
        assert [event["seq"] for event in seen] == [1, 2, 3]
        endpoints.daemon.hub.end_all("ssgmd stops")
        assert (await until(events, event="lost"))["why"] == "ssgmd stops"
        with pytest.raises(StopAsyncIteration):
            await anext(events)

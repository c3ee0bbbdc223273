"""A stream of events continues after a gap; where it cannot, it begins with `reset`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from corekit.budget import Budget
from corekit.values import replace
from gpu_scheduler.client.access import Access
from gpu_scheduler.client.events import Watched, watched
from gpu_scheduler.daemon.events import hub as hub_module
from gpu_scheduler.model import Step
from gpu_scheduler.protocol.answers import RecordPush
from gpu_scheduler.protocol.watch import Lost, Reset, Started
from orchgpu.local.ports import fixed_address
from tests.host_hello import host_hello
from tests.integration.ssgmd.conftest import BUDGET, Endpoints, serving

HELLO = host_hello(op="hello")


@contextlib.asynccontextmanager
async def stream(
    endpoints: Endpoints, after: str | None = None, headers: dict[str, str] | None = None
) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    url = f"http://{endpoints.daemon.http}/v1/watch"
    query = {} if after is None else {"after": after}
    async with endpoints.http.get(url, params=query, headers=headers or {}) as answer:
        yield _events(answer)


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async with asyncio.timeout(60):
        async for line in answer.content:
            text = line.strip()
            if text.startswith(b"{"):
                yield json.loads(text)


async def first(events: AsyncIterator[dict[str, Any]], name: str) -> dict[str, Any]:
    async for event in events:
        if event["event"] == name:
            return event
    raise AssertionError(f"the stream ended before {name}")


async def attempt(endpoints: Endpoints, holder: str = "job") -> None:
    body = {"holder": holder, "n": 1, "revision": 0, "handle": "h", "block": {"function": "f"}}
    answer = await endpoints.ask(
        "POST", "/v1/attempt", {**body, "request": {}, "wait": True, "received_ago_s": 0.0}
    )
    assert answer.value["outcome"] == "granted"


@pytest.mark.asyncio
async def test_the_changes_of_a_gap_are_replayed(tmp_path: Path) -> None:
    async with serving(tmp_path) as endpoints, endpoints.peer() as host:
        await host.ask(**HELLO)
        async with stream(endpoints) as events:
            position = (await first(events, "current"))["position"]
        await attempt(endpoints)
        async with stream(endpoints, position) as events:
            resumed = await anext(events)
            assert (resumed["event"], resumed["position"]) == ("resumed", position)
            record = await first(events, "record")
            assert record["record"]["step"] == "RESERVED"
            assert record["record"]["leases"][0]["shares"][0]["device"] == "h/0"
        accept = {"Accept": "text/event-stream", "Last-Event-ID": record["position"]}
        url = f"http://{endpoints.daemon.http}/v1/watch"
        async with endpoints.http.get(url, headers=accept) as answer:
            text = (await answer.content.readuntil(b"\n\n")).decode()
        assert text.startswith(f"id: {record['position']}\ndata: ")
        assert '"event":"resumed"' in text


@pytest.mark.asyncio
async def test_a_stream_after_a_restart_begins_with_reset_and_the_state(tmp_path: Path) -> None:
    async with serving(tmp_path) as endpoints, stream(endpoints) as events:
        position = (await first(events, "current"))["position"]
    async with serving(tmp_path) as endpoints, endpoints.peer() as host:
        await host.ask(**HELLO)
        async with stream(endpoints, position) as events:
            seen = [await anext(events) for _ in range(4)]
    assert [one["event"] for one in seen] == ["reset", "host", "device", "current"]
    assert "epoch" in seen[0]["why"]


@pytest.mark.asyncio
async def test_changes_are_not_collected_for_ever_without_a_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "LINGER_S", 0.0)
    budget = replace(BUDGET, client_beat_s=0.01)
    async with serving(tmp_path, budget=budget) as endpoints:
        async with stream(endpoints) as events:
            position = (await first(events, "current"))["position"]
        async with asyncio.timeout(60):
            while endpoints.daemon.hub.collects:  # noqa: ASYNC110 - the daemon's progress
                await asyncio.sleep(0.01)
        async with stream(endpoints, position) as events:
            reset = await anext(events)
        assert (reset["event"], "too old" in reset["why"]) == ("reset", True)


@pytest.mark.asyncio
async def test_a_typed_client_continues_across_a_restart(tmp_path: Path) -> None:
    seen: list[Watched] = []
    budget = replace(Budget(), reconnect_base_s=0.01, reconnect_s_max=0.05)

    async def watch_until(kind: type, events: AsyncIterator[Watched]) -> Watched:
        async with asyncio.timeout(60):
            async for one in events:
                seen.append(one)
                if isinstance(one.event, kind):
                    return one
        raise AssertionError("the stream of a client has no end")

    http = fixed_address()
    async with serving(tmp_path, http=http) as endpoints, endpoints.peer() as host:
        events = watched(http, Access(), budget=budget)
        await watch_until(Started, events)
        await host.ask(**HELLO)
        await attempt(endpoints)
        one = await watch_until(RecordPush, events)
        assert isinstance(one.event, RecordPush)
        assert one.event.record is not None
        assert one.event.record.step is Step.RESERVED
    await watch_until(Lost, events)
    async with serving(tmp_path, http=http):
        await watch_until(Reset, events)
        await events.aclose()
    assert sum(isinstance(one.event, Lost) for one in seen) == 1

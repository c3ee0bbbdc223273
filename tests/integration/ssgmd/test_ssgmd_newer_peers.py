"""Clients and hosts of a newer version: an unknown key does not lose their messages."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.host_hello import DEVICE, host_hello
from tests.integration.ssgmd.conftest import Peer, serving

HOST: dict[str, Any] = host_hello()


async def answered(peer: Peer, **fields: Any) -> Any:
    """The answer of a request, whatever is pushed before it."""
    told = await peer.ask(**fields)
    while "push" in told:
        told = await peer.next()
    return told


async def host_says_hello(peer: Peer, **more: Any) -> Any:
    return await answered(peer, op="hello", **HOST, **more)


def test_a_newer_host_is_accepted_and_its_messages_are_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with (
            serving(tmp_path) as endpoints,
            endpoints.peer() as host,
            endpoints.peer() as client,
        ):
            welcome = await host_says_hello(host, rack="r1")
            assert welcome["ok"]["installs"] == []
            assert (await client.hello(colour="blue"))["ok"]["epoch"] == 1
            asked = {"memory_mib": 10}
            answer = await answered(client, op="reserve", attempt="a", request=asked, wait=False)
            lease = answer["ok"]["granted"]["lease"]["id"]
            for _ in range(2):
                more = {"key_of_this_test": "good", "devices": [{**DEVICE, "healthy": True}]}
                assert (await answered(host, op="report", **more))["ok"] == {}
            opened = {"op": "session", "lease": lease, "nonce": "n", "state": "opened"}
            assert (await answered(host, **opened, colour="red"))["ok"] == {}
            closed = {"op": "session", "lease": lease, "nonce": "n", "state": "closed"}
            assert (await answered(host, **closed, reason="METEOR", detail="it fell"))["ok"] == {}
            left = await endpoints.ask("GET", "/v1/leases")
            assert left.value["leases"] == [], "the end was not lost for its reason"

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert caplog.text.count("report.key_of_this_test is of a newer version") == 1


def test_a_symptom_of_a_newer_host_is_another_one(tmp_path: Path) -> None:
    async def story() -> None:
        sick = {**DEVICE, "health": "SUSPECT", "symptoms": ["MELTING"], "detail": "it melts"}
        async with serving(tmp_path) as endpoints, endpoints.peer() as host:
            assert "ok" in await answered(host, op="hello", **{**HOST, "devices": [sick]})
            shown = await endpoints.ask("GET", "/v1/inventory")
            device = shown.value["hosts"][0]["devices"][0]["device"]
            assert (device["symptoms"], device["detail"]) == (["OTHER"], "it melts")

    asyncio.run(story())


def test_unknown_keys_of_a_client_are_ignored_in_reports_and_refused_in_requests(
    tmp_path: Path,
) -> None:
    """Its reports are accepted; an unknown condition of a request is refused by its name."""

    async def story() -> None:
        async with (
            serving(tmp_path) as endpoints,
            endpoints.peer() as host,
            endpoints.peer() as client,
        ):
            await host_says_hello(host)
            await client.hello()
            assert (await answered(client, op="beat", colour="blue"))["ok"] == {}
            opened = {"holder": "j", "n": 1, "revision": 0, "handle": "", "block": {}}
            asked = {"op": "attempt", "wait": False, "received_ago_s": 0.0, **opened}
            for more in ({"request": {"near": "h2"}}, {"request": {}, "only_at_night": True}):
                error = (await answered(client, **asked, **more))["error"]
                assert error["code"] == "invalid"
                assert "near" in error["message"] or "only_at_night" in error["message"]
            assert "ok" in await answered(client, **asked, request={})
            finish = {"op": "finish", "holder": "j", "outcome": "SUCCEEDED", "reason": "OK"}
            ended = await answered(client, **finish, detail="", received_ago_s=0.0, colour="blue")
            assert ended["ok"]["record"]["outcome"] == "SUCCEEDED"
            error = (await answered(client, op="drain", host="h", revok=True))["error"]
            assert "did you mean 'revoke'" in error["message"]

    asyncio.run(story())

"""One key floods the socket endpoint: its usage is limited, and other keys are served."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.daemon.access.keys import NAME, KeyEntry, KeyRole, add_key
from gpu_scheduler.parameters import Parameters
from tests.integration.ssgmd.conftest import Endpoints, Peer, serving

DEVICE = {"id": "gpu-a/0", "index": 0, "kind": "cuda", "model": "M", "memory_mib": 1000}
EXCLUSIVE = {"sharing": "exclusive"}
FLOOD = 3_000
WAITING_MAX = 40


def added(state: Path, name: str, role: KeyRole) -> str:
    return add_key(state / NAME, KeyEntry(name=name, role=role, sha256="0" * 64))


def figures(text: str) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


async def flooded(peer: Peer) -> Counter[str]:
    """All attempts at once on one connection; their answers, counted by outcome or limit."""
    for n in range(FLOOD):
        attempt = {
            "id": n,
            "op": "attempt",
            "holder": f"job-{n}",
            "n": 1,
            "revision": 0,
            "request": EXCLUSIVE,
            "block": {"note": "x" * 3000},
            "handle": "h" * 1000,
        }
        peer.writer.write(json.dumps(attempt).encode() + b"\n")
    answers: Counter[str] = Counter()
    for _ in range(FLOOD):
        answer: dict[str, Any] = await peer.next()
        if "ok" in answer:
            answers[answer["ok"]["outcome"]] += 1
        else:
            assert answer["error"]["code"] == "exhausted"
            answers[answer["error"]["details"]["limit"]] += 1
    return answers


async def hosted(peer: Peer, key: str) -> None:
    hello = {"host": "gpu-a", "incarnation": "1", "gateway": "127.0.0.1:1", "devices": [DEVICE]}
    told = await peer.ask(
        op="hello", role="host", version=1, key=key, epoch_seen=0, installed=[], **hello
    )
    assert "ok" in told, told


async def metrics(endpoints: Endpoints, key: str) -> dict[str, float]:
    return figures((await endpoints.ask("GET", "/metrics", key=key)).value)


@pytest.mark.asyncio
async def test_a_flood_of_one_key_leaves_another_served_and_the_scheduler_small(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    keys = {name: added(state, name, KeyRole.REQUESTER) for name in ("greedy", "modest")}
    keys["host"] = added(state, "host", KeyRole.HOST)
    parameters = Parameters(key_waiting_max=WAITING_MAX)
    async with (
        serving(state, parameters=parameters) as endpoints,
        endpoints.peer() as host,
        endpoints.peer() as greedy,
        endpoints.peer() as modest,
    ):
        await hosted(host, keys["host"])
        await greedy.hello(session="g", key=keys["greedy"])
        await modest.hello(session="m", key=keys["modest"])
        taken = await modest.ask(op="reserve", attempt="first", request=EXCLUSIVE)
        assert taken["ok"]["outcome"] == "granted"
        answers = await flooded(greedy)
        assert answers == {"waiting": WAITING_MAX, "KEY_WAITING_MAX": FLOOD - WAITING_MAX}
        again = await modest.ask(op="reserve", attempt="second", request=EXCLUSIVE, wait=True)
        assert again["ok"]["outcome"] == "waiting"
        found = await metrics(endpoints, keys["modest"])
        assert found["ssgmd_waiting_requests"] == WAITING_MAX + 1
        assert found['ssgmd_records{state="live"}'] == WAITING_MAX
        assert found['ssgmd_key_records{key="greedy"}'] == WAITING_MAX
        assert found['ssgmd_key_waiting_requests{key="modest"}'] == 1
        assert found['ssgmd_limited_total{limit="KEY_WAITING_MAX"}'] == FLOOD - WAITING_MAX
        assert found["ssgmd_journal_bytes"] < 1_000_000, "what is refused is not written"


@pytest.mark.asyncio
async def test_a_rate_limited_client_gets_the_time_of_its_next_try(tmp_path: Path) -> None:
    state = tmp_path / "state"
    keys = {name: added(state, name, KeyRole.REQUESTER) for name in ("greedy", "modest")}
    async with serving(state, parameters=Parameters(key_rate_per_s=1.0)) as endpoints:
        refused = None
        for _ in range(1000):  # ten at once, then one a second: far fewer fit in the time it takes
            refused = await endpoints.ask("GET", "/v1/queue", key=keys["greedy"])
            if refused.status != 200:
                break
        assert refused is not None
        assert refused.status == 429
        assert refused.value["error"]["details"]["limit"] == "KEY_RATE_PER_S"
        assert 0 < refused.value["error"]["details"]["retry_in_s"] <= 1.0
        assert 0 < int(refused.headers["Retry-After"]) <= 1
        assert (await endpoints.ask("GET", "/v1/queue", key=keys["modest"])).status == 200

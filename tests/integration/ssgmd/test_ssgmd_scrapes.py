"""`/metrics` is made page by page, and a large text is served again for a while."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.daemon.endpoints import scrape
from tests.integration.ssgmd.conftest import Endpoints, Peer, serving

HOSTS, LEASES = ("h1", "h2", "h3"), 7


async def filled(endpoints: Endpoints, peer: Peer, host: str) -> None:
    device = {"id": f"{host}/0", "index": 0, "kind": "cuda", "model": "M", "memory_mib": 1000}
    hello = {"role": "host", "host": host, "incarnation": "i", "gateway": "h:1", "version": 1}
    told: dict[str, Any] = {"devices": [device], "epoch_seen": 0, "installed": []}
    assert "ok" in await peer.ask(op="hello", **hello, **told)


@pytest.mark.asyncio
async def test_every_host_and_lease_is_exported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "PAGE", 2)
    monkeypatch.setattr(scrape, "LINES_AT_ONCE", 3)
    async with (
        serving(tmp_path) as endpoints,
        endpoints.peer() as a,
        endpoints.peer() as b,
        endpoints.peer() as c,
    ):
        for peer, host in zip((a, b, c), HOSTS, strict=True):
            await filled(endpoints, peer, host)
        ids = []
        for number in range(LEASES):
            body = {"attempt": f"a{number}", "request": {"memory_mib": 100}}
            answer = await endpoints.ask("POST", "/v1/reserve", body)
            ids.append(answer.value["granted"]["lease"]["id"])
        text = (await endpoints.ask("GET", "/metrics")).value
        assert re.findall(r'ssgmd_device_memory_mib\{host="(h\d)"', text) == list(HOSTS)
        assert re.findall(r'ssgmd_lease_memory_mib\{lease="([^"]+)"', text) == ids
        assert f'ssgmd_leases{{state="RESERVED"}} {LEASES}' in text
        one = await endpoints.ask("GET", f"/v1/leases/{ids[-1]}")
        assert (one.status, one.value["id"]) == (200, ids[-1])


@pytest.mark.asyncio
async def test_a_large_text_is_served_again_to_scrapes_that_follow_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as endpoints:
        small = [(await endpoints.ask("GET", "/metrics")).value for _ in range(2)]
        assert small[0] != small[1]  # requests are counted
        monkeypatch.setattr(scrape, "SMALL_LINES", 0)
        monkeypatch.setattr(scrape, "REST_S_PER_LINE", 60.0)
        large = [(await endpoints.ask("GET", "/metrics")).value for _ in range(2)]
        assert large[0] == large[1]


@pytest.mark.asyncio
async def test_the_end_of_a_lease_on_several_hosts_is_counted_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as endpoints, endpoints.peer() as a, endpoints.peer() as b:
        for peer, host in ((a, "h1"), (b, "h2")):
            await filled(endpoints, peer, host)
        body = {"attempt": "gang", "request": {"count": 2}}
        lease = (await endpoints.ask("POST", "/v1/reserve", body)).value["granted"]["lease"]["id"]
        await endpoints.ask("DELETE", f"/v1/leases/{lease}")
        assert [(await a.next())["push"] for _ in range(2)] == ["install", "end"]
        stale = await a.ask(op="session", lease="lease-unknown", state="opened", nonce="n")
        assert stale["push"] == "end"
        text = (await endpoints.ask("GET", "/metrics")).value
    ends = [line for line in text.splitlines() if line.startswith("ssgmd_lease_ends_total{")]
    assert ends == ['ssgmd_lease_ends_total{reason="RELEASED"} 1']
    assert "ssgmd_pushes_total 5" in text

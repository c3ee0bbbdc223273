"""Data sets and programs from a host's link to a real ssgmd, and back through both endpoints."""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.request
from typing import Any

import pytest

from corekit.budget import Budget
from corekit.ids import DeviceId
from fdl.parse import parse
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import Device, DeviceKind, Request
from gpu_scheduler.monitor.link import HostLink
from gpu_scheduler.monitor.watched import WatchedHost
from gpu_scheduler.protocol.answers import Outcome
from orchgpu.cli.definition.capacity import capacity_notes

BUDGET = Budget()
DATA = {"data": {"proteins": "0" * 64}, "programs": {"blast": ""}}


class OneDevice:
    """A probe of one fixed device."""

    def __init__(self, host: str) -> None:
        self._device = Device(
            id=DeviceId(f"{host}/0"), index=0, kind=DeviceKind.CPU, model="c", memory_mib=1024
        )

    async def devices(self) -> tuple[Device, ...]:
        return (self._device,)

    async def usage(self) -> tuple[Any, ...]:
        return ()

    async def close(self) -> None:
        pass


def link(address: str, host: str, digests: Any) -> HostLink:
    return HostLink(
        address,
        host=host,
        control=WatchedHost(),
        probe=OneDevice(host),
        gateway="127.0.0.1:1",
        budget=BUDGET,
        digests=digests,
    )


def over_http(http: str, op: str, body: dict[str, Any]) -> Any:
    url = f"http://{http.removeprefix('http://')}/v1/{op}"
    asked = urllib.request.Request(
        url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=10) as answer:
        return json.load(answer)


@pytest.mark.asyncio
async def test_both_endpoints_place_by_what_the_hosts_have(programs: Any) -> None:
    programs.time_scale = 1
    ready = programs.ssgmd().wait_ready()
    address = ready["socket"]
    async with (
        link(address, "with", DATA) as one,
        link(address, "without", {}) as other,
        SchedulerClient(address, budget=BUDGET) as client,
    ):
        await asyncio.gather(one.registered(), other.registered())
        hosts = {str(host.host): host for host in (await client.inventory()).hosts}
        assert (hosts["with"].data, hosts["with"].programs) == (DATA["data"], DATA["programs"])
        assert (hosts["without"].data, hosts["without"].programs) == ({}, {})
        request = Request(data=("proteins",), programs=("blast",))
        for number in range(3):
            outcome = await client.reserve(f"a{number}", request, wait=False)
            assert outcome.granted is not None
            assert outcome.granted.lease.shares[0].host == "with"
        pinned = Request(data=(f"proteins@sha256:{'1' * 64}",))
        explained = await client.explain(request=pinned)
        assert explained.outcome is Outcome.IMPOSSIBLE
        assert "host with lacks data proteins@sha256:1111" in explained.explanation.sentence
        body = {"request": {"programs": ["blastp"]}}
        found = await asyncio.to_thread(over_http, ready["http"], "explain", body)
        assert found["outcome"] == "impossible"
        assert found["explanation"]["short"]["what"] == "PROGRAM"
        assert "did you mean 'blast'?" in found["explanation"]["sentence"]
        text = (
            "functions:\n  aws:\n  - lambda: {name: f, init_script: a, input: [{path: buc}]}\n"
            "    gpu: {data: [proteins],\n          programs: [blastp]}\n"
        )
        (note,) = await asyncio.to_thread(capacity_notes, parse(text), address)
        assert note.text("f").startswith("f:5:11: error: functions.aws[0].gpu.programs: no known")
        assert "host with has data proteins, lacks program blastp" in note.message


def test_a_host_of_another_version_is_kept(programs: Any) -> None:
    """Without these keys it has nothing; keys of a newer version are passed over with a warning."""
    daemon = programs.ssgmd()
    ready = daemon.wait_ready()
    hello = {
        "id": 1,
        "op": "hello",
        "role": "host",
        "host": "other",
        "incarnation": "i",
        "gateway": "127.0.0.1:1",
        "devices": [{"id": "o/0", "index": 0, "kind": "cpu", "model": "c", "memory_mib": 9}],
        "epoch_seen": 0,
        "installed": [],
        "version": 1,
    }
    place, _, port = ready["socket"].rpartition(":")
    for more in ({}, {"volumes": {"nr": {"bytes": 1}}, "data": {"nr": ""}}):
        with socket.create_connection((place, int(port)), 10) as stream:
            stream.sendall(json.dumps({**hello, **more}).encode() + b"\n")
            answer = json.loads(stream.makefile().readline())
            assert "ok" in answer, answer
            hosts = over_http_get(ready["http"], "inventory")["hosts"]
        (host,) = hosts
        assert host.get("data", {}) == more.get("data", {})
    assert "volumes" in daemon.log.read_text()


def over_http_get(http: str, op: str) -> Any:
    url = f"http://{http.removeprefix('http://')}/v1/{op}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)

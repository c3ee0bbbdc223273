"""Redaction of object names, handles and addresses of a tenant's jobs, by role and op."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from corekit.budget import Budget
from gpu_scheduler.daemon.access.keys import NAME, KeyEntry, KeyRole, add_key
from tests.host_hello import DEVICE, host_hello
from tests.integration.ssgmd.conftest import Endpoints, serving

HOST = host_hello()
OBJECT, HANDLE, NETWORK, DATA = "salaries-2026.csv", "receipt-handle-42", "10.99.0.0/16", "data:x7"
#: Name → role, tenant. `alice` made everything that is looked at; she is bound to no tenant.
KEYS = {
    "alice": (KeyRole.REQUESTER, None),
    "lab": (KeyRole.REQUESTER, "lab"),
    "labreader": (KeyRole.READER, "lab"),
    "other": (KeyRole.REQUESTER, "other"),
    "anyone": (KeyRole.REQUESTER, None),
    "reader": (KeyRole.READER, None),
    "otherreader": (KeyRole.READER, "other"),
    "op": (KeyRole.OPERATOR, None),
    "gpu": (KeyRole.HOST, None),
}
FULL = {"alice", "lab", "labreader", "op"}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def system(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[Endpoints, dict[str, str]]]:
    """Alice's: a reservation with a port of its own, a job that waits, a reservation that does."""
    state = tmp_path_factory.mktemp("redaction")
    keys = {
        name: add_key(state / NAME, KeyEntry(name=name, role=role, sha256="0" * 64, tenant=tenant))
        for name, (role, tenant) in KEYS.items()
    }
    # nothing ends by itself here, however loaded the machine is
    budget = Budget().scaled(100)
    async with (
        serving(state, budget=budget) as endpoints,
        endpoints.peer() as host,
        endpoints.peer() as alice,
    ):
        assert "ok" in await host.ask(op="hello", key=keys["gpu"], **HOST)
        assert "ok" in await alice.hello(session="s", key=keys["alice"])
        whole = {"sharing": "exclusive", "tenant": "lab", "kinds": ["cuda"]}
        held = await alice.ask(
            op="reserve",
            attempt="held",
            request=whole,
            hold="deadline",
            lease_s=900,
            door="port",
            sources=[NETWORK],
        )
        assert held["ok"]["outcome"] == "granted"
        job = await alice.ask(
            op="attempt",
            holder="job",
            n=1,
            revision=0,
            handle=HANDLE,
            request=whole,
            block={"key": OBJECT},
        )
        assert job["ok"]["record"]["handle"] == HANDLE, "who asked is shown all of it"
        waits = await alice.ask(
            op="reserve",
            attempt="waits",
            wait=True,
            request={**whole, "warm_key": DATA, "workload": DATA},
        )
        assert waits["ok"]["outcome"] == "waiting"
        await endpoints.ask("GET", "/v1/leases", key=keys["op"])  # its connection serves all tests
        yield endpoints, keys


def sees(name: str, op: str) -> set[str]:
    """The secrets that a caller may read, by the rule of access/redaction.py."""
    shown = {
        "record": {OBJECT, HANDLE},
        "records": {OBJECT, HANDLE},
        "leases": {NETWORK},
        "queue": {DATA},
    }[op]
    if name not in FULL:
        return set()
    return shown - {HANDLE} if name in ("labreader", "lab") else shown


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("op", ["record", "records", "leases", "queue"])
@pytest.mark.parametrize("name", [name for name in KEYS if name != "gpu"])
@pytest.mark.parametrize("door", ["http", "socket"])
async def test_a_caller_is_shown_its_tenants_things_only(
    system: tuple[Endpoints, dict[str, str]], door: str, name: str, op: str
) -> None:
    endpoints, keys = system
    fields: dict[str, Any] = {"holder": "job"} if op == "record" else {}
    if door == "http":
        answer = await endpoints.ask("POST", f"/v1/{op}", fields, key=keys[name])
        assert answer.status == 200
        text = json.dumps(answer.value)
    else:
        async with endpoints.peer() as peer:
            await peer.hello(session="looks", key=keys[name])
            found = await peer.ask(op=op, **fields)
            assert "ok" in found
            text = json.dumps(found)
    shown = {secret for secret in (OBJECT, HANDLE, NETWORK, DATA) if secret in text}
    assert shown == sees(name, op)
    assert {"record": "WAITING", "records": "WAITING", "leases": "ACTIVE", "queue": "waits"}[
        op
    ] in text, "state and counts are everybody's"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", ["anyone", "other", "reader", "otherreader"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/leases"),
        ("GET", "/v1/orphans"),
        ("GET", "/v1/explain?holder=job"),
        ("GET", "/v1/explain?attempt=waits"),
        ("GET", "/v1/explain?attempt=held"),
        ("GET", "/v1/inventory"),
        ("GET", "/metrics"),
        ("GET", "/v1/parameters"),
    ],
)
async def test_no_other_way_leads_to_them(
    system: tuple[Endpoints, dict[str, str]], name: str, method: str, path: str
) -> None:
    endpoints, keys = system
    answer = await endpoints.ask(method, path, key=keys[name])
    assert answer.status == 200
    text = json.dumps(answer.value)
    assert not [secret for secret in (OBJECT, HANDLE, NETWORK, DATA) if secret in text]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_conflict_is_redacted_as_a_read_is(
    system: tuple[Endpoints, dict[str, str]],
) -> None:
    endpoints, keys = system
    async with endpoints.peer() as peer:
        await peer.hello(session="o", key=keys["other"])
        answer = await peer.ask(
            op="attempt", holder="job", n=2, revision=1, request={"tenant": "other"}
        )
    assert answer["error"]["code"] == "conflict"
    record = answer["error"]["details"]["record"]
    assert (record["step"], record["handle"], record["block"]) == ("WAITING", "", {"hidden": True})


@pytest.mark.asyncio(loop_scope="module")
async def test_the_stream_has_the_words_of_a_holder_for_operators_only(
    system: tuple[Endpoints, dict[str, str]],
) -> None:
    endpoints, keys = system
    told: dict[str, list[dict[str, Any]]] = {}
    began = asyncio.Queue[str]()

    async def watch(name: str) -> None:
        headers = {"Authorization": f"Bearer {keys[name]}"}
        events = told[name] = []
        url = f"http://{endpoints.daemon.http}/v1/watch"
        async with endpoints.http.get(url, headers=headers) as stream:
            async for line in stream.content:
                event = json.loads(line)
                events.append(event)
                if event["event"] == "started":
                    began.put_nowait(name)
                if event["event"] == "lease" and event["state"] == "ENDED":
                    return

    async with asyncio.timeout(60), endpoints.peer() as alice, endpoints.peer() as looker:
        await alice.hello(session="two", key=keys["alice"])
        await looker.hello(session="looker", key=keys["reader"])
        assert "ok" in await looker.ask(op="watch", all=True)
        watching = [asyncio.create_task(watch(name)) for name in ("reader", "op")]
        for _ in watching:
            await began.get()
        asked = {"memory_mib": 0, "kinds": ["cpu"], "tenant": "lab"}
        async with endpoints.peer() as second:
            cpu = {**HOST, "host": "c", "devices": [{**DEVICE, "id": "c/0", "kind": "cpu"}]}
            assert "ok" in await second.ask(op="hello", key=keys["gpu"], **cpu)
            taken = await alice.ask(op="reserve", attempt="short", request=asked)
            lease = taken["ok"]["granted"]["lease"]["id"]
            await alice.ask(op="release", lease=lease, detail=f"done with {OBJECT}")
            await asyncio.gather(*watching)
            while (push := await looker.next())["state"] != "ENDED":
                assert push["push"] == "lease"
    assert push["detail"] == ""
    ends = {name: told[name][-1]["detail"] for name in told}
    assert ends == {"reader": "", "op": f"done with {OBJECT}"}
    assert OBJECT not in json.dumps(told["reader"])


@pytest.mark.asyncio(loop_scope="module")
async def test_an_event_of_a_record_has_what_its_reader_may_read(
    system: tuple[Endpoints, dict[str, str]],
) -> None:
    endpoints, keys = system
    told: dict[str, str] = {}
    began = asyncio.Queue[str]()

    async def watch(name: str) -> None:
        headers = {"Authorization": f"Bearer {keys[name]}"}
        url = f"http://{endpoints.daemon.http}/v1/watch"
        async with endpoints.http.get(url, headers=headers) as stream:
            async for line in stream.content:
                event = json.loads(line)
                if event["event"] == "current":
                    began.put_nowait(name)
                if event["event"] == "record" and event["holder"] == "seen":
                    told[name] = line.decode()
                    return

    names = ("reader", "labreader", "op")
    async with asyncio.timeout(60), endpoints.peer() as alice, endpoints.peer() as looker:
        await alice.hello(session="three", key=keys["alice"])
        await looker.hello(session="looks-at-records", key=keys["reader"])
        assert "ok" in await looker.ask(op="watch", all=False, records=True)
        watching = [asyncio.create_task(watch(name)) for name in names]
        for _ in watching:
            await began.get()
        request = {"sharing": "exclusive", "tenant": "lab", "kinds": ["cuda"]}
        job = {"holder": "seen", "n": 1, "revision": 0, "block": {"key": OBJECT}}
        await alice.ask(op="attempt", handle=HANDLE, request=request, **job)
        await asyncio.gather(*watching)
        push = await looker.next()
        # the next event shows the daemon that the readers have left
        changed = {"name": "aging_s", "value": 61}
        await endpoints.ask("POST", "/v1/set", changed, key=keys["op"])
    assert (push["push"], push["record"]["step"]) == ("record", "WAITING")
    told["push"] = json.dumps(push)
    shown = {
        name: {secret for secret in (OBJECT, HANDLE) if secret in text}
        for name, text in told.items()
    }
    assert shown == {
        "reader": set(),
        "push": set(),
        "labreader": {OBJECT},
        "op": {OBJECT, HANDLE},
    }


@pytest.mark.asyncio(loop_scope="module")
async def test_prices_and_notices_of_a_fleet_are_for_operators(
    system: tuple[Endpoints, dict[str, str]],
) -> None:
    endpoints, keys = system
    pool = {"name": "a", "kind": "cuda", "memory_mib": 1, "max": 2, "states": {}, "start_s": 9}
    report = {"pools": [{**pool, "usd_per_h": 1.25}], "notices": ["of at most 6 USD/h"]}
    await endpoints.ask("POST", "/v1/report_fleet", report, key=keys["op"])
    seen = {}
    for name in ("reader", "alice", "op"):
        fleet = (await endpoints.ask("GET", "/v1/inventory", key=keys[name])).value["fleet"]
        seen[name] = [one["usd_per_h"] for one in fleet["pools"]], fleet["notices"]
    assert seen == {"reader": ([0.0], []), "alice": ([0.0], []), "op": ([1.25], report["notices"])}

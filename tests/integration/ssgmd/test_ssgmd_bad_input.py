"""Whatever is wrong has a typed error at both endpoints, and not a byte of the journal changes."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from corekit.budget import Budget
from tests.host_hello import DEVICE, host_hello
from tests.integration.ssgmd.conftest import Endpoints, Peer, serving

HOST = host_hello()
DEEP = json.loads("[" * 900 + "]" * 900)


@dataclass(frozen=True)
class System:
    """A daemon with one host, one lease of another session, one job."""

    endpoints: Endpoints
    host: Peer
    lease: str


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    folder = tmp_path_factory.mktemp("bad-input")
    # nothing ends by itself here, however loaded the machine is
    async with serving(folder, budget=Budget().scaled(100)) as endpoints, endpoints.peer() as host:
        assert "ok" in await host.ask(op="hello", **HOST)
        body = {"attempt": "held", "request": {"memory_mib": 600}}
        reserved = await endpoints.ask("POST", "/v1/reserve", body, headers={"X-Session": "owner"})
        asked = {"holder": "job", "n": 1, "revision": 0, "request": {"memory_mib": 100}}
        await endpoints.ask("POST", "/v1/attempt", asked, headers={"X-Session": "owner"})
        yield System(endpoints, host, reserved.value["granted"]["lease"]["id"])


def request(**words: Any) -> dict[str, Any]:
    return {"attempt": "new", "request": words}


def attempt(**words: Any) -> dict[str, Any]:
    return {"holder": "new", "n": 1, "revision": 0, "request": {}, **words}


#: op, fields, code, what the message says. NaN and Infinity are sent as such.
REQUESTS: tuple[tuple[str, Any, str, str], ...] = (
    ("reserve", {}, "invalid", "attempt"),
    ("reserve", request(memory_mib=float("nan")), "invalid", ""),
    ("reserve", request(memory_mib=float("inf")), "invalid", ""),
    ("reserve", request(memory_mib=-1), "invalid", "memory_mib"),
    ("reserve", request(memory_mib=2**70), "invalid", "memory_mib"),
    ("reserve", request(memory_mib=1.5), "invalid", "memory_mib"),
    ("reserve", request(memory_mib="4GiB"), "invalid", "memory_mib"),
    ("reserve", request(memory_mib=True), "invalid", "memory_mib"),
    ("reserve", request(memroy_mib=1), "invalid", "did you mean 'memory_mib'"),
    ("reserve", request(kinds=["cudaa"]), "invalid", "did you mean 'cuda'"),
    ("reserve", request(kinds="cuda"), "invalid", "kinds"),
    ("reserve", request(models=["x"] * 65), "invalid", "64"),
    ("reserve", request(models=["x" * 300]), "invalid", "256"),
    ("reserve", request(models=["a\x00b"]), "invalid", "models"),
    ("reserve", request(tenant=""), "invalid", "tenant must have 1 to 256"),
    ("reserve", request(tenant="t" * 257), "invalid", "tenant must have 1 to 256"),
    ("reserve", request(tenant="\x1b[2J"), "invalid", "tenant"),
    ("reserve", request(warm_key=""), "invalid", "warm_key"),
    ("reserve", request(warm_key="\u202e"), "invalid", "warm_key"),
    ("reserve", request(tenant="\ud800"), "invalid", "half of a surrogate pair"),
    ("reserve", {**request(), "\udfff": 1}, "invalid", "half of a surrogate pair"),
    ("attempt", attempt(block={"a": ["\udc00"]}), "invalid", "half of a surrogate pair"),
    ("reserve", request(count=0), "invalid", "count"),
    ("reserve", request(count=10**9), "invalid", "count"),
    ("reserve", request(priority=101), "invalid", "priority"),
    ("reserve", request(compute_guarantee_pct=101), "invalid", "compute_guarantee_pct"),
    ("reserve", request(max_wait_s=-1), "invalid", "max_wait_s"),
    ("reserve", request(max_wait_s=1e308), "invalid", "max_wait_s"),
    ("reserve", request(tenant=DEEP), "invalid", ""),
    ("reserve", {"attempt": "new", "request": []}, "invalid", "request"),
    ("reserve", {"attempt": "new", "request": {}, "wait": "yes"}, "invalid", "wait"),
    ("reserve", {"attempt": "", "request": {}}, "invalid", "attempt"),
    ("reserve", {"attempt": "x" * 257, "request": {}}, "invalid", "256"),
    ("reserve", {"attempt": "n", "request": {}, "hold": "deadline"}, "invalid", "lease_s"),
    (
        "reserve",
        {"attempt": "n", "request": {}, "hold": "deadline", "lease_s": -1},
        "invalid",
        "lease_s -1 must",
    ),
    ("reserve", {"attempt": "n", "request": {}, "hold": "for ever"}, "invalid", "hold"),
    (
        "reserve",
        {"attempt": "n", "request": {}, "hold": "deadline", "lease_s": 1e300},
        "invalid",
        "lease_s",
    ),
    ("reserve", {"attempt": "a\nb", "request": {}}, "invalid", "attempt"),
    ("reserve", {"attempt": "held", "request": {}}, "conflict", "another session"),
    ("attempt", attempt(n=0), "invalid", "must lie in 1…"),
    ("attempt", attempt(revision=-1), "invalid", "revision"),
    ("attempt", attempt(n=2**70), "invalid", "must lie in 1…"),
    ("attempt", attempt(holder=""), "invalid", "holder"),
    ("attempt", attempt(holder="a\tb"), "invalid", "holder"),
    ("attempt", attempt(received_ago_s=1e308), "invalid", "received_ago_s"),
    ("attempt", attempt(block={"x": "y" * 5000}), "invalid", "block"),
    ("attempt", attempt(block={"x": DEEP}), "invalid", "nested"),
    ("attempt", attempt(block=7), "invalid", "block"),
    ("attempt", attempt(holder="job"), "conflict", "job"),
    ("attempt", attempt(handle="x" * 5000), "invalid", "handle"),
    ("adopt", {"holder": "job", "revision": 99}, "conflict", ""),
    ("adopt", {"holder": "nobody", "revision": 1}, "not_found", "nobody"),
    ("adopt", {"holder": "job", "revision": 1, "handle": "x" * 5000}, "invalid", "handle"),
    ("reopen", {"holder": "job", "revision": 1, "handle": "x" * 5000}, "invalid", "handle"),
    ("release", {"lease": 5}, "invalid", "lease"),
    ("release", {"lease": "x" * 100_000}, "invalid", "lease"),
    ("record", {"holder": "x" * 257}, "invalid", "holder"),
    ("explain", {"attempt": "\x07"}, "invalid", "attempt"),
    ("transfer", {"lease": "l", "to": "a\rb"}, "invalid", "to"),
    ("drain", {"host": "\x1b]0;"}, "invalid", "host"),
    ("release", {"lease": "l", "reason": "BORED"}, "invalid", "reason"),
    ("release", {"lease": "l", "detail": "x" * 3000}, "invalid", "detail"),
    ("renew", {"lease": "lease-unknown"}, "not_found", "over"),
    ("resize", {"lease": "lease-unknown", "compute_limit_pct": 50}, "not_found", ""),
    ("resize", {"lease": "l", "compute_limit_pct": 0}, "invalid", "compute_limit_pct"),
    ("staged", {"holder": "job", "lease": "l", "connect_by_s": -1}, "invalid", "connect_by_s"),
    ("finish", {"holder": "job", "outcome": "", "reason": "r"}, "invalid", "outcome"),
    ("records", {"limit": 0}, "invalid", "limit"),
    ("records", {"limit": 10**9}, "invalid", "limit"),
    ("records", {"limit": "ten"}, "invalid", "limit"),
    ("explain", {}, "invalid", "exactly one"),
    ("explain", {"request": {}, "hold": "deadline"}, "invalid", "lease_s"),
    ("explain", {"request": {}, "hold": "deadline", "lease_s": 1e7}, "invalid", "604800"),
    ("explain", {"attempt": "a", "holder": "b"}, "invalid", "exactly one"),
    ("explain", {"attempt": "nothing"}, "not_found", ""),
    ("drain", {"host": "elsewhere"}, "not_found", "elsewhere"),
    ("drain", {"host": "h", "device": "h/9"}, "not_found", "h/9"),
    ("forget", {"host": "h"}, "conflict", ""),
    ("set", {"name": "polcy", "value": "fair"}, "invalid", "did you mean 'policy'"),
    ("set", {"name": "policy", "value": "mine"}, "invalid", "policy"),
    ("set", {"name": "bypass_max", "value": -3}, "invalid", "bypass_max"),
    ("set", {"name": "weight.a\nb", "value": 2}, "invalid", "weight.a"),
    ("set", {"name": "bypass_max", "value": {}}, "invalid", "value"),
    ("set", {"name": "aging_s", "value": float("nan")}, "invalid", ""),
)
_IDS = [f"{n}-{op}" for n, (op, *_) in enumerate(REQUESTS)]


async def standing(system: System) -> list[Any]:
    """The state that must not change."""
    journal = system.endpoints.daemon.journal
    leases = (await system.endpoints.ask("GET", "/v1/leases")).value["leases"]
    queue = (await system.endpoints.ask("GET", "/v1/queue")).value
    return [journal.size, journal.figures.entries, leases, queue]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("op", "fields", "code", "said"), REQUESTS, ids=_IDS)
async def test_an_invalid_request_is_refused_at_both_endpoints(
    system: System, op: str, fields: Any, code: str, said: str
) -> None:
    before = await standing(system)
    by_http = (await system.endpoints.ask("POST", f"/v1/{op}", fields)).value["error"]
    async with system.endpoints.peer() as peer:  # what is no JSON, such as NaN, ends the connection
        assert "ok" in await peer.hello(session="stranger")
        by_socket = (await peer.ask(op=op, **fields))["error"]
    for error in (by_http, by_socket):
        assert error["code"] == code, error
        assert said in error["message"]
    assert await standing(system) == before


#: Bodies that hold no request at all; the socket door closes what it cannot follow.
BODIES = (
    b"{",
    b"[]",
    b"null",
    b"7",
    b'"x"',
    b"\xff\xfe",
    b'{"attempt": "\\ud83d", "request": {}}',
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"attempt": NaN}',
    b'{"attempt": 1e999}',
    b'{"attempt": "' + b"x" * (2**20 - 20) + b'"}',
)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
async def test_a_malformed_body_is_refused(system: System, body: bytes) -> None:
    before = await standing(system)
    answer = await system.endpoints.ask("POST", "/v1/reserve", body)
    assert (answer.status, answer.value["error"]["code"]) == (400, "invalid")
    async with system.endpoints.peer() as peer:
        assert "ok" in await peer.hello()
        told = await peer.line(body.replace(b"{", b'{"id":2,"op":"reserve",', 1))
        assert told["error"]["code"] == "invalid"
    assert await standing(system) == before


#: Requests that are none, in bytes: before a handler sees them, or while it reads.
HEAD = b"POST /v1/reserve HTTP/1.1\r\nHost: localhost\r\n"
GET = b"GET /v1/leases HTTP/1.1\r\nHost: localhost\r\n"  #: answered, if nothing is wrong with it
FLOOD = b"".join(b"X-%d: y\r\n" % number for number in range(5000))
NO_REQUESTS: tuple[tuple[bytes, int], ...] = (
    (b"\x16\x03\x01\x02garbage\r\n\r\n", 400),
    (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /v1/leases HTTP/9.9\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /v1/leases HTTP/1.1\r\n\r\n", 400),
    (GET + b"X-Long: " + b"y" * 20_000 + b"\r\n\r\n", 400),
    (GET + FLOOD + b"\r\n", 400),
    (GET + b"X-Long: " + b"y" * 2049 + b"\r\n\r\n", 400),
    (GET + b"".join(b"X-%d: y\r\n" % n for n in range(33)) + b"\r\n", 400),
    (HEAD + b"Content-Length: -5\r\n\r\n", 400),
    (HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", 400),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", 400),
    (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde", 400),
    (HEAD + b"Expect: a miracle\r\nContent-Length: 2\r\n\r\n{}", 417),
)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("sent", "status"), NO_REQUESTS, ids=range(len(NO_REQUESTS)))
async def test_a_malformed_http_request_gets_a_typed_error(
    system: System, sent: bytes, status: int
) -> None:
    before = await standing(system)
    answer = await raw(system, sent)
    assert (answer[0], answer[1]["error"]["code"]) == (status, "invalid")
    assert await standing(system) == before


async def raw(system: System, sent: bytes) -> tuple[int, Any]:
    """Status and JSON body of the answer to these bytes."""
    address, _, port = system.endpoints.daemon.http.rpartition(":")
    reader, writer = await asyncio.open_connection(address, int(port))
    async with asyncio.timeout(60):
        writer.write(sent)
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"Content-Length: ([0-9]+)", head)
        assert length is not None, head
        body = await reader.readexactly(int(length[1]))
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return int(head.split()[1]), json.loads(body)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost:4780"}, 200),
        ({"Host": "[::1]:4780"}, 200),
        ({"Origin": "http://localhost:8080"}, 200),
        ({"Host": "evil.example"}, 401),
        ({"Host": "127.0.0.1.evil.example:4780"}, 401),
        ({"Origin": "https://evil.example"}, 401),
        ({"Origin": "null"}, 401),
        ({"Host": "[::1"}, 401),
    ],
)
async def test_a_web_page_of_another_site_needs_a_key(
    system: System, headers: dict[str, str], status: int
) -> None:
    """Without keys this machine is trusted, but not the web pages in its browsers."""
    answer = await system.endpoints.ask("GET", "/v1/leases", headers=headers)
    assert answer.status == status
    assert status == 200 or answer.value["error"]["code"] == "denied"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_message_above_the_limit_is_refused(system: System) -> None:
    too_long = b'{"attempt": "' + b"x" * 2**20 + b'"}'
    answer = await system.endpoints.ask("POST", "/v1/reserve", too_long)
    assert (answer.status, answer.value["error"]["code"]) == (413, "invalid")
    assert "at most 1048576 bytes" in answer.value["error"]["message"]
    async with system.endpoints.peer() as peer:
        await peer.hello()
        assert "longer than 1048576" in (await peer.line(too_long))["error"]["message"]
        assert await peer.next() is None
    async with system.endpoints.peer() as stranger:
        assert "longer than 1048576" in (await stranger.line(too_long))["error"]["message"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "anything"])
async def test_a_compressed_body_is_refused_before_it_is_inflated(
    system: System, encoding: str
) -> None:
    bomb = gzip.compress(b" " * 64 * 2**20)
    headers = {"Content-Encoding": encoding}
    answer = await system.endpoints.ask("POST", "/v1/reserve", bomb, headers=headers)
    assert (answer.status, answer.value["error"]["code"]) == (400, "invalid")
    assert "Content-Encoding" in answer.value["error"]["message"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("session", ["", "x" * 257, "two words", "ä", "a\tb"])
async def test_a_session_name_has_printable_characters_only(system: System, session: str) -> None:
    answer = await system.endpoints.ask("GET", "/v1/leases", headers={"X-Session": session})
    assert (answer.status, answer.value["error"]["code"]) == (400, "invalid")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", "/", 404, "not_found"),
        ("POST", "/v1/leasess", 404, "not_found"),
        ("GET", "/v1/beat", 404, "not_found"),
        ("PUT", "/v1/leases", 405, "invalid"),
        ("GET", "/v1/reserve", 405, "invalid"),
        ("GET", "/v1/leases/lease-unknown", 404, "not_found"),
        ("GET", "/v1/records?limit=1&limit=2", 400, "invalid"),
        ("GET", "/v1/records?limit=many", 400, "invalid"),
        ("GET", "/v1/leases?lease=x", 400, "invalid"),
        ("POST", "/v1/beat", 404, "not_found"),
        ("GET", "/v1/explain?attempt=no", 404, "not_found"),
    ],
)
async def test_wrong_addresses_are_typed_errors_too(
    system: System, method: str, path: str, status: int, code: str
) -> None:
    answer = await system.endpoints.ask(method, path)
    assert (answer.status, answer.value["error"]["code"]) == (status, code)


@pytest.mark.asyncio(loop_scope="module")
async def test_an_unknown_op_or_path_is_answered_with_a_suggestion(system: System) -> None:
    by_http = await system.endpoints.ask("POST", "/v1/resrve", {})
    assert by_http.status == 404
    assert "did you mean '/v1/reserve'" in by_http.value["error"]["message"]
    wrong_method = await system.endpoints.ask("GET", "/v1/reserve")
    assert (wrong_method.status, wrong_method.headers["Allow"]) == (405, "POST")
    async with system.endpoints.peer() as peer:
        assert "ok" in await peer.hello()
        error = (await peer.ask(op="resrve"))["error"]
    assert error["code"] == "invalid"
    assert "did you mean 'reserve'" in error["message"]


def device(**more: Any) -> dict[str, Any]:
    return {**DEVICE, **more}


def usage(**more: Any) -> dict[str, Any]:
    return {"device": "h/0", "memory_used_mib": 1, "utilisation_pct": 0, **more}


#: op of the host `h`, fields, code, what the message says.
REPORTS: tuple[tuple[str, Any, str, str], ...] = (
    ("report", {"devices": [DEVICE, DEVICE]}, "invalid", "twice"),
    ("report", {"devices": [DEVICE, device(id="h/1")]}, "invalid", "two devices with index 0"),
    ("report", {"devices": [device(memory_mib=float("nan"))]}, "invalid", ""),
    ("report", {"devices": [device(memory_mib=-5)]}, "invalid", "memory_mib"),
    ("report", {"devices": [device(memory_mib=2**70)]}, "invalid", "memory_mib"),
    ("report", {"devices": [device(kind="gpu")]}, "invalid", "kind"),
    ("report", {"devices": "all"}, "invalid", "devices"),
    ("report", {"devices": [device(model="a\x00")]}, "invalid", "invisible characters"),
    ("report", {"devices": [device(resident=["x" * 257])]}, "invalid", "256"),
    ("report", {"devices": [device(detail=DEEP)]}, "invalid", ""),
    (
        "report",
        {"devices": [], "usage": [{"device": "h/0", "memory_used_mib": -1, "utilisation_pct": 0}]},
        "invalid",
        "memory_used_mib -1 must lie in 0…",
    ),
    ("report", {"usage": [usage(memory_used_mib=2**70)]}, "invalid", "…2147483647"),
    ("report", {"usage": [usage(utilisation_pct=10**12)]}, "invalid", "…2147483647"),
    ("report", {"usage": [usage(temperature_c=-(10**12))]}, "invalid", "…2147483647"),
    ("report", {"usage": [usage(power_w=float("inf"))]}, "invalid", ""),
    ("report", {"usage": [usage(), usage()]}, "invalid", "twice"),
    ("report", {"usage": [usage(device="g/0")]}, "invalid", "does not have"),
    ("door", {"lease": "l", "address": "nowhere"}, "invalid", "host:port"),
    ("cut", {"lease": ""}, "invalid", "lease"),
    ("cut", {"lease": "x" * 300}, "invalid", "256"),
    ("session", {"lease": "held?", "state": "dancing", "nonce": "n"}, "invalid", "state"),
    ("session", {"lease": "held?", "state": "closed", "nonce": 5}, "invalid", "nonce"),
    ("session", {"lease": "l", "state": "closed", "nonce": "x" * 300}, "invalid", "nonce"),
    (
        "session",
        {"lease": "l", "state": "closed", "nonce": "n", "detail": "x" * 3000},
        "invalid",
        "detail",
    ),
    ("cut", {"lease": None}, "invalid", "lease"),
    ("release", {"lease": "l"}, "invalid", "op 'release' of a host is unknown"),
)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("op", "fields", "code", "said"), REPORTS)
async def test_an_invalid_message_of_a_host_is_refused(
    system: System, op: str, fields: Any, code: str, said: str
) -> None:
    before = await standing(system)
    async with system.endpoints.peer() as host:
        assert "ok" in await host.ask(op="hello", **HOST)
        error = (await host.ask(op=op, **fields))["error"]
    assert error["code"] == code, error
    assert said in error["message"]
    assert await standing(system) == before


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"host": "g"}, "h/0"),  # another host's device
        ({"host": "g", "devices": [device(id="g/0"), device(id="g/0")]}, "twice"),
        ({"host": "g", "devices": [device(id=f"g/{n}", index=n) for n in range(300)]}, "256"),
        ({"host": ""}, "host"),
        ({"host": "x" * 300}, "host"),
        ({"version": 2}, "version"),
        ({"host": "g", "devices": [], "epoch_seen": -1}, "epoch_seen"),
        ({"gateway": "here"}, "here"),
        ({"gateway": "x" * 300 + ":1"}, "gateway"),
        ({"incarnation": "x" * 300}, "incarnation"),
        ({"role": "god"}, "role"),
        ({"devices": None}, "devices"),
    ],
)
async def test_an_invalid_hello_of_a_host_is_refused(
    system: System, changes: dict[str, Any], said: str
) -> None:
    before = await standing(system)
    async with system.endpoints.peer() as peer:
        error = (await peer.ask(op="hello", **{**HOST, **changes}))["error"]
        assert error["code"] in ("invalid", "conflict", "denied"), error
        assert said in error["message"]
        after = await peer.ask(op="report", devices=[])
        assert "hello" in after["error"]["message"], "it may say nothing else"
    assert await standing(system) == before


@pytest.mark.asyncio(loop_scope="module")
async def test_a_host_may_report_on_its_own_leases_only(system: System, tmp_path: Path) -> None:
    hello = {**HOST, "host": "g", "devices": [device(id="g/0")]}
    async with system.endpoints.peer() as other:
        assert "ok" in await other.ask(op="hello", **hello)
        before = await standing(system)
        told = await other.ask(op="session", lease=system.lease, state="closed", nonce="n")
        assert "no share on host g" in told["error"]["message"]
        told = await other.ask(op="report", devices=[DEVICE])
        assert told["error"]["code"] in ("invalid", "conflict")
        assert await standing(system) == before

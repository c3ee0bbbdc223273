"""Calls from templates, against a cloud that answers as it is told: what callers see is the same as
from botocore alone, and so is the number of requests.
"""

from __future__ import annotations

import asyncio
import base64
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from aiohttp import web
from botocore.retries.standard import ExponentialBackoff

from contract.aws.clients import Client
from corekit.errors import AppError, ErrorCode
from orchgpu.adapters.aws import clients
from orchgpu.adapters.aws.clients import LambdaStarter
from orchgpu.adapters.aws.endpoints import resolve
from orchgpu.adapters.aws.queue import SqsQueue
from orchgpu.adapters.aws.store import WHOLE_BODY_MAX, S3Store

DATE = "Thu, 26 Nov 2026 23:12:12 GMT"
PROPERTIES = {"ETag": '"e"', "Last-Modified": DATE, "x-amz-meta-who": "me", "x-amz-version-id": "v"}


class Reply(NamedTuple):
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = {}
    cut: bool = False  #: the connection breaks off before the end of the body


@dataclass
class Cloud:
    """Answers requests in order, the last reply again and again; keeps what it got."""

    replies: list[Reply]
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    endpoint: str = ""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if "Expect" in request.headers and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await request.content.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append((request.method, request.raw_path, headers, body))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if not reply.cut:
            return web.Response(status=reply.status, body=reply.body, headers=reply.headers)
        assert request.transport is not None
        more = {"Content-Length": str(len(reply.body) + 1)}
        answer = web.StreamResponse(status=reply.status, headers={**reply.headers, **more})
        await answer.prepare(request)
        await answer.write(reply.body)
        request.transport.close()
        return answer


@asynccontextmanager
async def answering(*replies: Reply) -> AsyncIterator[Cloud]:
    cloud = Cloud([*replies])
    runner = web.ServerRunner(web.Server(cloud.handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    cloud.endpoint = f"http://{host}:{port}"
    try:
        yield cloud
    finally:
        await runner.cleanup()


class Ports(NamedTuple):
    store: S3Store
    queue: SqsQueue
    functions: LambdaStarter


@asynccontextmanager
async def opened(cloud: Cloud) -> AsyncIterator[Ports]:
    def client(service: str) -> Client:
        return clients.open_client(resolve(service, endpoint_url=cloud.endpoint), 10)

    async with client("s3") as s3, client("sqs") as sqs, client("lambda") as functions:
        yield Ports(S3Store(s3), SqsQueue(sqs, sqs), LambdaStarter(functions))


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda *_: 0.0)


Work = Callable[[Ports], Awaitable[object]]
URL = "http://127.0.0.1/000000000000/q"


async def get(ports: Ports) -> object:
    return await ports.store.get("bucket", "a b/ü", version_id="v", if_match="e", bytes_max=10)


async def head(ports: Ports) -> object:
    return await ports.store.head("bucket", "k")


async def put(ports: Ports) -> None:
    await ports.store.put("bucket", "k", b"body", if_absent=True)


async def delete(ports: Ports) -> None:
    await ports.store.delete("bucket", "k")


async def receive(ports: Ports) -> object:
    return await ports.queue.receive(URL, count_max=3, wait_s=0, visibility_s=5)


async def forget(ports: Ports) -> None:
    await ports.queue.delete(URL, ["one", "two"])


async def forget_one(ports: Ports) -> None:
    await ports.queue.delete(URL, ["one"])


async def hide(ports: Ports) -> None:
    await ports.queue.set_visibility(URL, ["one"], 3)


async def send(ports: Ports) -> None:
    await ports.queue.send(URL, ["body ü"], traceparent="00-1-2-03")


async def start(ports: Ports) -> None:
    await ports.functions.start("arn:aws:lambda:eu-west-1:000000000000:function:f", "{}")


RECEIVED = b'{"Messages": [{"MessageId": "m", "ReceiptHandle": "r", "Body": "b"}]}'
#: Each call with the reply to it that is good.
GOOD: dict[Work, Reply] = {
    get: Reply(200, b"content", PROPERTIES),
    head: Reply(200, b"", {**PROPERTIES, "Content-Length": "7"}),
    put: Reply(200, b"", {"ETag": '"e"'}),
    delete: Reply(204),
    receive: Reply(200, RECEIVED),
    forget: Reply(200, b'{"Successful": [], "Failed": []}'),
    forget_one: Reply(200, b""),  # as AWS does
    hide: Reply(200, b'{"Successful": []}'),
    send: Reply(200, b'{"Successful": []}'),
    start: Reply(202),
}


def _xml(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>why</Message></Error>".encode()


def _json(code: str) -> bytes:
    return f'{{"__type": "com.amazonaws.sqs#{code}", "message": "why"}}'.encode()


S3_FAILURES = (
    Reply(404, _xml("NoSuchKey"), {"x-amz-request-id": "i"}),
    Reply(403, _xml("AccessDenied")),
    Reply(412, _xml("PreconditionFailed")),
    Reply(409, _xml("ConditionalRequestConflict")),
    Reply(400, _xml("ExpiredToken")),
    Reply(500, _xml("InternalError")),
    Reply(503, _xml("SlowDown")),
    Reply(502, b"<html>no XML at all"),
    Reply(200, _xml("InternalError")),
    Reply(200, b"half", {**PROPERTIES}, cut=True),
)
JSON_FAILURES = (
    Reply(400, _json("QueueDoesNotExist")),
    Reply(400, _json("ReceiptHandleIsInvalid")),
    Reply(403, _json("AccessDenied")),
    Reply(400, _json("RequestThrottled")),
    Reply(429, _json("TooManyRequestsException")),
    Reply(500, b""),
    Reply(503, _json("ServiceUnavailable")),
    Reply(200, RECEIVED, cut=True),
)
OF_S3 = (get, head, put, delete)


async def _seen(work: Work, cloud: Cloud, ports: Ports, replies: Sequence[Reply]) -> object:
    """What a call gives or raises, and how many requests it makes."""
    cloud.replies[:] = replies
    cloud.requests.clear()
    found: object
    try:
        found = await work(ports)
    except AppError as error:
        found = error.code, error.message
    return found, len(cloud.requests), cloud.requests[-1][:2]


def _forget_templates(ports: Ports) -> None:
    for calls in (ports.store._call, ports.queue._call, ports.queue._poll, ports.functions._call):
        calls._ways.clear()


@pytest.mark.parametrize("work", GOOD)
def test_an_answer_is_what_botocore_makes_of_it(work: Work) -> None:
    """Failures that last, and failures that pass."""

    async def main() -> None:
        async with answering(GOOD[work]) as cloud, opened(cloud) as ports:
            for failure in S3_FAILURES if work in OF_S3 else JSON_FAILURES:
                if failure.status == 200 and work in (get, head, start):
                    continue  # botocore alone looks at these bodies when all is over, or never
                for replies in ([failure], [failure, GOOD[work]]):
                    _forget_templates(ports)
                    expected = await _seen(work, cloud, ports, replies)
                    await _seen(work, cloud, ports, [GOOD[work]])
                    assert await _seen(work, cloud, ports, replies) == expected, replies

    asyncio.run(main())


@pytest.mark.parametrize("work", GOOD)
def test_the_second_request_of_a_kind_is_as_the_first(work: Work) -> None:
    """On the wire, but for the signature of another second and the wait for 100 Continue."""
    varying = {"authorization", "x-amz-date", "amz-sdk-invocation-id", "expect"}

    async def main() -> None:
        async with answering(GOOD[work]) as cloud, opened(cloud) as ports:
            results = [await work(ports) for _ in range(2)]
            assert results[0] == results[1]
            (first, second) = cloud.requests
            assert (first[:2], first[3]) == (second[:2], second[3])
            without = [
                {n: v for n, v in one[2].items() if n not in varying} for one in (first, second)
            ]
            assert without[0] == without[1]
            assert "expect" not in second[2], "it was made from a template"
            assert len(second[2].keys() & varying) == 3

    asyncio.run(main())


@pytest.mark.parametrize("work", GOOD)
def test_most_requests_are_made_without_botocore(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with answering(GOOD[work]) as cloud, opened(cloud) as ports:
            await work(ports)
            monkeypatch.setattr("aiobotocore.client.AioBaseClient._make_api_call", None)
            for _ in range(3):
                await work(ports)

    asyncio.run(main())


def test_a_body_that_breaks_off_is_read_again() -> None:
    async def main() -> None:
        cut = GOOD[get]._replace(body=b"con", cut=True)
        async with answering(GOOD[get], cut, GOOD[get]) as cloud, opened(cloud) as ports:
            assert await get(ports) == await get(ports)
            assert len(cloud.requests) == 3

    asyncio.run(main())


def test_a_body_that_does_not_match_its_checksum_is_refused() -> None:
    def reply(of: bytes, parts: str = "") -> Reply:
        checksum = base64.b64encode(zlib.crc32(of).to_bytes(4)).decode() + parts
        return Reply(200, b"content", {**PROPERTIES, "x-amz-checksum-crc32": checksum})

    async def main() -> None:
        good, of_parts, bad = reply(b"content"), reply(b"x", "-3"), reply(b"other")
        async with answering(good, good, of_parts, bad) as cloud, opened(cloud) as ports:
            for _ in range(3):
                await get(ports)
            with pytest.raises(AppError, match="checksum"):
                await get(ports)
            assert len(cloud.requests) == 4

    asyncio.run(main())


def test_a_bucket_that_is_elsewhere_is_asked_there_from_then_on() -> None:
    moved = Reply(301, _xml("PermanentRedirect"), {"x-amz-bucket-region": "eu-west-3"})

    async def main() -> None:
        async with answering(GOOD[get], moved, GOOD[get]) as cloud, opened(cloud) as ports:
            for _ in range(4):
                await get(ports)
            regions = [one[2]["authorization"].split("/")[2] for one in cloud.requests]
            assert regions == ["us-east-1"] * 2 + ["eu-west-3"] * 3

    asyncio.run(main())


def test_large_bodies_are_sent_by_botocore() -> None:
    body = b"x" * (WHOLE_BODY_MAX + 1)

    async def main() -> None:
        async with answering(GOOD[put]) as cloud, opened(cloud) as ports:
            for _ in range(2):
                await ports.store.put("bucket", "k", body)
            assert [("expect" in one[2], one[3] == body) for one in cloud.requests] == [
                (True, True)
            ] * 2

    asyncio.run(main())


def test_a_large_object_is_not_read() -> None:
    large = Reply(200, b"x" * 100, PROPERTIES)

    async def main() -> None:
        async with answering(large) as cloud, opened(cloud) as ports:
            for _ in range(2):
                found = await ports.store.get("bucket", "k", bytes_max=99)
                assert (found.body, found.size) == (None, 100)
            assert len(cloud.requests) == 2

    asyncio.run(main())


def test_the_owner_of_a_bucket_is_named_as_soon_as_it_is_known() -> None:
    async def main() -> None:
        async with answering(GOOD[get]) as cloud, opened(cloud) as ports:
            await get(ports)
            for owner in ("111111111111", "222222222222"):
                ports.store.expect_owners({"bucket": owner})
                await get(ports)
            name = "x-amz-expected-bucket-owner"
            owners = [one[2].get(name) for one in cloud.requests]
            assert owners == [None, "111111111111", "222222222222"]

    asyncio.run(main())


def test_successes_fill_the_quota_of_repetitions() -> None:
    """botocore repeats calls while at most 100 more were repeated than succeeded."""
    bad = Reply(500, _xml("InternalError"))

    async def main() -> None:
        async with answering(GOOD[get], bad) as cloud, opened(cloud) as ports:
            await get(ports)
            for _ in range(60):
                with pytest.raises(AppError) as caught:
                    await get(ports)
                assert caught.value.code is ErrorCode.UNAVAILABLE
            before = len(cloud.requests)
            with pytest.raises(AppError):
                await get(ports)
            assert len(cloud.requests) == before + 1, "the quota is spent"
            cloud.replies[:] = [GOOD[get]]
            for _ in range(20):
                await get(ports)
            cloud.replies[:] = [bad]
            before = len(cloud.requests)
            with pytest.raises(AppError):
                await get(ports)
            assert len(cloud.requests) == before + 3

    asyncio.run(main())


def test_a_connection_that_is_refused_is_unavailable() -> None:
    async def main() -> None:
        cloud = Cloud([GOOD[get]])
        async with answering(GOOD[get]) as running:
            cloud.endpoint = running.endpoint
            ports_of = opened(cloud)
            ports = await ports_of.__aenter__()
            await get(ports)
        try:
            with pytest.raises(AppError, match="Could not connect") as caught:
                await get(ports)
            assert caught.value.code is ErrorCode.UNAVAILABLE
        finally:
            await ports_of.__aexit__(None, None, None)

    asyncio.run(main())


def test_the_answer_of_a_start_keeps_no_connection() -> None:
    async def body() -> None:
        async with answering(Reply(202, bytes(2**20))) as cloud, opened(cloud) as ports:
            async with asyncio.timeout(10):
                for number in range(11):  # one more than there are connections
                    await ports.functions.start(f"f{number}", "{}")

    asyncio.run(body())

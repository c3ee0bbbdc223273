"""What web pages of other sites make a browser of this machine send is refused, on every port."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from local_cloud.sandbox.runtime_api import Channel, RuntimeApi, Work
from tests.contract.zips import zipped
from tests.embedded_cloud import Address, cloud_in

#: What a browser adds for a page of https://evil.example that sends a "simple" request.
EVIL = {
    "Origin": "https://evil.example",
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "no-cors",
    "Sec-Fetch-Dest": "empty",
    "Content-Type": "text/plain;charset=UTF-8",
}
#: An <img> or <script>: no Origin.
EMBEDDED = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
FOLLOWED_LINK = {**EMBEDDED, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
FORM = {**EVIL, "Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Mode": "navigate"}
FUNCTIONS = "/2015-03-31/functions"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    folder = tmp_path_factory.mktemp("browsers")
    with cloud_in(folder, allowed_hosts=("Builder.Example",)) as address:
        assert address.ask("PUT", "/bucket").status == 200
        assert address.ask("PUT", "/bucket/key", b"secret").status == 200
        yield address


def function_body() -> bytes:
    code = base64.b64encode(zipped("def handle(e, c): return 1")).decode()
    return json.dumps(
        {
            "FunctionName": "evil",
            "Runtime": "python3.11",
            "Handler": "app.handle",
            "Role": "arn:aws:iam::000000000000:role/r",
            "Code": {"ZipFile": code},
        }
    ).encode()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", FUNCTIONS, function_body()),
        ("POST", f"{FUNCTIONS}/any/invocations", b"{}"),
        ("POST", "/bucket?delete", b"<Delete><Object><Key>key</Key></Object></Delete>"),
        ("POST", "/", b"Action=CreateRole&RoleName=r&AssumeRolePolicyDocument={}"),
        ("GET", "/bucket/key", b""),
        ("GET", "/_local_cloud/health", b""),
        ("PUT", "/bucket/key", b"overwritten"),
        ("OPTIONS", "/bucket/key", b""),
    ],
)
@pytest.mark.parametrize("headers", [EVIL, FORM, {"Origin": "null"}, EMBEDDED], ids=str)
def test_a_page_of_another_site_does_nothing(
    cloud: Address, method: str, path: str, body: bytes, headers: dict[str, str]
) -> None:
    answer = cloud.ask(method, path, body, headers)
    assert answer.status == 403
    assert b"AccessDenied" in answer.body
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]
    assert cloud.ask("GET", "/bucket/key").body == b"secret"
    assert cloud.ask("GET", f"{FUNCTIONS}/evil").status == 404


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil", "["]
)
def test_a_name_that_was_rebound_to_this_machine_reads_nothing(cloud: Address, host: str) -> None:
    for path in ("/", "/bucket/key", FUNCTIONS):
        answer = cloud.ask("GET", path, headers={"Host": host.format(port=cloud.port)})
        assert answer.status == 403
        assert b"secret" not in answer.body
    target = {"Host": host.format(port=cloud.port), "X-Amz-Target": "AmazonSQS.ListQueues"}
    assert cloud.ask("POST", "/", b"{}", target).status == 403


def test_the_refusal_names_the_option_that_permits_the_name(cloud: Address) -> None:
    answer = cloud.ask("GET", "/bucket/key", headers={"Host": "Docker.Internal:99"})
    assert "--allow-host docker.internal" in json.loads(answer.body)["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "localhost:{port}"},
        {"Host": "[::1]:{port}"},
        {"Host": "127.0.0.1"},
        {"Host": "builder.example:{port}"},
        {"Host": "BUILDER.example."},
        {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://builder.example", "Sec-Fetch-Site": "cross-site"},
        FOLLOWED_LINK,
    ],
    ids=str,
)
def test_requests_of_this_machine_are_served(cloud: Address, headers: dict[str, str]) -> None:
    given = {name: text.format(port=cloud.port) for name, text in headers.items()}
    answer = cloud.ask("GET", "/_local_cloud/health", headers=given)
    assert answer.status == 200, answer.body


def test_a_bucket_is_addressed_by_its_host_name_too(cloud: Address) -> None:
    for host in (
        "bucket.localhost",
        "bucket.s3.localhost:{port}",
        "bucket.S3.us-east-1.localhost",
        "bucket.builder.example",
        "bucket.s3.builder.example:1",
    ):
        headers = {"Host": host.format(port=cloud.port)}
        assert cloud.ask("GET", "/key", headers=headers).body == b"secret"
        assert b"<Name>bucket</Name>" in cloud.ask("GET", "/", headers=headers).body
        assert cloud.ask("PUT", f"/{FUNCTIONS}", b"a key", headers=headers).status == 200
        assert cloud.ask("GET", f"/bucket/{FUNCTIONS}").body == b"a key"
        removed = b"<Delete><Object><Key>nothing</Key></Object></Delete>"
        assert cloud.ask("POST", "/?delete", removed, headers).status == 200
    for host in ("s3.localhost", "s3.us-east-1.localhost:80", "builder.example"):
        assert cloud.ask("GET", "/bucket/key", headers={"Host": host}).body == b"secret"
    missing = cloud.ask("GET", "/key", headers={"Host": "no-such.localhost"})
    assert b"NoSuchBucket" in missing.body


def test_the_runtime_api_of_a_function_serves_no_page() -> None:
    """A page could take an invocation away by GET, without reading the answer."""

    async def ask(port: int, headers: dict[str, str]) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        lines = {"Host": f"127.0.0.1:{port}", "Connection": "close", **headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        path = "/2018-06-01/runtime/invocation/next"
        writer.write(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
        status = int((await reader.readline()).split()[1])
        await reader.read()
        writer.close()
        await writer.wait_closed()
        return status

    async def main() -> list[Any]:
        api, channel = RuntimeApi(), Channel()
        await api.start()
        port = await api.open(channel)
        foreign = [EVIL, EMBEDDED, {"Host": "evil.example"}, {"Origin": "http://localhost"}]
        found = [await ask(port, headers) for headers in foreign]
        waits = channel.ready.done()
        await api.close()
        return [found, waits]

    assert asyncio.run(main()) == [[403] * 4, False]


class BrokenChannel(Channel):
    """Fails as a bug of ours would."""

    async def next(self) -> Work:
        raise RuntimeError("a bug of ours")


@pytest.mark.parametrize(
    ("sent", "logged"),
    [
        ("GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", ""),
        ("GET {next} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "a bug of ours"),
    ],
    ids=["the peer's", "ours"],
)
def test_the_runtime_api_logs_its_own_errors_only(
    sent: str, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        api = RuntimeApi()
        await api.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", await api.open(BrokenChannel()))
        writer.write(sent.format(next="/2018-06-01/runtime/invocation/next").encode())
        writer.write_eof()
        await reader.read()
        writer.close()
        await writer.wait_closed()
        await api.close()

    asyncio.run(main())
    assert logged in caplog.text
    assert bool(caplog.records) is bool(logged)


def test_moto_is_guarded_too(tmp_path: Path) -> None:
    pytest.importorskip("moto.server")
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "orchgpu.local.moto", "--ready-file", str(ready)]
    process = subprocess.Popen([*command, "--allow-host", "builder.example"])
    try:
        ends_s = time.monotonic() + 60
        while not ready.exists():
            assert process.poll() is None
            assert time.monotonic() < ends_s
            time.sleep(0.02)
        moto = Address(urlsplit(json.loads(ready.read_text())["endpoint"]).netloc)
        assert moto.ask("PUT", "/bucket").status == 200
        for headers in (EVIL, FORM, EMBEDDED, {"Host": "evil.example"}, {"Origin": "null"}):
            for method in ("PUT", "GET", "POST", "DELETE", "OPTIONS"):
                answer = moto.ask(method, "/bucket", headers=headers)
                assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (403, None)
        assert moto.ask("GET", "/bucket", headers={"Host": "builder.example"}).status != 403
        assert moto.ask("GET", "/bucket").status == 200
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0

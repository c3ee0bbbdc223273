"""An embedded cloud in a thread of the test's process: no process to start."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from local_cloud.server.application import Options, running
from local_cloud.server.signatures import KeyPair

PAIR = KeyPair(access_key="LKIAEXAMPLE", secret_key="secret/+example")
#: Credentials for a cloud that verifies no signatures.
ANY_PAIR = KeyPair(access_key="test", secret_key="test")


@dataclass(frozen=True)
class Answer:
    """The answer to one request."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def code(self) -> str:
        """The code of S3's error document; empty without one."""
        return self.body.partition(b"<Code>")[2].partition(b"</Code>")[0].decode()


@dataclass(frozen=True)
class Address:
    """The address on which the cloud listens."""

    netloc: str

    @property
    def port(self) -> int:
        return int(self.netloc.rpartition(":")[2])

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request with exactly these headers, on a connection of its own."""
        given = dict(headers or {})
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            if "Host" not in given:
                connection.putheader("Host", self.netloc)
            if "Content-Length" not in given:
                connection.putheader("Content-Length", str(len(body)))
            for name, value in given.items():
                connection.putheader(name, value.encode())
            connection.endheaders(body)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())


@contextmanager
def client_of(
    cloud: Address,
    service: str,
    pair: KeyPair = ANY_PAIR,
    region: str = "us-east-1",
    **config: object,
) -> Iterator[Any]:
    """A boto3 client that repeats nothing."""
    with closing(
        boto3.client(
            service,
            endpoint_url=f"http://{cloud.netloc}",
            region_name=region,
            aws_access_key_id=pair.access_key,
            aws_secret_access_key=pair.secret_key,
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 0}, **config),
        )
    ) as client:
        yield client


def refusal(call: Callable[..., object], **arguments: object) -> str:
    """The code of the error that a call of boto3 raises."""
    with pytest.raises(ClientError) as error:
        call(**arguments)
    return str(error.value.response["Error"]["Code"])


@contextmanager
def embedded_cloud(options: Options) -> Iterator[Address]:
    """Serve until the block ends."""
    found: list[str] = []
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        try:
            async with running(options) as context:
                found.append(urlsplit(context.endpoint).netloc)
                started.set()
                await asyncio.to_thread(stop.wait)
        finally:
            started.set()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(60)
        assert found, "it did not start"
        yield Address(found[0])
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


@contextmanager
def cloud_in(folder: Path, **options: Any) -> Iterator[Address]:
    """The same over a fresh folder."""
    with embedded_cloud(Options(state=folder / "state", **options)) as address:
        yield address

"""`NoticeSender`: topics by SNS, webhooks by HTTP, keys from the stores of secrets or a file."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from contract.aws.clients import Client
from contract.secrets.reference import parse_reference
from contract.secrets.stores import call_of, content_of
from corekit.errors import AppError, ErrorCode, invalid
from orchgpu.adapters.aws.api import translated
from orchgpu.adapters.webhooks import Webhooks

#: A key is read again after so long: each read of Secrets Manager has a price.
KEPT_S = 300.0
#: As of a value in Secrets Manager.
KEY_BYTES_MAX = 65_536

#: Opens a client of a service in a region (None = the orchestrator's own).
OpenClient = Callable[[str, str | None], Awaitable[Client]]


class AwsNotices:
    """Clients are opened when they are first needed."""

    def __init__(self, client: OpenClient, webhooks: Webhooks) -> None:
        self._open = client
        self._webhooks = webhooks
        self._clients: dict[tuple[str, str | None], Client] = {}
        self._opening = asyncio.Lock()
        self._keys: dict[str, tuple[float, bytes]] = {}

    async def publish(self, topic: str, body: str) -> None:
        client = await self._client("sns", topic.split(":")[3])
        with translated(f"sns:Publish {topic}"):
            await client.publish(TopicArn=topic, Message=body)

    async def post(self, url: str, body: str, headers: Mapping[str, str], within_s: float) -> None:
        await self._webhooks.post(url, body, headers, within_s)

    async def secret(self, reference: str) -> bytes:
        now_s = time.monotonic()
        read_at_s, key = self._keys.get(reference, (float("-inf"), b""))
        if now_s - read_at_s >= KEPT_S:
            key = await self._read(reference)
            self._keys[reference] = now_s, key
        return key

    async def _read(self, text: str) -> bytes:
        try:
            reference = parse_reference(text)
        except ValueError as error:
            raise invalid(str(error)) from None
        if not reference.stored:
            try:
                return await asyncio.to_thread(_content, Path(reference.name))
            except OSError as error:
                raise AppError(ErrorCode.NOT_FOUND, f"{reference}: {error.strerror}") from None
        call = call_of(reference)
        client = await self._client(call.service, call.region)
        with translated(f"{call.action} {reference.name}"):
            answer = await getattr(client, call.method)(**call.arguments)
        try:
            return content_of(reference, answer)
        except ValueError as error:
            raise invalid(f"{reference} {error}") from None

    async def _client(self, service: str, region: str | None) -> Client:
        async with self._opening:
            if (service, region) not in self._clients:
                self._clients[service, region] = await self._open(service, region)
        return self._clients[service, region]


def _content(file: Path) -> bytes:
    """Of a regular file: a device or a pipe may never end. Raises OSError."""
    if not file.is_file() or file.stat().st_size > KEY_BYTES_MAX:
        raise OSError(errno.EINVAL, f"it is not a file of at most {KEY_BYTES_MAX} bytes")
    return file.read_bytes()


@asynccontextmanager
async def open_notices(client: OpenClient) -> AsyncIterator[AwsNotices]:
    webhooks = Webhooks()
    try:
        yield AwsNotices(client, webhooks)
    finally:
        await webhooks.close()

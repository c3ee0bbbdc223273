"""The places of data sets: S3 and HTTPS. Each lists its files and reads their parts.

S3 is read with the machine's own credentials, as every AWS SDK finds them, and the endpoint of
AWS_ENDPOINT_URL_S3. A read is conditional on the file's pin, so that no part of a newer content
comes into a set.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol, TypeVar

import aiohttp
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from yarl import URL

from contract.aws.clients import patience, quoted, session_of
from contract.aws.faults import Fault, fault_of
from corekit.addresses import refused_address
from corekit.aio.checked_resolver import CheckedResolver, RefusedAddressError
from corekit.errors import AppError, ErrorCode, invalid
from corekit.net.addresses import is_loopback
from gpu_scheduler.data_manifest import File, https_file, s3_files, s3_version
from gpu_scheduler.data_sets import HTTPS_PATTERN, S3_PATTERN, source_problem

T = TypeVar("T")
#: Takes the bytes of a part, in order.
Sink = Callable[[bytes], None]
CHUNK_BYTES = 1 << 20
#: Seconds without a byte, after which a read has failed and is tried again.
SILENCE_S = 30.0
_TRIES, _CONNECT_S = 5, 10.0


class Source(Protocol):
    """One place. Methods raise AppError: NOT_FOUND, DENIED, INVALID, CONFLICT when the content has
    changed, and UNAVAILABLE when trying again may help."""

    async def files(self) -> list[File]:
        """Its files."""
        ...

    async def read(self, file: File, start: int, stop: int | None, sink: Sink) -> None:
        """The bytes of a file from `start` up to `stop` (None: its end)."""
        ...

    async def close(self) -> None:
        """Release its connections. Idempotent."""
        ...


def source_of(text: str) -> Source:
    """The source that a text names. Raises INVALID."""
    if (found := S3_PATTERN.fullmatch(text)) is not None:
        return S3Source(*found.groups())
    if (found := HTTPS_PATTERN.fullmatch(text)) is not None:
        return HttpsSource(*found.groups())
    raise invalid(f"{text!r:.200} {source_problem(text)}")


# ---------------------------------------------------------------------- S3


class S3Source:
    """The objects below a prefix, or one object."""

    def __init__(self, bucket: str, prefix: str, version: str | None) -> None:
        self._place = bucket, prefix, version
        self._keys: dict[str, str] = {}  #: by path
        self._client: Any = None

    async def files(self) -> list[File]:
        return await asyncio.to_thread(self._called, self._files)

    async def read(self, file: File, start: int, stop: int | None, sink: Sink) -> None:
        def get() -> None:
            kind, _, value = file.pin.partition(":")
            pinned = {"VersionId": value} if kind == "version" else {"IfMatch": quoted(value)}
            part = {"Range": f"bytes={start}-{'' if stop is None else stop - 1}"}
            key = self._keys[file.path]
            answer = self._s3().get_object(Bucket=self._place[0], Key=key, **pinned, **part)
            with contextlib.closing(answer["Body"]) as body:
                for chunk in body.iter_chunks(CHUNK_BYTES):
                    sink(chunk)

        await asyncio.to_thread(self._called, get)

    async def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _files(self) -> list[File]:
        s3, (bucket, prefix, version) = self._s3(), self._place
        if version is not None:
            head = s3.head_object(Bucket=bucket, Key=prefix, VersionId=version)
            found = s3_version(prefix, version, head["ContentLength"])
        else:
            pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
            found = dict(s3_files(pages, prefix))
        self._keys = {file.path: key for key, file in found.items()}
        return [*found.values()]

    def _s3(self) -> Any:
        if self._client is None:
            patient = patience(tries=_TRIES, connect_s=_CONNECT_S, read_s=SILENCE_S)
            self._client = session_of().client("s3", config=Config(**patient))
        return self._client

    def _called(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except (BotoCoreError, ClientError, OSError) as error:
            bucket, prefix, _ = self._place
            raise s3_error(f"s3://{bucket}/{prefix}", error) from None


def s3_error(place: str, error: Exception) -> AppError:
    """A failed call about this place."""
    match fault_of(error):
        case Fault.ABSENT:
            return AppError(ErrorCode.NOT_FOUND, f"{place} does not exist")
        case Fault.DENIED:
            text = f"{place} may not be read with the credentials of this machine"
            return AppError(ErrorCode.DENIED, text)
        case Fault.CONFLICT:
            return AppError(ErrorCode.CONFLICT, f"{place} was changed while it was read")
        case Fault.REFUSED:
            return invalid(f"{place}: {error}")
    return AppError(ErrorCode.UNAVAILABLE, f"{place}: {error}")


# ---------------------------------------------------------------------- HTTPS


def _refused(address: str) -> bool:
    """The machine itself, whose services trust it, and its credentials."""
    return is_loopback(address) or refused_address(address)


class _Web:
    """Reads of parts by HTTP; a server that knows no ranges sends the whole file.

    No redirect is followed: it could lead where the operator lets no source be.
    """

    def __init__(self, refused: Callable[[str], bool]) -> None:
        self._refused = refused
        self._session: aiohttp.ClientSession | None = None

    async def size_bytes(self, url: str, headers: Mapping[str, str]) -> int | None:
        """The size of a file that can be read in parts; None for any other."""
        async with self._asked(url, {**headers, "Range": "bytes=0-0"}) as answer:
            whole = answer.headers.get("Content-Range", "").rpartition("/")[2]
            return int(whole) if answer.status == 206 and whole.isdecimal() else None

    async def get(
        self, url: str, start: int, stop: int | None, sink: Sink, headers: Mapping[str, str]
    ) -> None:
        """The bytes from `start` up to `stop`."""
        part = {"Range": f"bytes={start}-{'' if stop is None else stop - 1}"}
        async with self._asked(url, {**headers, **(part if start or stop else {})}) as answer:
            skipped = 0 if answer.status == 206 else start
            async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
                sink(chunk[skipped:])
                skipped = max(0, skipped - len(chunk))

    @contextlib.asynccontextmanager
    async def _asked(
        self, url: str, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        place = url.partition("?")[0]
        if self._refused(URL(url).host or ""):  # a resolver is not asked about an address
            raise _denied(place)
        if self._session is None:
            limits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=SILENCE_S)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(resolver=CheckedResolver(self._refused)),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=limits,
                auto_decompress=False,
            )
        try:
            plain = {"Accept-Encoding": "identity", **headers}
            get = self._session.get(url, headers=plain, allow_redirects=False)
            async with get as answer:
                if answer.status >= 300:
                    raise _answered(place, answer.status)
                yield answer
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if isinstance(error.__cause__, RefusedAddressError):
                raise _denied(place) from None
            raise AppError(ErrorCode.UNAVAILABLE, f"{place}: {error!r:.200}") from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def _denied(place: str) -> AppError:
    text = f"{place} leads to this machine, or to a link-local or metadata address"
    return AppError(ErrorCode.DENIED, text)


def _answered(place: str, status: int) -> AppError:
    if status < 400:
        text = f"{place} redirects ({status}), which is not followed; declare where the file is"
        return invalid(text)
    if status in (404, 410):
        return AppError(ErrorCode.NOT_FOUND, f"{place} does not exist ({status})")
    if status in (401, 403):
        return AppError(ErrorCode.DENIED, f"{place} may not be read by this machine ({status})")
    again = status >= 500 or status in (408, 429)
    code = ErrorCode.UNAVAILABLE if again else ErrorCode.INVALID
    return AppError(code, f"{place} answers with status {status}")


class HttpsSource:
    """One file with a known digest."""

    def __init__(self, url: str, sha256: str, *, refused: Callable[[str], bool] = _refused) -> None:
        """`refused`: addresses that may not be connected to."""
        self._url, self._sha256 = url, sha256
        self._web = _Web(refused)

    async def files(self) -> list[File]:
        size_bytes = await self._web.size_bytes(self._url, {})
        return [https_file(f"{self._url}#sha256={self._sha256}", size_bytes)]

    async def read(self, file: File, start: int, stop: int | None, sink: Sink) -> None:
        del file  # there is one
        await self._web.get(self._url, start, stop, sink, {})

    async def close(self) -> None:
        await self._web.close()

"""The places of data sets: each lists its files and reads their parts.

S3 is read with the machine's own credentials, as every AWS SDK finds them, and the endpoint of
AWS_ENDPOINT_URL_S3. A read is conditional on the file's pin, so that no part of a newer content
comes into a set.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from contract.aws.clients import patience, quoted, session_of
from contract.aws.faults import Fault, fault_of
from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.data_manifest import (
    File,
    Manifest,
    https_file,
    manifest_of,
    s3_files,
    s3_version,
)
from gpu_scheduler.data_sets import (
    HF_PATTERN,
    HTTPS_PATTERN,
    OCI_PATTERN,
    S3_PATTERN,
    source_problem,
)
from remote_gpu.host.data.artifact import ArtifactSource
from remote_gpu.host.data.hub import HubSource
from remote_gpu.host.data.web import CHUNK_BYTES, CONNECT_S, SILENCE_S, Sink, Web, on_this_machine

T = TypeVar("T")
_TRIES = 5


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
    if (found := HF_PATTERN.fullmatch(text)) is not None:
        return HubSource(*found.groups())
    if (found := OCI_PATTERN.fullmatch(text)) is not None:
        return ArtifactSource(*found.groups())
    raise invalid(f"{text!r:.200} {source_problem(text)}")


async def present_of(text: str) -> tuple[str, Manifest]:
    """A source of the web as it is now: its text, where a branch or tag is the commit that it
    names, and its files. Raises AppError, as `Source.files`."""
    source = source_of(text)
    try:
        files = await source.files()
        pinned = source.pinned if isinstance(source, HubSource) else text
        return pinned, manifest_of(text, files)
    finally:
        await source.close()


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
            patient = patience(tries=_TRIES, connect_s=CONNECT_S, read_s=SILENCE_S)
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


class HttpsSource:
    """One file with a known digest."""

    def __init__(
        self, url: str, sha256: str, *, refused: Callable[[str], bool] = on_this_machine
    ) -> None:
        """`refused`: addresses that may not be connected to."""
        self._url, self._sha256 = url, sha256
        self._web = Web(refused)

    async def files(self) -> list[File]:
        size_bytes = await self._web.size_bytes(self._url)
        return [https_file(f"{self._url}#sha256={self._sha256}", size_bytes)]

    async def read(self, file: File, start: int, stop: int | None, sink: Sink) -> None:
        del file  # there is one
        await self._web.get(self._url, start, stop, sink, {})

    async def close(self) -> None:
        await self._web.close()

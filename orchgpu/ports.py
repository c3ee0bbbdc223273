"""What the orchestrator needs of the world. Adapters give it; one contract suite holds them to it.

Every method raises only `AppError`. Its code says what may be done: UNAVAILABLE, TIMEOUT and
EXHAUSTED may be repeated (every call here is safe to repeat), the others not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from corekit.values import Value
from gpu_scheduler.client.pushes import PushWord
from gpu_scheduler.model import Request
from gpu_scheduler.protocol.ops import Op
from orchgpu.core.function import Function


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One received queue message."""

    id: str
    handle: str
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object as one GET saw it. `body` is None when it is larger than was asked for."""

    body: bytes | None
    etag: str  #: without quotes
    version_id: str | None
    last_modified: str  #: ISO 8601
    size: int  #: bytes


class JobQueue(Protocol):
    """SQS standard queues."""

    async def receive(
        self, queue_url: str, *, count_max: int, wait_s: float, visibility_s: float
    ) -> Sequence[Message]:
        """Long poll; at most 10 messages, hidden for `visibility_s`. May deliver one twice."""
        ...

    async def delete(self, queue_url: str, handles: Sequence[str]) -> None:
        """Idempotent; a stale handle is no error."""
        ...

    async def set_visibility(
        self, queue_url: str, handles: Sequence[str], visibility_s: float
    ) -> None:
        """From now; 0 gives the messages back. Handles of messages that are gone are skipped."""
        ...

    async def send(self, queue_url: str, bodies: Sequence[str]) -> None:
        """All, or AppError; repeating after an error may send some twice."""
        ...


class ObjectStore(Protocol):
    """S3."""

    async def get(
        self,
        bucket: str,
        key: str,
        *,
        version_id: str | None = None,
        if_match: str | None = None,
        bytes_max: int,
    ) -> StoredObject:
        """One GET; the body only when it has at most `bytes_max` bytes.

        Raises NOT_FOUND (no such object, version or bucket) and CONFLICT (`if_match` fails).
        """
        ...

    async def put(
        self,
        bucket: str,
        key: str,
        body: bytes,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
    ) -> None:
        """Atomic. Raises CONFLICT when the condition does not hold."""
        ...

    async def delete(self, bucket: str, key: str) -> None:
        """Its newest version is gone for readers; an object that is not there is no error. In a
        versioned bucket what it was stays as a hidden version until the bucket's rules remove it.
        """
        ...

    async def head(self, bucket: str, key: str) -> StoredObject:
        """Of the newest version, without its body. Raises NOT_FOUND."""
        ...

    async def etags(self, bucket: str, prefix: str) -> Mapping[str, str]:
        """All keys below a prefix, and which write is newest; for the small registry only."""
        ...


AnswerT = TypeVar("AnswerT", bound=Value)


class Scheduler(Protocol):
    """One requester session of the scheduler protocol; every call is idempotent.

    CONFLICT carries the present record in `details["record"]` (a Record, or None).
    """

    @property
    def session(self) -> str:
        """Our name as owner of records."""
        ...

    async def ask(self, op: Op[AnswerT]) -> AnswerT:
        """Any op of the protocol, and its answer."""
        ...

    async def device_count(self, request: Request) -> int:
        """Devices whose kind could serve the request: what bounds receiving."""
        ...

    def pushes(self) -> AsyncIterator[PushWord]:
        """Every push in order, without end; `Connected`: pushes may have been lost before it."""
        ...


class Registry(Protocol):
    """What is deployed."""

    async def functions(self) -> Mapping[str, Function]:
        """Every deployed function by name. A record that cannot be read is left out and logged."""
        ...

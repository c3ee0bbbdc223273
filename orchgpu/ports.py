"""What the orchestrator needs of the world. Adapters give it; one contract suite holds them to it.

Every method raises only `AppError`. Its code says what may be done: UNAVAILABLE, TIMEOUT and
EXHAUSTED may be repeated (every call here is safe to repeat), the others not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpu_scheduler.model import (
    EndReason,
    Explanation,
    GrantedLease,
    LeaseLifetime,
    LeaseState,
    Record,
    Request,
)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcome:
    """How the scheduler answered an attempt: exactly one of `granted` and `explanation`."""

    outcome: str  #: granted, waiting, busy or impossible
    granted: GrantedLease | None
    explanation: Explanation | None
    record: Record | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """Something the scheduler says unasked, about one job of ours."""

    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantPush(Push):
    """A waiting attempt got its lease: renew it within `accept_s`, or the next one gets it."""

    attempt: int
    granted: GrantedLease


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalPush(Push):
    """A waiting attempt became impossible, or waited for its `max_wait_s` (busy)."""

    attempt: int
    explanation: Explanation
    busy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasePush(Push):
    """The lease of an attempt changed its state."""

    attempt: int
    state: LeaseState
    reason: EndReason | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlePush(Push):
    """Somebody received the job's message again."""

    handle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DisownedPush(Push):
    """Another session acts for the job now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned(Push):
    """The connection is back (holder is empty): pushes may have been lost meanwhile."""


class Scheduler(Protocol):
    """The job half of the scheduler protocol (docs/architecture.md); every call is idempotent.

    CONFLICT carries the record that stands in `details["record"]` (a Record, or None).
    """

    @property
    def session(self) -> str:
        """Our name as owner of records."""
        ...

    async def attempt(
        self,
        holder: str,
        n: int,
        revision: int,
        handle: str,
        block: Mapping[str, Any],
        request: Request,
        received_ago_s: float,
        *,
        hold: LeaseLifetime = LeaseLifetime.SESSION,
    ) -> AttemptOutcome: ...

    async def adopt(
        self, holder: str, revision: int, handle: str | None
    ) -> tuple[Record, GrantedLease | None]: ...

    async def orphans(self, limit: int) -> Sequence[Record]: ...

    async def record(self, holder: str) -> Record | None: ...

    async def store_handle(self, holder: str, handle: str) -> None: ...

    async def hand_back(self, holder: str, revision: int) -> None: ...

    async def renew(self, lease: str) -> None: ...

    async def staged(self, holder: str, lease: str, connect_by_s: float) -> None: ...

    async def release(self, lease: str, reason: str, detail: str) -> None: ...

    async def fail_attempt(
        self, holder: str, revision: int, reason: str, detail: str, retry_at_s: float
    ) -> Record: ...

    async def finish(
        self,
        holder: str,
        outcome: str,
        reason: str,
        detail: str,
        *,
        block: Mapping[str, Any] | None,
        received_ago_s: float,
        committed_ago_s: float,
    ) -> None:
        """With a `block`, a job that never had a record gets a terminal one."""
        ...

    async def reopen(self, holder: str, revision: int, handle: str) -> Record: ...

    async def device_count(self, request: Request) -> int:
        """Devices whose kind could serve the request: what bounds receiving."""
        ...

    def pushes(self) -> AsyncIterator[Push]:
        """Every push in order, for ever."""
        ...


class Registry(Protocol):
    """What is deployed."""

    async def functions(self) -> Mapping[str, Function]:
        """Every deployed function by name. A record that cannot be read is left out and logged."""
        ...

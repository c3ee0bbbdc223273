"""The orchestrator's ports over the cloud model in memory, with faults on request.

For the simulator, and for tests of a replica on virtual time. The model is that of the embedded
cloud's server, so the same contract suite applies.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Concatenate, ParamSpec, TypeVar

from corekit.aio.clock import Clock
from corekit.errors import AppError, ErrorCode
from local_cloud.model.cloud import Cloud
from local_cloud.model.errors import CloudError
from local_cloud.model.s3.body import MemoryBodies
from local_cloud.model.s3.object_version import Condition, etag_matches
from local_cloud.model.sqs.queue import Message as Received
from local_cloud.model.sqs.queue import Queue
from orchgpu.core.reconcile import Cursor, ObjectVersion, VersionPage
from orchgpu.ports import TRACEPARENT, Message, StoredObject

T = TypeVar("T")

_CODES = {
    "NoSuchKey": ErrorCode.NOT_FOUND,
    "NoSuchVersion": ErrorCode.NOT_FOUND,
    "NoSuchBucket": ErrorCode.NOT_FOUND,
    "MethodNotAllowed": ErrorCode.NOT_FOUND,  # a delete marker by its version
    "AWS.SimpleQueueService.NonExistentQueue": ErrorCode.NOT_FOUND,
    "QueueDoesNotExist": ErrorCode.NOT_FOUND,
    "ResourceNotFoundException": ErrorCode.NOT_FOUND,
    "PreconditionFailed": ErrorCode.CONFLICT,
    "ConditionalRequestConflict": ErrorCode.UNAVAILABLE,
    "InternalError": ErrorCode.UNAVAILABLE,
    "SlowDown": ErrorCode.EXHAUSTED,
}


@dataclass(slots=True, kw_only=True)
class Faults:
    """The rate and the kind of failing calls, drawn from a seeded stream: a run can be replayed."""

    rate: float = 0.0  #: of calls that end in UNAVAILABLE
    after_rate: float = 0.5  #: the share of those that did their work first (the answer is lost)
    delay_s_max: float = 0.0  #: every call takes up to this long
    stream: random.Random = field(default_factory=lambda: random.Random(0))

    async def around(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run `call`: perhaps late, perhaps failing, perhaps losing its answer."""
        if self.delay_s_max:
            await asyncio.sleep(self.stream.uniform(0.0, self.delay_s_max))
        if self.stream.random() >= self.rate:
            return await call()
        if self.stream.random() < self.after_rate:
            await call()
        raise AppError(ErrorCode.UNAVAILABLE, "the cloud did not answer (injected fault)")


_P = ParamSpec("_P")


def _with_faults(
    method: Callable[Concatenate[Any, _P], Awaitable[T]],
) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, T]]:
    """The method of an adapter, with the faults of its `faults`."""

    async def call(self: Any, /, *arguments: _P.args, **named: _P.kwargs) -> T:
        faults: Faults = self._faults
        return await faults.around(lambda: method(self, *arguments, **named))

    return call


class Arrivals:
    """Wakes long polls when their queue has a message."""

    def __init__(self, cloud: Cloud) -> None:
        self._events: dict[str, asyncio.Event] = {}
        cloud.on_message = self.arrived

    def arrived(self, queue: Queue) -> None:
        self._event(queue.name).set()

    async def wait(self, queue: Queue, now_s: float, wait_s: float) -> None:
        """Wait until there may be a message, or `wait_s` is over."""
        event = self._event(queue.name)
        event.clear()
        next_s = queue.next_visible_at_s()
        if next_s is not None:
            wait_s = min(wait_s, max(0.0, next_s - now_s) + 1e-6)
        try:
            async with asyncio.timeout(wait_s):
                await event.wait()
        except TimeoutError:
            return

    def _event(self, name: str) -> asyncio.Event:
        return self._events.setdefault(name, asyncio.Event())


class MemoryQueue:
    """`JobQueue` over the model's queues; a queue's url ends in its name."""

    def __init__(
        self, cloud: Cloud, arrivals: Arrivals, clock: Clock, faults: Faults | None = None
    ) -> None:
        self._cloud = cloud
        self._arrivals = arrivals
        self._clock = clock
        self._faults = faults or Faults()

    @_with_faults
    async def receive(
        self, queue_url: str, *, count_max: int, wait_s: float, visibility_s: float
    ) -> Sequence[Message]:
        queue = self._queue(queue_url)
        deadline_s = self._clock.wall_s() + wait_s
        while True:
            now_s = self._clock.wall_s()
            found = queue.receive(now_s, count_max=min(count_max, 10), visibility_s=visibility_s)
            if found or now_s >= deadline_s:
                return [_message(received) for received in found]
            await self._arrivals.wait(queue, now_s, deadline_s - now_s)

    @_with_faults
    async def delete(self, queue_url: str, receipt_handles: Sequence[str]) -> None:
        for receipt_handle in receipt_handles:
            self._queue(queue_url).delete(self._clock.wall_s(), receipt_handle)

    @_with_faults
    async def set_visibility(
        self, queue_url: str, receipt_handles: Sequence[str], visibility_s: float
    ) -> None:
        queue = self._queue(queue_url)
        for receipt_handle in receipt_handles:
            try:
                queue.change_visibility(self._clock.wall_s(), receipt_handle, visibility_s)
            except CloudError:
                continue  # too old: the message is deleted, or received elsewhere
        self._arrivals.arrived(queue)

    @_with_faults
    async def send(self, queue_url: str, bodies: Sequence[str], *, traceparent: str = "") -> None:
        attribute = {"DataType": "String", "StringValue": traceparent}

        queue = self._queue(queue_url)
        for body in bodies:
            attributes = {TRACEPARENT: attribute} if traceparent else {}
            queue.send(self._clock.wall_s(), body, attributes=attributes)
        self._arrivals.arrived(queue)

    @_with_faults
    async def backlog(self, queue_url: str) -> int:
        return self._queue(queue_url).counts(self._clock.wall_s()).visible

    def _queue(self, url: str) -> Queue:
        return _refusals(lambda: self._cloud.queues.get(url.rsplit("/", 1)[-1]))


def _message(received: Received) -> Message:
    return Message(
        id=received.id,
        receipt_handle=received.handle,
        body=received.body,
        sent_at_s=received.sent_at_s,
        traceparent=received.attributes.get(TRACEPARENT, {}).get("StringValue", ""),
    )


class MemoryStore:
    """`ObjectStore` over the model's buckets; `cloud` must keep its bodies in `bodies`."""

    def __init__(
        self, cloud: Cloud, bodies: MemoryBodies, clock: Clock, faults: Faults | None = None
    ) -> None:
        self._cloud = cloud
        self._bodies = bodies
        self._clock = clock
        self._faults = faults or Faults()

    def expect_owners(self, owners: Mapping[str, str]) -> None:
        """One account has all buckets here."""

    @_with_faults
    async def get(
        self,
        bucket: str,
        key: str,
        *,
        version_id: str | None = None,
        if_match: str | None = None,
        bytes_max: int,
    ) -> StoredObject:
        now_s = self._clock.wall_s()
        found = _refusals(lambda: self._cloud.read_object(now_s, bucket, key, version_id or ""))
        if if_match and not etag_matches(if_match, found.etag):
            raise AppError(ErrorCode.CONFLICT, f"{bucket}/{key} has another etag")
        small = found.size <= bytes_max
        modified = datetime.fromtimestamp(int(found.modified_at_s), UTC)
        return StoredObject(
            body=self._bodies.read(found.segments) if small else None,
            etag=found.etag,
            version_id=found.version_id if found.version_id != "null" else None,
            last_modified=modified.isoformat(),
            size=found.size,
            metadata=found.attributes.metadata,
        )

    async def head(self, bucket: str, key: str) -> StoredObject:
        return await self.get(bucket, key, bytes_max=-1)

    @_with_faults
    async def put(
        self,
        bucket: str,
        key: str,
        body: bytes,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
    ) -> None:
        content = self._bodies.add(body)
        condition = Condition(if_match=if_match or "", if_none_match=if_absent)
        _refusals(
            lambda: self._cloud.put_object(
                self._clock.wall_s(), bucket, key, content, condition=condition
            )
        )

    @_with_faults
    async def delete(self, bucket: str, key: str) -> None:
        _refusals(lambda: self._cloud.delete_object(self._clock.wall_s(), bucket, key))

    @_with_faults
    async def etags(self, bucket: str, prefix: str) -> Mapping[str, str]:
        _refusals(self._cloud.storage.check_load)
        found = _refusals(lambda: self._cloud.bucket(bucket))
        etags: dict[str, str] = {}
        after = ""
        while True:
            page = found.page(prefix=prefix, after=after)
            etags.update((key, found.get(key).etag) for key in page.keys)
            if page.after is None:
                return etags
            after = page.after

    @_with_faults
    async def versions(
        self, bucket: str, prefix: str, *, after: Cursor | None = None
    ) -> VersionPage:
        _refusals(self._cloud.storage.check_load)
        start = ("", "") if after is None else (after.key, after.version_id)
        found = _refusals(lambda: self._cloud.bucket(bucket))
        page = found.version_page(prefix=prefix, after=start)
        versions = tuple(
            ObjectVersion(
                key=one.key,
                version_id=None if one.version_id == "null" else one.version_id,
                etag=one.etag,
                size=one.size,
                modified_s=float(int(one.modified_at_s)),
            )
            for one in page.versions
            if not one.marker
        )
        end = None if page.after is None else Cursor(key=page.after[0], version_id=page.after[1])
        return VersionPage(versions=versions, after=end)


class MemoryStarter:
    """`FunctionStarter` over the model's functions."""

    def __init__(self, cloud: Cloud, clock: Clock, faults: Faults | None = None) -> None:
        self._cloud = cloud
        self._clock = clock
        self._faults = faults or Faults()

    @_with_faults
    async def start(self, function: str, payload: str) -> None:
        arn = _refusals(lambda: self._cloud.functions.get(function)).arn
        _refusals(lambda: self._cloud.invoke_later(self._clock.wall_s(), arn, payload))

    @_with_faults
    async def unreserved(self) -> int:
        return self._cloud.functions.unreserved


def _refusals(call: Callable[[], T]) -> T:
    try:
        return call()
    except CloudError as error:
        code = _CODES.get(error.code, ErrorCode.INVALID)
        raise AppError(code, f"{error.code}: {error.message}") from error

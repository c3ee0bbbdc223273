"""The ports of the orchestrator. Adapters implement them; one contract suite tests every adapter.

Every method raises only `AppError`. A call that fails as UNAVAILABLE, TIMEOUT or EXHAUSTED may be
repeated (every call here is safe to repeat), others not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from corekit.errors import AppError, ErrorCode
from corekit.values import Value, field
from gpu_scheduler.client.pushes import PushWord
from gpu_scheduler.model import GrantedLease, Request
from gpu_scheduler.protocol.ops import Op
from orchgpu.core.batch import BatchRun
from orchgpu.core.function import BatchPlace, Function
from orchgpu.core.reconcile import Cursor, VersionPage
from orchgpu.core.runs.workflow import Workflow
from remote_gpu.wire.runs import BatchOrder, RunOrder

T = TypeVar("T")


class Tolerating:
    """Leaves its block at an AppError of one of these codes; others are raised."""

    def __init__(self, *codes: ErrorCode) -> None:
        self._codes = codes

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> bool:
        return isinstance(error, AppError) and error.code in self._codes


async def if_present(reading: Awaitable[T]) -> T | None:
    """The value of a call; None for NOT_FOUND."""
    with Tolerating(ErrorCode.NOT_FOUND):
        return await reading
    return None


#: The limit of a GET that asks for the properties of an object alone: not even an empty body.
NO_BODY = -1
#: Name of the message attribute with the W3C trace context.
TRACEPARENT = "traceparent"


class Message(Value):
    """One received queue message."""

    id: str
    receipt_handle: str
    body: str
    sent_at_s: float | None = None  #: wall clock of the queue; None = it does not report it
    traceparent: str = ""  #: W3C trace context of the sender, unchecked; "" = none


class StoredObject(Value):
    """An object as of one GET. `body` is None when it is larger than the caller's limit."""

    body: bytes | None
    etag: str  #: without quotes
    version_id: str | None
    last_modified: str  #: ISO 8601
    size: int  #: bytes
    metadata: Mapping[str, str] = field(default_factory=dict)  #: the user's, by its lower-case name


class JobQueue(Protocol):
    """SQS standard queues."""

    async def receive(
        self, queue_url: str, *, count_max: int, wait_s: float, visibility_s: float
    ) -> Sequence[Message]:
        """Long poll for at most 10 messages, hidden for `visibility_s`. May deliver one twice."""
        ...

    async def delete(self, queue_url: str, receipt_handles: Sequence[str]) -> None:
        """Delete messages. Idempotent; a stale handle is ignored."""
        ...

    async def set_visibility(
        self, queue_url: str, receipt_handles: Sequence[str], visibility_s: float
    ) -> None:
        """Hide messages from now on; 0 gives them back. Handles of deleted messages are skipped."""
        ...

    async def send(self, queue_url: str, bodies: Sequence[str], *, traceparent: str = "") -> None:
        """Send all, or raise AppError; a repetition after an error may send some twice.

        `traceparent`: the trace context that every message carries; "" = none.
        """
        ...

    async def backlog(self, queue_url: str) -> int:
        """The approximate number of messages that wait to be received."""
        ...


class ObjectStore(Protocol):
    """S3."""

    def expect_owners(self, owners: Mapping[str, str]) -> None:
        """Accounts that must own buckets: from now on a call fails when another one does."""
        ...

    async def get(
        self,
        bucket: str,
        key: str,
        *,
        version_id: str | None = None,
        if_match: str | None = None,
        bytes_max: int,
    ) -> StoredObject:
        """Read an object by one GET; the body only when it has at most `bytes_max` bytes.

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
        """Write an object, atomically. Raises CONFLICT when the condition does not hold."""
        ...

    async def delete(self, bucket: str, key: str) -> None:
        """Hide the newest version of an object from readers; an absent object is ignored. In a
        versioned bucket the content stays as a hidden version until the bucket's rules remove it.
        """
        ...

    async def head(self, bucket: str, key: str) -> StoredObject:
        """Read the properties of the newest version, without its body. Raises NOT_FOUND."""
        ...

    async def etags(self, bucket: str, prefix: str) -> Mapping[str, str]:
        """List the keys below a prefix with their etags, without quotes; for small lists only."""
        ...

    async def versions(
        self, bucket: str, prefix: str, *, after: Cursor | None = None
    ) -> VersionPage:
        """List one page of the versions of all objects below a prefix, without delete markers.

        An unversioned bucket has one version per object. Raises NOT_FOUND for an absent bucket.
        """
        ...


class FunctionStarter(Protocol):
    """Lambda's asynchronous invocation, or a request to an HTTP service in its place."""

    async def start(self, function: str, payload: str) -> None:
        """Hand one event over, which the function then runs as it runs one of S3; JSON text.

        `function`: its name, or the URL of its service.

        A repetition may run it twice. Raises NOT_FOUND (no such function), DENIED, EXHAUSTED
        (too many calls at once), INVALID (for example while the function is made).
        """
        ...

    async def unreserved(self) -> int:
        """The functions that may run at a time in the account, without those of reservations."""
        ...


class Credentials(Value):
    """Temporary credentials, with what their user's clients of the cloud must know besides."""

    variables: Mapping[str, str]  #: of the environment, as the SDKs of the cloud read them
    ends_s: float  #: wall clock; 0 = never


class FunctionCredentials(Protocol):
    """STS: what a function in Lambda gets from Lambda."""

    async def issue(self, role: str, name: str) -> Credentials:
        """Credentials of a role, by its ARN; `name` is in the cloud's records of their use.

        Each call issues others. Raises DENIED when the role does not trust the orchestrator.
        """
        ...


class RunStarter(Protocol):
    """The hosts of devices, which run functions with `execution: host`."""

    async def start(self, granted: GrantedLease, order: RunOrder) -> bool:
        """Order a run on the first host of the lease; whether this order started it.

        A lease has one run, and a repetition renews its credentials. Raises UNAVAILABLE and
        TIMEOUT, DENIED for a wrong secret, CONFLICT for a lease that has ended there, and INVALID
        for an order that the host cannot follow.
        """
        ...


class BatchQueue(Protocol):
    """AWS Batch, which runs functions with `host: {batch: …}`."""

    async def submit(self, place: BatchPlace, name: str, order: BatchOrder) -> None:
        """Submit one run that Batch never repeats. A repetition submits another of the same name.

        Raises INVALID (no such queue or definition, …), DENIED, EXHAUSTED.
        """
        ...

    async def runs(self, queue: str, name: str) -> tuple[BatchRun, ...]:
        """All runs with a name that Batch knows, the newest first; it forgets ended ones after
        days. A run that was just submitted may be missing."""
        ...

    async def end(self, run: str, why: str) -> None:
        """End a run, or take it from the queue; nothing for one that is over or not known."""
        ...


class NoticeSender(Protocol):
    """Topics and webhooks that are notified of ends, and the keys that sign webhooks."""

    async def publish(self, topic: str, body: str) -> None:
        """Publish one message to an SNS topic, by its ARN; a repetition may publish it twice."""
        ...

    async def post(self, url: str, body: str, headers: Mapping[str, str], within_s: float) -> None:
        """Send a POST; returns after an answer of 200 to 299. Redirects are not followed.

        Raises DENIED for a link-local or metadata address, UNAVAILABLE for another answer or no
        connection, TIMEOUT. The detail `gone` is set where the target wants no more (410).
        """
        ...

    async def secret(self, reference: str) -> bytes:
        """Read a secret (`contract.secrets`); kept for some minutes."""
        ...


class CloudPorts(Value):
    """One cloud, opened."""

    queue: JobQueue
    store: ObjectStore
    functions: FunctionStarter
    notices: NoticeSender | None = None  #: None: only queues are notified of ends
    credentials: FunctionCredentials | None = None  #: None: no function runs on a host
    batch: BatchQueue | None = None  #: None: no function runs in Batch
    state_bucket: str  #: holds the registry of deployed functions
    #: Receives the cloud's events while it is entered, and yields fields of the ready file; None:
    #: they come by queues alone.
    events: Callable[[], AbstractAsyncContextManager[Mapping[str, str]]] | None = None
    account: str = ""  #: the account and region whose limits all functions share


AnswerT = TypeVar("AnswerT", bound=Value)


class Scheduler(Protocol):
    """One session of the scheduler protocol (docs/reference/protocol.md); every call is idempotent.

    CONFLICT carries the current record in `details["record"]` (a Record, or None).
    """

    @property
    def session(self) -> str:
        """The name of this session as owner of records."""
        ...

    async def ask(self, op: Op[AnswerT]) -> AnswerT:
        """Any op of the protocol, and its answer."""
        ...

    async def device_count(self, request: Request) -> int:
        """The number of devices of a kind that can serve the request; it limits receiving."""
        ...

    def pushes(self) -> AsyncIterator[PushWord]:
        """Every push in order, without end; `Connected`: pushes may have been lost before it."""
        ...


class Registry(Protocol):
    """The deployed functions and workflows."""

    async def functions(self) -> Mapping[str, Function]:
        """Read every deployed function by name; an unreadable record is skipped and logged."""
        ...

    def workflows(self) -> Mapping[str, Workflow]:
        """The workflows whose functions the last read of `functions` has all found, by name."""
        ...

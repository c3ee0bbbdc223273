"""The cloud as commands need it: objects, queues, functions, logs. One file for each provider.

A provider is the module `commands` of a cloud (`orchgpu.adapters.clouds`), with the functions of
`Provider`; the variable ORCHGPU_PROVIDER selects a provider other than AWS. A contract suite
checks every provider against this port. Every method raises only `AppError`: NOT_FOUND for a
bucket, object, queue or function that does not exist, DENIED, UNAVAILABLE or TIMEOUT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from contract.http_jobs import undated_version
from contract.secrets.reference import SecretReference
from corekit.values import Value
from orchgpu.ports import Message

if TYPE_CHECKING:  # most commands make no plan, and would import its modules
    from fdl.plan.resources import Notification
    from orchgpu.deploy.ports import Cloud
    from orchgpu.infra.ports import Stacks
    from orchgpu.inspection.model import Read


class Entry(Value):
    """One listed object."""

    key: str
    size: int  #: bytes
    modified_s: float  #: wall clock of the store


class Head(Value):
    """Properties of one object."""

    etag: str  #: without quotes
    version_id: str | None  #: None: the bucket keeps no versions
    modified: datetime  #: by the clock of the store
    metadata: Mapping[str, str]
    size: int = 0  #: bytes

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions by which an event may name it; the last one where it has none."""
        undated = undated_version(self.etag, self.modified.isoformat())
        return (*([] if self.version_id is None else [self.version_id]), undated)


class MessageCounts(Value):
    """Messages of a queue by their state."""

    visible: int
    in_flight: int
    delayed: int

    @property
    def all(self) -> int:
        return self.visible + self.in_flight + self.delayed


class FunctionSettings(Value):
    """Settings of a deployed function."""

    memory_mib: int
    variables: Mapping[str, str]  #: the environment of its process


class LogEvent(Value):
    """One line of a function's log."""

    at_ms: int  #: wall clock
    message: str
    stream: str = ""  #: one for each execution environment


class Identity(Value):
    """The caller as the cloud identifies it."""

    name: str
    date: str | None  #: the cloud's clock, as an HTTP date of whole seconds


class CloudServices(Protocol):
    """One account and region."""

    @property
    def local(self) -> bool:
        """True for a local cloud, False for the provider's own."""
        ...

    @property
    def state_bucket(self) -> str:
        """The bucket with the registry of deployed functions."""
        ...

    def expect_owners(self, owners: Mapping[str, str]) -> None:
        """Accounts that must own buckets: from now on a call fails when another one does."""
        ...

    def list_objects(self, bucket: str, prefix: str) -> Iterator[Entry]:
        """Every object below a prefix, in the order of keys."""
        ...

    def read_object(
        self, bucket: str, key: str, *, etag: str | None = None, part: range | None = None
    ) -> tuple[bytes, float]:
        """The whole object, or a part of it, and the wall-clock time of its last write.

        `part`: positions of bytes that it has. Raises CONFLICT unless it has the etag, where one
        is given.
        """
        ...

    def head_object(self, bucket: str, key: str, version_id: str | None = None) -> Head:
        """The object's properties."""
        ...

    def write_once(self, bucket: str, key: str, body: bytes, *, replaces: str | None) -> None:
        """Write JSON where no object exists, or over the one with the etag `replaces`.

        Raises CONFLICT when there is another object.
        """
        ...

    def upload(
        self,
        file: Path,
        bucket: str,
        key: str,
        metadata: Mapping[str, str] | None = None,
        *,
        once: bool = False,
    ) -> str | None:
        """Upload a file in one request; returns the version id. INVALID for an unreadable file.

        `once`: raises CONFLICT, and stores nothing, where an object exists or is being written.
        """
        ...

    def download(self, bucket: str, key: str, to: Path) -> None:
        """Download one object into a file, which is replaced once the new one is whole."""
        ...

    def triggers(self, bucket: str) -> Sequence[Notification]:
        """The rules by which objects of the bucket start functions."""
        ...

    def queue_url(self, name: str) -> str:
        """The URL of a queue. Raises NOT_FOUND."""
        ...

    def start(self, function: str, payload: str) -> None:
        """Start a function with a JSON payload, without waiting for it."""
        ...

    def count_messages(self, queue_url: str) -> MessageCounts:
        """The approximate numbers of messages."""
        ...

    def receive(
        self, queue_url: str, *, count_max: int, hidden_s: int, wait_s: int
    ) -> Sequence[Message]:
        """Receive at most `count_max` messages, hidden from others for `hidden_s`."""
        ...

    def send(self, queue_url: str, body: str, traceparent: str = "") -> None:
        """Send one message, with a trace context unless that is empty."""
        ...

    def delete(self, queue_url: str, receipt_handle: str) -> None:
        """Delete one received message; a stale receipt handle is ignored."""
        ...

    def unhide(self, queue_url: str, receipt_handles: Sequence[str]) -> None:
        """Make received messages visible again."""
        ...

    def function_settings(self, name: str) -> FunctionSettings:
        """The settings of a deployed function."""
        ...

    def function_url(self, name: str) -> str:
        """The URL of a Lambda function that has one, without a slash at its end."""
        ...

    def log_events(
        self, function: str, start_s: float, text: str = "", group: str = ""
    ) -> Iterator[LogEvent]:
        """Lines of a function's log since `start_s`, by time; with `text`, those that contain it.

        `group`: the log's, where Lambda does not know it. Empty without a line.
        """
        ...

    def stream_events(
        self, function: str, stream: str, start_s: float, group: str = ""
    ) -> Iterator[LogEvent]:
        """The same for one stream of the log."""
        ...

    def identity(self) -> Identity:
        """The caller; every valid key may make this call."""
        ...

    def missing(self, name: str) -> list[str]:
        """The resources of the function that a deploy created and that are gone: `kind/name`."""
        ...

    def close(self) -> None:
        """Close the connections that were opened."""
        ...


class Address(Value):
    """The address of a cloud as given on a command line; None: other rules decide."""

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None


class SecretStores(Protocol):
    """The stores of `ssm:` and `secretsmanager:`. Every method raises only `AppError`."""

    def exists(self, reference: SecretReference) -> bool:
        """Whether there is an entry that is not marked for deletion; its content is not read."""
        ...

    def put(self, reference: SecretReference, value: str) -> bool:
        """Store a value, as a new version of an entry that exists. True: the entry is new.

        An entry that is marked for deletion is restored. Raises INVALID for one in clear.
        """
        ...

    def remove(self, reference: SecretReference) -> None:
        """Delete an entry with all its versions. Raises NOT_FOUND."""
        ...


class DeployCloud(Value):
    """A cloud to deploy to."""

    cloud: Cloud
    locate: Callable[[], str]  #: account, region and endpoint, for people; calls the cloud
    #: Raises DENIED unless resources may be created there.
    guard: Callable[[bool], None]
    read: Read  #: performs the calls of checks, which change nothing
    secrets: SecretStores | None = None  #: None: it has no such stores
    stacks: Stacks | None = None  #: None: it makes nothing from a template

    @property
    def where(self) -> str:
        return self.locate()


class Setting(Value):
    """One setting in force."""

    name: str
    value: str | None  #: None: not set, or wrong
    source: str  #: the option, the variable, the local system, a file, or the default
    problem: str = ""  #: the reason why it cannot be used


class Provider(Protocol):
    """The module `commands` of a package of `orchgpu/adapters`."""

    def connect(
        self, address: Address, *, connections: int, within_s: float | None
    ) -> CloudServices:
        """The services; nothing is sent yet. `within_s` limits each call, which is not repeated."""
        ...

    def deploy_cloud(
        self, address: Address, declared: Address
    ) -> AbstractContextManager[DeployCloud]:
        """The same cloud for a deploy; `declared` is the definition's, where it is not local."""
        ...

    def settings(self, address: Address) -> Iterator[Setting]:
        """Endpoints, region and credentials, without secrets."""
        ...

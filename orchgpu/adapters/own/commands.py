"""A cloud of own hosts as commands use it: `orchgpu.cloud_services.Provider`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from typing import NoReturn

from corekit.errors import AppError, ErrorCode, invalid
from fdl.plan.resources import Notification
from orchgpu.adapters.aws import commands as aws
from orchgpu.adapters.own.database import Database, conninfo
from orchgpu.adapters.own.settings import (
    QUEUES_VARIABLE,
    USE_HOSTS,
    place_of,
    queues_address,
    store_settings,
)
from orchgpu.adapters.own.tables import Queues, Rules
from orchgpu.cloud_services import (
    Address,
    DeployCloud,
    FunctionSettings,
    Identity,
    LogEvent,
    MessageCounts,
    Setting,
)
from orchgpu.inspection.model import Answer, ReadCall
from orchgpu.ports import Message


class OwnServices(aws.AwsServices):
    """Objects as on AWS; queues and rules in the database; no functions, and none of their logs."""

    def __init__(self, address: Address, connections: int, within_s: float | None) -> None:
        super().__init__(address, connections, within_s)
        self._settings = store_settings(address)
        self._database = Database(conninfo(queues_address()))
        self._queues = Queues(self._database)

    @cached_property
    def state_bucket(self) -> str:
        return place_of(self._settings).state_bucket

    def expect_owners(self, owners: Mapping[str, str]) -> None:
        """A store has no accounts that could own a bucket."""

    def triggers(self, bucket: str) -> Sequence[Notification]:
        return Rules(self._database).observe(bucket)

    def queue_url(self, name: str) -> str:
        self._queues.count(name)
        return name

    def start(self, function: str, payload: str) -> NoReturn:  # noqa: ARG002 - of the port
        raise invalid(f"cloud `own` cannot start the function {function!r}: {USE_HOSTS}")

    def count_messages(self, queue_url: str) -> MessageCounts:
        return self._queues.count(queue_url)

    def receive(
        self, queue_url: str, *, count_max: int, hidden_s: int, wait_s: int
    ) -> Sequence[Message]:
        return self._queues.receive(
            queue_url, count_max=count_max, hidden_s=hidden_s, wait_s=wait_s
        )

    def send(self, queue_url: str, body: str, traceparent: str = "") -> None:
        self._queues.send(queue_url, body, traceparent)

    def delete(self, queue_url: str, receipt_handle: str) -> None:
        self._queues.remove(queue_url, [receipt_handle])

    def unhide(self, queue_url: str, receipt_handles: Sequence[str]) -> None:
        self._queues.hide(queue_url, receipt_handles, 0)

    def function_settings(self, name: str) -> FunctionSettings:
        raise AppError(
            ErrorCode.NOT_FOUND, f"cloud `own` has no function {name!r}, only its record"
        )

    def function_url(self, name: str) -> str:
        raise AppError(ErrorCode.NOT_FOUND, f"cloud `own` has no URL of {name!r}")

    def log_events(self, *_: object, **__: object) -> Iterator[LogEvent]:
        """Nothing: a host keeps the log, and a result has its last lines."""
        return iter(())

    def stream_events(self, *_: object, **__: object) -> Iterator[LogEvent]:
        return iter(())

    def identity(self) -> Identity:
        answer = self._client("s3").list_buckets()
        date = answer["ResponseMetadata"].get("HTTPHeaders", {}).get("date")
        name = answer.get("Owner", {}).get("DisplayName") or "the holder of the keys"
        return Identity(name=f"{name} at {self._settings.shown}", date=date)

    def missing(self, name: str) -> list[str]:
        from orchgpu.adapters.own.cloud import OwnCloud

        with closing(OwnCloud(self._settings, Database(conninfo(queues_address())))) as own:
            observed = own.observe([name], ())
        ledger = observed.ledgers.get(name)
        created = ledger.created if ledger is not None else ()
        return [key for key in created if key not in observed.resources]

    def close(self) -> None:
        super().close()
        self._database.close()


def connect(address: Address, *, connections: int, within_s: float | None) -> OwnServices:
    return OwnServices(address, connections, within_s)


@contextmanager
def deploy_cloud(address: Address, declared: Address) -> Iterator[DeployCloud]:  # noqa: ARG001
    """The region and profile that a definition declares are those of AWS."""
    from orchgpu.adapters.own.cloud import OwnCloud

    settings, database = store_settings(address), Database(conninfo(queues_address()))
    database.make_tables()
    with closing(OwnCloud(settings, database)) as own:
        yield DeployCloud(
            cloud=own,
            locate=lambda: f"own hosts, store {settings.shown}",
            guard=lambda _: None,  # nothing here costs money
            read=_refuse,
        )


def _refuse(call: ReadCall) -> Answer:
    raise invalid(f"{call.action}: cloud `own` has no such service")


def settings(address: Address) -> Iterator[Setting]:
    shown = ("s3 endpoint", "region", "credentials")
    yield from (one for one in aws.settings(address) if one.name in shown)
    try:
        yield Setting(name="queues", value=queues_address(), source=QUEUES_VARIABLE)
    except AppError as error:
        yield Setting(name="queues", value=None, source="-", problem=error.message)

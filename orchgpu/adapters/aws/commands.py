"""AWS, and every cloud with its protocols: LocalStack, moto, the embedded cloud.

The modules of a deploy, and with them those of plans, are imported where they are needed: they take
a third of the time in which `orchgpu run` starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError

from contract.aws.clients import expect_owner, patience
from contract.aws.faults import Fault, fault_of
from corekit.errors import AppError, ErrorCode, invalid
from fdl.plan.resources import Notification
from orchgpu.adapters.aws.api import answer_or_none, translated
from orchgpu.adapters.aws.api import write_once as put_once
from orchgpu.adapters.aws.endpoints import (
    Clients,
    ClientSettings,
    boto3_session,
    guard_real_aws,
    place_of,
    require_cloud,
    resolve,
)
from orchgpu.adapters.aws.messages import COUNTS, read_message, trace_attributes
from orchgpu.adapters.aws.secret_stores import AwsSecretStores
from orchgpu.adapters.aws.settling import Settling
from orchgpu.cloud_services import (
    Address,
    DeployCloud,
    Entry,
    FunctionSettings,
    Head,
    Identity,
    LogEvent,
    MessageCounts,
    Setting,
)
from orchgpu.ports import TRACEPARENT, Message, Tolerating

SERVICES = ("s3", "sqs", "lambda", "logs", "sts", "iam")
#: Characters of a key's id that are shown: enough to distinguish two.
SHOWN_OF_ID = 4


class AwsServices:
    """`CloudServices` by synchronous boto3 clients, made on first use."""

    def __init__(self, address: Address, connections: int, within_s: float | None) -> None:
        within = {} if within_s is None else patience(tries=1, connect_s=within_s, read_s=within_s)
        self._within = within
        there = partial(
            resolve,
            endpoint_url=address.endpoint_url,
            region=address.region,
            profile=address.profile,
        )
        self._client = Clients(there, max_pool_connections=connections, **within)
        self._groups: dict[str, str] = {}  #: function → its log group
        self._owners: dict[str, str] = {}  #: bucket → account that must own it

    @property
    def local(self) -> bool:
        return self._client.settings("s3").local

    @cached_property
    def state_bucket(self) -> str:
        place = place_of(self._client)
        self.expect_owners({place.state_bucket: place.account})
        return place.state_bucket

    def expect_owners(self, owners: Mapping[str, str]) -> None:
        self._owners.update(owners)
        expect_owner(self._client("s3"), self._owners.get)

    def list_objects(self, bucket: str, prefix: str) -> Iterator[Entry]:
        for page in self._client("s3").pages("list_objects_v2", Bucket=bucket, Prefix=prefix):
            for listed in page.get("Contents", ()):
                yield Entry(
                    key=str(listed["Key"]),
                    size=int(listed["Size"]),
                    modified_s=listed["LastModified"].timestamp(),
                )

    def read_object(
        self, bucket: str, key: str, *, etag: str | None = None, part: range | None = None
    ) -> tuple[bytes, float]:
        pinned = {} if etag is None else {"IfMatch": f'"{etag}"'}
        if part is not None:
            pinned["Range"] = f"bytes={part.start}-{part.stop - 1}"
        body, answer = self._client("s3").body(Bucket=bucket, Key=key, **pinned)
        return body, answer["LastModified"].timestamp()

    def head_object(self, bucket: str, key: str, version_id: str | None = None) -> Head:
        pinned = {} if version_id is None else {"VersionId": version_id}
        head = self._client("s3").head_object(Bucket=bucket, Key=key, **pinned)
        return Head(
            etag=head["ETag"].strip('"'),
            version_id=_version(head),
            modified=head["LastModified"],
            metadata=dict(head.get("Metadata", {})),
            size=int(head["ContentLength"]),
        )

    def write_once(self, bucket: str, key: str, body: bytes, *, replaces: str | None) -> None:
        s3 = Settling().client(self._client("s3").inner)
        put_once(s3, bucket, key, body, replaces=replaces or "")

    def upload(
        self,
        file: Path,
        bucket: str,
        key: str,
        metadata: Mapping[str, str] | None = None,
        *,
        once: bool = False,
    ) -> str | None:
        condition = {"IfNoneMatch": "*"} if once else {}
        try:
            body = file.open("rb")
        except OSError as error:
            raise invalid(f"cannot read {str(file)!r}: {error.strerror or error}") from error
        where = {"Bucket": bucket, "Key": key, "Metadata": dict(metadata or {})}
        with body:
            try:
                answer = self._client("s3").put_object(Body=body, **where, **condition)
            except AppError as error:
                cause = error.__cause__
                if once and isinstance(cause, Exception) and fault_of(cause) is Fault.RACED:
                    raise AppError(ErrorCode.CONFLICT, error.message) from error
                raise
        return _version(answer)

    def download(self, bucket: str, key: str, to: Path) -> None:
        with translated(f"s3:GetObject {bucket}/{key}"):
            self._client("s3").download_file(bucket, key, str(to))

    def triggers(self, bucket: str) -> Sequence[Notification]:
        from orchgpu.adapters.aws.deploy.storage import Notifications

        return Notifications(self._client("s3")).observe(bucket)

    def queue_url(self, name: str) -> str:
        return str(self._client("sqs").get_queue_url(QueueName=name)["QueueUrl"])

    def start(self, function: str, payload: str) -> None:
        self._client("lambda").invoke(
            FunctionName=function, InvocationType="Event", Payload=payload.encode()
        )

    def count_messages(self, queue_url: str) -> MessageCounts:
        answer = self._client("sqs").get_queue_attributes(
            QueueUrl=queue_url, AttributeNames=list(COUNTS)
        )
        visible, in_flight, delayed = (int(answer["Attributes"].get(name, 0)) for name in COUNTS)
        return MessageCounts(visible=visible, in_flight=in_flight, delayed=delayed)

    def receive(
        self, queue_url: str, *, count_max: int, hidden_s: int, wait_s: int
    ) -> Sequence[Message]:
        answer = self._client("sqs").receive_message(
            QueueUrl=queue_url,
            MaxNumberOfMessages=count_max,
            VisibilityTimeout=hidden_s,
            WaitTimeSeconds=wait_s,
            MessageAttributeNames=[TRACEPARENT],
        )
        return [read_message(one) for one in answer.get("Messages", ())]

    def send(self, queue_url: str, body: str, traceparent: str = "") -> None:
        more = trace_attributes(traceparent)
        self._client("sqs").send_message(QueueUrl=queue_url, MessageBody=body, **more)

    def delete(self, queue_url: str, receipt_handle: str) -> None:
        self._client("sqs").delete_message(QueueUrl=queue_url, ReceiptHandle=receipt_handle)

    def unhide(self, queue_url: str, receipt_handles: Sequence[str]) -> None:
        entries = [
            {"Id": str(number), "ReceiptHandle": handle, "VisibilityTimeout": 0}
            for number, handle in enumerate(receipt_handles)
        ]
        self._client("sqs").change_message_visibility_batch(QueueUrl=queue_url, Entries=entries)

    def function_settings(self, name: str) -> FunctionSettings:
        found = self._client("lambda").get_function_configuration(FunctionName=name)
        variables = found.get("Environment", {}).get("Variables", {})
        return FunctionSettings(memory_mib=int(found["MemorySize"]), variables=dict(variables))

    def function_url(self, name: str) -> str:
        found = self._client("lambda").get_function_url_config(FunctionName=name)
        return str(found["FunctionUrl"]).rstrip("/")

    def _log_group(self, function: str) -> str:
        if function not in self._groups:
            group = None
            with Tolerating(ErrorCode.NOT_FOUND, ErrorCode.DENIED):
                answer = self._client("lambda").get_function_configuration(FunctionName=function)
                group = answer.get("LoggingConfig", {}).get("LogGroup")
            self._groups[function] = str(group or f"/aws/lambda/{function}")
        return self._groups[function]

    def log_events(
        self, function: str, start_s: float, text: str = "", group: str = ""
    ) -> Iterator[LogEvent]:
        wanted = {"filterPattern": f'"{text}"'} if text else {}
        group = group or self._log_group(function)
        return log_pages(self._client("logs"), "filter_log_events", group, start_s, **wanted)

    def stream_events(
        self, function: str, stream: str, start_s: float, group: str = ""
    ) -> Iterator[LogEvent]:
        wanted = {"logStreamName": stream, "startFromHead": True}
        group = group or self._log_group(function)
        return log_pages(self._client("logs"), "get_log_events", group, start_s, **wanted)

    def identity(self) -> Identity:
        answer = self._client("sts").get_caller_identity()
        date = answer["ResponseMetadata"].get("HTTPHeaders", {}).get("date")
        return Identity(name=str(answer["Arn"]), date=date)

    def missing(self, name: str) -> list[str]:
        from orchgpu.adapters.aws.deploy.cloud import AwsCloud

        with closing(AwsCloud(self._client.settings, self._within)) as aws:
            observed = aws.observe([name], ())
        ledger = observed.ledgers.get(name)
        created = ledger.created if ledger is not None else ()
        return [key for key in created if key not in observed.resources]

    def close(self) -> None:
        self._client.close()


def _version(answer: Mapping[str, object]) -> str | None:
    version = answer.get("VersionId")
    return None if version in (None, "null") else str(version)


def log_pages(
    client: Any, call: str, group: str, start_s: float, **wanted: object
) -> Iterator[LogEvent]:
    """All events of a paged call of CloudWatch Logs; a log group that does not exist is empty."""
    given = "nextForwardToken" if call == "get_log_events" else "nextToken"
    token: dict[str, str] = {}
    while True:
        page = answer_or_none(
            getattr(client, call),
            logGroupName=group,
            startTime=max(0, int(start_s * 1000)),
            **wanted,
            **token,
        )
        if page is None:
            return  # nothing was ever written
        for event in page.get("events", ()):
            stream = str(event.get("logStreamName", ""))
            yield LogEvent(at_ms=event["timestamp"], message=str(event["message"]), stream=stream)
        new = page.get(given)
        if not new or new == token.get("nextToken"):
            return
        token = {"nextToken": str(new)}


def connect(address: Address, *, connections: int, within_s: float | None) -> AwsServices:
    return AwsServices(address, connections, within_s)


@contextmanager
def deploy_cloud(address: Address, declared: Address) -> Iterator[DeployCloud]:
    from orchgpu.adapters.aws.deploy.cloud import AwsCloud
    from orchgpu.adapters.aws.inspection import reader
    from orchgpu.adapters.aws.stacks import AwsStacks

    def settings(service: str) -> ClientSettings:
        url = address.endpoint_url
        found = resolve(service, endpoint_url=url, region=address.region, profile=address.profile)
        if found.local:
            return found  # the definition's region and profile are those of AWS
        return resolve(
            service,
            endpoint_url=url,
            region=address.region or declared.region,
            profile=address.profile or declared.profile,
        )

    with closing(AwsCloud(settings)) as aws:
        found = settings("s3")
        require_cloud(found)

        def locate() -> str:
            endpoint = found.endpoint_url or found.source
            return f"account {aws.place.account}, {aws.place.region}, {endpoint}"

        yield DeployCloud(
            cloud=aws,
            locate=locate,
            guard=lambda allowed: guard_real_aws(found, allowed=allowed),
            read=reader(aws.client),
            secrets=AwsSecretStores(aws.client),
            stacks=AwsStacks(aws.client, lambda: aws.place),
        )


def settings(address: Address) -> Iterator[Setting]:
    for service in SERVICES:
        yield _endpoint(service, address)
    for name, look in (("region", _region), ("credentials", _credentials)):
        try:
            value, source = look(address)
            yield Setting(name=name, value=value, source=source)
        except AppError as error:
            yield Setting(name=name, value=None, source="-", problem=error.message)


def _endpoint(service: str, address: Address) -> Setting:
    name = f"{service} endpoint"
    try:
        found = resolve(service, endpoint_url=address.endpoint_url, region=address.region)
    except AppError as error:
        return Setting(name=name, value=None, source="-", problem=error.message)
    url = found.endpoint_url or os.environ.get(found.source)  # botocore reads that itself
    return Setting(name=name, value=url or "AWS", source=found.source)


def _region(address: Address) -> tuple[str | None, str]:
    if address.region:
        return address.region, "--region"
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        if os.environ.get(name):
            return os.environ[name], name
    found = resolve("s3", endpoint_url=address.endpoint_url)
    if found.local:
        return found.region, "default"
    if found.region:
        return found.region, "the stack in use"
    return boto3_session(found).region_name, "the AWS configuration files"


def _credentials(address: Address) -> tuple[str | None, str]:
    found = resolve("s3", endpoint_url=address.endpoint_url)
    if found.access_key_id is not None:
        return found.access_key_id, "a local cloud accepts any key"
    session = boto3_session(found)
    try:
        known = session.get_credentials()
    except BotoCoreError as error:
        return None, f"not available: {error}"
    if known is None:
        return None, "none found"
    profile = f", profile {session.profile_name}" if session.profile_name != "default" else ""
    return f"…{known.access_key[-SHOWN_OF_ID:]}", f"{known.method}{profile}"

"""The bridge's calls to a moto server. Blocking; one call at a time per thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from corekit.errors import AppError, ErrorCode
from corekit.values import Value
from local_cloud.model.functions.function import InvokeConfig
from local_cloud.model.functions.functions import FunctionSettings
from local_cloud.model.s3.notifications import Rule
from local_cloud.sandbox.image_package import package_location

T = TypeVar("T")


class BucketRules(Value):
    """The notification rules of one bucket."""

    bucket: str
    rules: tuple[Rule, ...]  #: those whose destination is a function
    mirrors: int  #: the number of rules that go to the bridge's queue


class RemoteFunction(Value):
    """A function as moto describes it."""

    settings: FunctionSettings  #: without the code that runs
    reserved: int | None
    code_sha256: str  #: base64
    tags: Mapping[str, str]
    config: InvokeConfig


class Moto:
    """Clients of one moto server."""

    def __init__(self, endpoint: str, region: str = "us-east-1") -> None:
        self.endpoint = endpoint
        self.region = region
        config = Config(
            s3={"addressing_style": "path"}, retries={"mode": "standard", "max_attempts": 3}
        )

        def client(service: str) -> Any:
            return boto3.client(
                service,
                endpoint_url=endpoint,
                region_name=region,
                aws_access_key_id="test",
                aws_secret_access_key="test",  # noqa: S106 - what every emulator accepts
                config=config,
            )

        self._s3, self._sqs, self._lambda = client("s3"), client("sqs"), client("lambda")

    def close(self) -> None:
        """Close the connections."""
        for client in (self._s3, self._sqs, self._lambda):
            client.close()

    # --- notifications

    def observe(self, queue_arn: str) -> list[BucketRules]:
        """The rules of every bucket, and which of them have a mirror that goes to `queue_arn`."""
        names = [bucket["Name"] for bucket in _translated(self._s3.list_buckets)["Buckets"]]
        return [_bucket_rules(name, self._configuration(name), queue_arn) for name in names]

    def _configuration(self, bucket: str) -> dict[str, Any]:
        try:
            found = self._s3.get_bucket_notification_configuration(Bucket=bucket)
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchBucket":
                return {}  # deleted since it was listed
            raise AppError(ErrorCode.UNAVAILABLE, str(error)) from error
        found.pop("ResponseMetadata", None)
        return dict(found)

    def mirror(self, bucket: str, queue_arn: str, *, wanted: bool) -> None:
        """Give the bucket its one rule for `queue_arn`, or none. The bridge picks the events."""
        current = self._configuration(bucket)
        queues = current.get("QueueConfigurations", [])
        foreign = [q for q in queues if q["QueueArn"] != queue_arn]
        events = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]
        mirror = {"Id": "local-cloud-bridge", "Events": events, "QueueArn": queue_arn}
        queues = [*foreign, mirror] if wanted else foreign
        _translated(
            self._s3.put_bucket_notification_configuration,
            Bucket=bucket,
            NotificationConfiguration={**current, "QueueConfigurations": queues},
        )

    def created_since(
        self, bucket: str, prefix: str, since: datetime
    ) -> list[tuple[str, int, str]]:
        """Keys, sizes and etags below the prefix that are not older than `since`."""
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [
            (entry["Key"], entry["Size"], entry["ETag"].strip('"'))
            for page in _translated(lambda: list(pages))
            for entry in page.get("Contents", ())
            if entry["LastModified"] >= since
        ]

    # --- the bridge's queue, and destinations

    def create_queue(self, name: str) -> tuple[str, str]:
        """URL and ARN of the queue, made if it does not exist."""
        url = _translated(self._sqs.create_queue, QueueName=name)["QueueUrl"]
        attributes = _translated(
            self._sqs.get_queue_attributes, QueueUrl=url, AttributeNames=["QueueArn"]
        )
        return str(url), str(attributes["Attributes"]["QueueArn"])

    def receive(self, url: str, wait_s: int) -> list[dict[str, Any]]:
        """Long poll; a message not deleted within ten seconds comes again."""
        answer = _translated(
            self._sqs.receive_message,
            QueueUrl=url,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=wait_s,
            VisibilityTimeout=10,
        )
        return list(answer.get("Messages", ()))

    def delete(self, url: str, messages: Sequence[Mapping[str, Any]]) -> None:
        """Acknowledge messages."""
        entries = [
            {"Id": str(at), "ReceiptHandle": message["ReceiptHandle"]}
            for at, message in enumerate(messages)
        ]
        _translated(self._sqs.delete_message_batch, QueueUrl=url, Entries=entries)

    def send(self, queue_name: str, body: str) -> None:
        """One message. Raises NOT_FOUND for a queue that does not exist."""
        url = _translated(self._sqs.get_queue_url, QueueName=queue_name)["QueueUrl"]
        _translated(self._sqs.send_message, QueueUrl=url, MessageBody=body)

    # --- functions

    def function(self, arn: str) -> RemoteFunction:
        """Everything about a function but its code. Raises NOT_FOUND."""
        answer = _translated(self._lambda.get_function, FunctionName=arn)
        found = answer["Configuration"]
        image = found.get("ImageConfigResponse", {}).get("ImageConfig", {})
        kept = ("Handler", "Timeout", "MemorySize", "Environment")
        given = {name: found[name] for name in kept if name in found}
        return RemoteFunction(
            settings=FunctionSettings(
                name=found["FunctionName"],
                given={**given, "ImageConfig": image},
                image_uri=answer.get("Code", {}).get("ImageUri", ""),
            ),
            reserved=answer.get("Concurrency", {}).get("ReservedConcurrentExecutions"),
            code_sha256=found.get("CodeSha256", ""),
            tags=answer.get("Tags", {}),
            config=self._invoke_config(found["FunctionName"]),
        )

    def _invoke_config(self, name: str) -> InvokeConfig:
        try:
            found = _translated(self._lambda.get_function_event_invoke_config, FunctionName=name)
        except AppError as error:
            if error.code is ErrorCode.NOT_FOUND:
                return InvokeConfig()
            raise
        return InvokeConfig().changed(found)

    def code(self, function: RemoteFunction) -> bytes:
        """The zip at the address in the function's tag. Raises NOT_FOUND, IMPOSSIBLE without a tag.

        moto serves no zips: the location in its GetFunction is an address on real AWS.
        """
        place = package_location(
            function.tags, function.settings.image_uri or "a zip that moto keeps"
        )
        answer = _translated(self._s3.get_object, Bucket=place.bucket, Key=place.key)
        with answer["Body"] as body:
            return bytes(body.read())


def _bucket_rules(bucket: str, found: Mapping[str, Any], queue_arn: str) -> BucketRules:
    queues = found.get("QueueConfigurations", ())
    return BucketRules(
        bucket=bucket,
        rules=tuple(_rule(entry) for entry in found.get("LambdaFunctionConfigurations", ())),
        mirrors=sum(1 for q in queues if q["QueueArn"] == queue_arn),
    )


def _rule(entry: Mapping[str, Any]) -> Rule:
    given = entry.get("Filter", {}).get("Key", {}).get("FilterRules", ())
    values = {r["Name"].lower(): r["Value"] for r in given}
    return Rule(
        id=entry.get("Id", ""),
        arn=entry["LambdaFunctionArn"],
        events=tuple(entry["Events"]),
        prefix=values.get("prefix", ""),
        suffix=values.get("suffix", ""),
    )


def _translated(call: Callable[..., T], **arguments: Any) -> T:
    try:
        return call(**arguments)
    except ClientError as error:
        status = error.response["ResponseMetadata"].get("HTTPStatusCode")
        code = error.response["Error"]["Code"]
        gone = status == 404 or "NonExistent" in code or "DoesNotExist" in code
        raise AppError(
            ErrorCode.NOT_FOUND if gone else ErrorCode.UNAVAILABLE, f"moto: {error}"
        ) from error
    except BotoCoreError as error:
        raise AppError(ErrorCode.UNAVAILABLE, f"moto: {error}") from error

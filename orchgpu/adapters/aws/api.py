"""AWS's API as botocore offers it: untyped clients and answers; every failed call an AppError.

botocore makes clients from data files when the program runs, so this file names the only two types
that are `Any` for that reason.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from contract.aws import clients
from contract.aws.clients import Client as Client
from contract.aws.faults import Fault, fault_of
from corekit.errors import AppError, ErrorCode
from orchgpu.ports import Tolerating

#: A structure of a request or an answer, as AWS documents it.
Shape = dict[str, Any]

#: botocore's exceptions become `AppError`; the cause is kept.
_CODES = {
    Fault.ABSENT: ErrorCode.NOT_FOUND,
    Fault.CONFLICT: ErrorCode.CONFLICT,
    Fault.RACED: ErrorCode.UNAVAILABLE,
    Fault.DENIED: ErrorCode.DENIED,
    Fault.EXHAUSTED: ErrorCode.EXHAUSTED,
    Fault.REFUSED: ErrorCode.INVALID,
    Fault.TIMEOUT: ErrorCode.TIMEOUT,
    Fault.UNAVAILABLE: ErrorCode.UNAVAILABLE,
}
#: The parameters that name the resource of a call, for its errors.
_NAMES = (
    *("Bucket", "Key", "Prefix", "FunctionName", "StatementId", "RoleName", "PolicyArn"),
    *("QueueName", "QueueUrl", "logGroupName", "logGroupNamePrefix", "Name", "SecretId", "KeyId"),
)


@contextmanager
def translated(call: str) -> Iterator[None]:
    """Run one AWS call; each of its errors becomes an AppError that names the call."""
    try:
        yield
    except (ClientError, BotoCoreError, OSError) as error:
        raise AppError(_CODES[fault_of(error)], f"{call}: {_message(error)}") from error
    except Exception as error:  # a body that breaks off raises aiohttp's error
        if not _of_aiohttp(error):
            raise
        raise AppError(ErrorCode.UNAVAILABLE, f"{call}: {error}") from error


def _of_aiohttp(error: Exception) -> bool:
    """True for a client error of aiohttp. Only the orchestrator's clients load that library: it
    would be a fifth of the start of every command."""
    aiohttp = sys.modules.get("aiohttp")
    return aiohttp is not None and isinstance(error, aiohttp.ClientError)


def _message(error: Exception) -> str:
    if isinstance(error, NoCredentialsError):
        return "no AWS credentials found"
    if not isinstance(error, ClientError):
        return str(error)
    body = error.response.get("Error", {})
    return f"{body.get('Code', '?')}: {body.get('Message', '') or 'no message'}"


class AwsClient:
    """A synchronous client of one service. Its operations raise AppError alone, which names the
    call as IAM does, with its resource: `s3:GetObject bucket/key`. All else is the client's own.
    """

    def __init__(self, client: Client) -> None:
        self.inner = client  #: raises botocore's errors

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.inner, name)
        operation = self.inner.meta.method_to_api_mapping.get(name)
        return attribute if operation is None else partial(self._call, operation, attribute)

    @property
    def at_once(self) -> AwsClient:
        """The client of `Settling` that repeats nothing."""
        return AwsClient(self.inner.at_once)

    def _call(self, operation: str, method: Callable[..., Shape], **parameters: Any) -> Shape:
        with translated(self._named(operation, parameters)):
            return method(**parameters)

    def pages(self, method: str, **parameters: Any) -> Iterator[Shape]:
        """Every page of a call that lists."""
        operation = self.inner.meta.method_to_api_mapping.get(method, method)
        with translated(self._named(operation, parameters)):
            yield from self.inner.get_paginator(method).paginate(**parameters)

    def body(self, **parameters: Any) -> tuple[bytes, Shape]:
        """The whole body of an object, and GetObject's answer."""
        with translated(self._named("GetObject", parameters)):
            answer = self.inner.get_object(**parameters)
            return answer["Body"].read(), answer

    def _named(self, operation: str, parameters: Mapping[str, Any]) -> str:
        resource = "/".join(str(parameters[name]) for name in _NAMES if name in parameters)
        return f"{self.inner.meta.service_model.service_name}:{operation} {resource}".rstrip()


def answer_or_none(call: Callable[..., Any], **parameters: Any) -> Any:
    """The answer of one call; None for NOT_FOUND."""
    with Tolerating(ErrorCode.NOT_FOUND):
        return call(**parameters)
    return None


def all_keys(s3: Client, bucket: str, prefix: str) -> list[str]:
    """Every key below a prefix, in order; none in a bucket that does not exist."""
    keys: list[str] = []
    with Tolerating(ErrorCode.NOT_FOUND):
        for page in s3.pages("list_objects_v2", Bucket=bucket, Prefix=prefix):
            keys += [str(item["Key"]) for item in page.get("Contents", ())]
    return keys


def write_once(s3: Client, bucket: str, key: str, body: bytes, *, replaces: str = "") -> None:
    """Write JSON where there is no object, or over the one with the etag `replaces`.

    Raises CONFLICT when another object is there, NOT_FOUND when that one is not.
    """
    call, kind = f"s3:PutObject {bucket}/{key}", "application/json"
    where = (s3.inner, bucket, key, body)
    with translated(call):
        ours = clients.write_once(*where, replaces=replaces, content_type=kind, pause=time.sleep)
    if not ours:
        raise AppError(ErrorCode.CONFLICT, f"{call}: another object is there")

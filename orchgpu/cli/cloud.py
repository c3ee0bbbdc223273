"""What `run` and `demo` do with S3 and SQS: upload an input, read a result, fetch, count.

Synchronous boto3 through the one endpoint resolver; boto3 is imported on first use.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, TypeVar

from contract.keys import job_id, report_key, result_key
from contract.result import Report, Result
from corekit.aio.newer import known
from corekit.decode import decode_json_known
from corekit.errors import AppError, ErrorCode, invalid
from fdl.plan.resources import Ledger
from orchgpu.adapters.aws.endpoints import resolve
from orchgpu.core.function import Function

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: https://docs.aws.amazon.com/AmazonS3/latest/API/API_PutObject.html: 5 GiB
PUT_BYTES_MAX = 5 * 2**30

_COUNTS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """One uploaded input."""

    function: Function
    file: PurePath  #: its name; the file itself may be gone by now
    key: str  #: in the function's input bucket
    job_ids: tuple[str, ...]  #: by version id and, for events that carry none, by etag and date
    #: RStart: wall clock of this machine when the upload began; the store's when it was before.
    uploaded_s: float

    @property
    def input(self) -> str:
        return f"{self.function.input_bucket}/{self.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One listed object."""

    key: str
    size: int  #: bytes
    modified_s: float  #: wall clock of the store


class JobCloud:
    """The side of a cloud that jobs come from and go to. Raises AppError only."""

    def __init__(
        self, endpoint_url: str | None = None, region: str | None = None, connections: int = 4
    ) -> None:
        self._endpoint_url = endpoint_url
        self._region = region
        self._connections = connections  #: calls that may be made at once, by threads

    @property
    def local(self) -> bool:
        """Whether it is not AWS itself."""
        return bool(self._settings("s3").local)

    def function(self, name: str) -> Function:
        """The deployed function. Raises NOT_FOUND with what to do, INVALID for a plain function."""
        key = f"functions/{name}.json"
        try:
            body = self._read(self._state_bucket, key)
        except AppError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            raise self._refuse(name) from error
        return _known(Function, body, key)

    def functions(self) -> list[Function]:
        """Every deployed function that the orchestrator serves, by name."""
        found = []
        for name in self.served():
            try:
                found.append(self.function(name))
            except AppError as error:
                if error.code is not ErrorCode.NOT_FOUND:
                    raise  # else: removed since it was listed
        return found

    def objects(self, bucket: str, prefix: str) -> Iterator[Entry]:
        """Every object below a prefix, by key. Raises NOT_FOUND for a bucket that is none."""
        with self._translated(f"s3:ListObjectsV2 {bucket}/{prefix}"):
            pages = self.s3.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=bucket, Prefix=prefix):
                for found in page.get("Contents", ()):
                    yield Entry(
                        key=str(found["Key"]),
                        size=int(found["Size"]),
                        modified_s=found["LastModified"].timestamp(),
                    )

    def ledger(self, name: str) -> Ledger | None:
        """What a deploy notes of a function, whoever serves it; None when it is not deployed."""
        key = f"deployments/{name}.json"
        try:
            return _known(Ledger, self._read(self._state_bucket, key), key)
        except AppError as error:
            if error.code is ErrorCode.NOT_FOUND:
                return None
            raise

    def deployed(self) -> list[str]:
        """The name of every deployed function, whoever serves it."""
        return sorted({*self._names("deployments/"), *self.served()})

    def served(self) -> list[str]:
        """The names of those that orchestrators serve."""
        return self._names("functions/")

    def _names(self, prefix: str) -> list[str]:
        """The functions that the state bucket has an object of, below a prefix."""
        try:
            listed = [entry.key for entry in self.objects(self._state_bucket, prefix)]
        except AppError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            return []  # nothing was ever deployed here
        return [key.removeprefix(prefix).removesuffix(".json") for key in listed]

    def _refuse(self, name: str) -> AppError:
        """Why there is no job function of that name: INVALID for a plain one, else NOT_FOUND."""
        from fdl.text.nodes import did_you_mean
        from orchgpu.cli.objects.direct import plain

        found = plain(self, name)
        if found is None:
            others = [other for other in self.deployed() if other != name]
            hint = did_you_mean(name, others) or "; `orchgpu deploy FDL` does it"
            return AppError(ErrorCode.NOT_FOUND, f"no function {name!r} is deployed here{hint}")
        upload = f"upload to {' or '.join(found.places)} instead"
        return invalid(
            f"{name!r} has no gpu: block, so it is no job of the orchestrator and cannot be "
            f"followed; {upload if found.places else 'nothing triggers it'}"
        )

    def submit(self, function: Function, file: Path, *, now_s: float) -> Submitted:
        """Upload one input; its creation is what starts the job. Raises INVALID for the file."""
        self.check(function, file)
        where = {"Bucket": function.input_bucket, "Key": input_key(function, file)}
        with self._translated(f"s3:PutObject {where['Bucket']}/{where['Key']}"):
            with file.open("rb") as body:
                put = self.s3.put_object(**where, Body=body, Metadata=_origin(function, file))
            version = put.get("VersionId")
            pinned = {"VersionId": version} if version not in (None, "null") else {}
            head = self.s3.head_object(**where, **pinned)
        return _submitted(function, file, head, now_s)

    def submitted_before(self, function: Function, file: Path) -> Submitted | None:
        """The job of the same content, uploaded for the function as it is deployed now, if any."""
        where = {"Bucket": function.input_bucket, "Key": input_key(function, file)}
        try:
            with self._translated(f"s3:HeadObject {where['Bucket']}/{where['Key']}"):
                head = self.s3.head_object(**where)
        except AppError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            return None
        if head.get("Metadata", {}) != _origin(function, file):
            return None
        return _submitted(function, file, head, head["LastModified"].timestamp())

    @staticmethod
    def check(function: Function, file: Path) -> None:
        """Raise INVALID for a file that is none, or that the trigger would ignore."""
        check_file(file)
        suffixes = function.input_suffixes
        if suffixes and not file.name.endswith(suffixes):
            raise invalid(
                f"{file.name}: {function.name} takes only {', '.join(suffixes)} and would ignore it"
            )

    def result(self, function: Function, job: str) -> Result | None:
        """The job's one terminal record; None while there is none."""
        try:
            return Result.from_json(self._read(function.intermediate_bucket, result_key(job)))
        except AppError as error:
            if error.code is ErrorCode.NOT_FOUND:
                return None
            raise
        except (ValueError, RecursionError) as error:
            raise invalid(f"the result of {job} is not readable: {error}") from error

    def commit(self, function: Function, result: Result, replaced: str | None) -> None:
        """Write a terminal result. Raises CONFLICT when there is one, other than `replaced`.

        `replaced` is the etag of a failure that may be overwritten: the job was run again.
        """
        bucket, key = function.intermediate_bucket, result_key(result.job_id)
        condition = {"IfMatch": f'"{replaced}"'} if replaced else {"IfNoneMatch": "*"}
        with self._translated(f"s3:PutObject {bucket}/{key}"):
            self.s3.put_object(
                Bucket=bucket,
                Key=key,
                Body=result.to_json(),
                ContentType="application/json",
                **condition,
            )

    def report(self, function: Function, job: str, attempt: int) -> tuple[Report, float] | None:
        """Why an attempt failed and when that was stored; None when it left no report."""
        bucket, key = function.intermediate_bucket, report_key(job, attempt)
        try:
            with self._translated(f"s3:GetObject {bucket}/{key}"):
                answer = self.s3.get_object(Bucket=bucket, Key=key)
                body: bytes = answer["Body"].read()
            return Report.from_json(body), answer["LastModified"].timestamp()
        except AppError as error:
            if error.code is ErrorCode.NOT_FOUND:
                return None
            raise
        except (ValueError, RecursionError):
            return None  # its attempt is told by the record as well

    def fetch(self, bucket: str, key: str) -> bytes:
        """One output, whole: people look at it."""
        return self._read(bucket, key)

    def download(self, bucket: str, key: str, to: Path) -> None:
        """One object into a file, in pieces. Raises INVALID where the file cannot be written."""
        try:
            to.parent.mkdir(parents=True, exist_ok=True)
            with self._translated(f"s3:GetObject {bucket}/{key}"):
                self.s3.download_file(bucket, key, str(to))
        except OSError as error:
            raise invalid(f"cannot write {str(to)!r}: {error.strerror or error}") from error

    def upload(self, file: Path, bucket: str, key: str) -> None:
        """One file in one request. Raises INVALID for one that cannot be read."""
        try:
            with self._translated(f"s3:PutObject {bucket}/{key}"), file.open("rb") as body:
                self.s3.put_object(Bucket=bucket, Key=key, Body=body)
        except OSError as error:
            raise _unreadable(file, error) from error

    def messages(self, queue_url: str) -> int:
        """Everything in a queue: visible, in flight, delayed."""
        with self._translated(f"sqs:GetQueueAttributes {queue_url}"):
            answer = self.sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=list(_COUNTS))
        return sum(int(answer["Attributes"].get(name, 0)) for name in _COUNTS)

    def not_received(self, function: Function) -> int:
        """Messages of jobs that no orchestrator has taken yet."""
        name = "ApproximateNumberOfMessages"
        with self._translated(f"sqs:GetQueueAttributes {function.queue_url}"):
            answer = self.sqs.get_queue_attributes(
                QueueUrl=function.queue_url, AttributeNames=[name]
            )
        return int(answer["Attributes"].get(name, 0))

    def identity(self) -> tuple[str, float | None]:
        """As whom we are known, and by how much the cloud's clock is ahead at least.

        STS answers everybody whose keys are good, whatever they may do. None: it does not say.
        """
        client = self._client("sts")
        asked_s = time.time()
        try:
            with self._translated("sts:GetCallerIdentity"):
                answer = client.get_caller_identity()
        finally:
            client.close()
        said = answer["ResponseMetadata"].get("HTTPHeaders", {}).get("date")
        return str(answer["Arn"]), _ahead_s(said, asked_s, time.time())

    def missing(self, name: str) -> list[str]:
        """What a deploy made for the function and is not there now, as `kind/name`."""
        from orchgpu.deploy.aws.cloud import AwsCloud

        aws = AwsCloud(self._settings)
        try:
            observed = aws.observe([name], ())
        finally:
            aws.close()
        ledger = observed.ledgers.get(name)
        made = ledger.created if ledger is not None else ()
        return [key for key in made if key not in observed.resources]

    def memory_mib(self, function: Function) -> int:
        """Of the function itself, as Lambda knows it."""
        return int(self._configuration(function.name)["MemorySize"])

    def variables(self, name: str) -> dict[str, str]:
        """The environment of the function's process, as Lambda knows it."""
        found = self._configuration(name).get("Environment", {}).get("Variables", {})
        return {str(key): str(value) for key, value in found.items()}

    def _configuration(self, name: str) -> Any:
        client = self._client("lambda")
        try:
            with self._translated(f"lambda:GetFunctionConfiguration {name}"):
                return client.get_function_configuration(FunctionName=name)
        finally:
            client.close()

    def send(self, queue_url: str, body: str) -> None:
        """One message."""
        with self._translated(f"sqs:SendMessage {queue_url}"):
            self.sqs.send_message(QueueUrl=queue_url, MessageBody=body)

    def delete(self, queue_url: str, handle: str) -> None:
        """One received message."""
        with self._translated(f"sqs:DeleteMessage {queue_url}"):
            self.sqs.delete_message(QueueUrl=queue_url, ReceiptHandle=handle)

    def close(self) -> None:
        """Close the connections that were opened."""
        for name in ("s3", "sqs", "logs"):
            if name in self.__dict__:
                self.__dict__[name].close()

    def _read(self, bucket: str, key: str) -> bytes:
        with self._translated(f"s3:GetObject {bucket}/{key}"):
            body: bytes = self.s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        return body

    @staticmethod
    def _translated(call: str) -> Any:
        from orchgpu.adapters.aws.errors import translated

        return translated(call)

    @cached_property
    def s3(self) -> Any:
        """A boto3 client; whoever calls it translates what it raises."""
        return self._client("s3")

    @cached_property
    def sqs(self) -> Any:
        """A boto3 client; whoever calls it translates what it raises."""
        return self._client("sqs")

    @cached_property
    def logs(self) -> Any:
        """A boto3 client; whoever calls it translates what it raises."""
        return self._client("logs")

    @cached_property
    def _state_bucket(self) -> str:
        from orchgpu.deploy.aws.cloud import AwsCloud

        aws = AwsCloud(self._settings)
        try:
            return aws.place.state_bucket
        finally:
            aws.close()

    def _settings(self, service: str) -> Any:
        return resolve(service, endpoint_url=self._endpoint_url, region=self._region)

    def _client(self, service: str) -> Any:
        from orchgpu.adapters.aws.endpoints import boto3_client

        return boto3_client(
            service, self._settings(service), max_pool_connections=self._connections
        )


def check_file(file: Path) -> None:
    """Raise INVALID for a file that cannot become an object by one request."""
    try:
        file.name.encode()
        if not file.is_file():
            if file.is_dir():
                raise invalid(f"{str(file)!r} is a folder; files are sent one by one")
            raise invalid(f"there is no file {str(file)!r}")
        if (size := file.stat().st_size) > PUT_BYTES_MAX:
            raise invalid(f"{str(file)!r} has {size} bytes; S3 takes {PUT_BYTES_MAX} at once")
    except UnicodeEncodeError as error:
        raise invalid(f"the name {file.name!r} is not UTF-8, as keys in S3 are") from error
    except OSError as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: OSError) -> AppError:
    return invalid(f"cannot read {str(file)!r}: {error.strerror or error}")


def input_key(function: Function, file: Path) -> str:
    """Where a file becomes an input of the function."""
    return "/".join(part for part in (function.input_prefix, file.name) if part)


def _ahead_s(said: str | None, asked_s: float, answered_s: float) -> float | None:
    """How far a date of whole seconds lies outside of the time in which it was written."""
    try:
        began_s = parsedate_to_datetime(said).timestamp() if said else None
    except ValueError:
        return None
    if began_s is None:
        return None
    if began_s > answered_s:
        return began_s - answered_s
    return min(0.0, began_s + 1.0 - asked_s)


def _origin(function: Function, file: Path) -> dict[str, str]:
    """Kept with an input: by it a repeated command knows what it uploaded already."""
    try:
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(file, error) from error
    return {"orchgpu-sha256": digest, "orchgpu-revision": function.revision}


def _submitted(
    function: Function, file: Path, head: Mapping[str, Any], uploaded_s: float
) -> Submitted:
    version, key = head.get("VersionId"), input_key(function, file)
    undated = f"{head['ETag'].strip(chr(34))}@{head['LastModified'].isoformat()}"
    versions = (*([] if version in (None, "null") else [str(version)]), undated)
    ids = tuple(job_id(function.input_bucket, key, v, function.name) for v in versions)
    return Submitted(function=function, file=file, key=key, job_ids=ids, uploaded_s=uploaded_s)


def _known(cls: type[T], body: bytes, key: str) -> T:
    """A stored object, also one that a newer orchgpu wrote. Raises INVALID."""
    return known(logger, decode_json_known(cls, body, key))

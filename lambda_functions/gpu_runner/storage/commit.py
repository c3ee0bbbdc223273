"""The record that ends a run: the result of a job, written once, or an attempt's report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict

from contract.aws.clients import write_once
from contract.envelope import Job
from contract.keys import StagingKey, report_key, result_key
from contract.record import JsonObject
from contract.result import OutputFile, Report, Result
from lambda_functions.gpu_runner.errors import StorageError
from lambda_functions.gpu_runner.storage.s3 import S3, etag_of, s3_errors

#: The orchestrator reads records up to 1 MiB; the list of files leaves room for the rest.
FILES_BYTES_MAX = 900_000


def listed(files: list[OutputFile], document: JsonObject | None = None) -> list[JsonObject]:
    """As many of the files as a result can name beside its document."""
    entries: list[JsonObject] = []
    size = 0 if document is None else len(json.dumps(document))
    for file in files:
        entry = asdict(file)
        size += len(json.dumps(entry)) + 1
        if size > FILES_BYTES_MAX:
            break
        entries.append(entry)
    return entries


def commit(s3: S3, job: Job, result: Result, pause: Callable[[float], None] = time.sleep) -> bool:
    """Write the result. True: this attempt's result is in place; False: another attempt was first.

    Raises StorageError.
    """
    bucket, key, body = job.intermediate_bucket, result_key(job.job_id), result.to_json()

    def is_same(stored: bytes) -> bool:
        """Whether the stored result is of this attempt and session."""
        try:
            found = Result.from_json(stored)
        except ValueError:
            return False
        return (found.attempt, found.nonce) == (result.attempt, result.nonce)

    def write(replaces: str) -> bool:
        with s3_errors(f"write result s3://{bucket}/{key}"):
            return write_once(
                s3,
                bucket,
                key,
                body,
                replaces=replaces,
                content_type="application/json",
                is_same=is_same,
                pause=pause,
            )

    try:
        return write(job.replace_etag or "")
    except StorageError as error:
        if error.status != 404 or not job.replace_etag:
            raise
    return write("")  # the failed result was removed meanwhile


def is_over(s3: S3, bucket: str, staging: StagingKey) -> bool:
    """Whether the job has a result, or the attempt a report. Raises StorageError."""
    keys = (result_key(staging.job), report_key(staging.job, staging.n))
    return any(etag_of(s3, bucket, key) is not None for key in keys)


def report(s3: S3, bucket: str, record: Report) -> None:
    """Write the report of a failed attempt; repeating overwrites it. Raises StorageError."""
    key = report_key(record.job_id, record.attempt)
    with s3_errors(f"write report s3://{bucket}/{key}"):
        s3.put_object(Bucket=bucket, Key=key, Body=record.to_json(), ContentType="application/json")

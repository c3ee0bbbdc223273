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
from contract.states import JobState, Reason
from lambda_functions.gpu_runner.errors import AttemptFailed, StorageError
from lambda_functions.gpu_runner.storage.s3 import S3, s3_errors

#: The orchestrator reads records up to 1 MiB; the list of files leaves room for the rest.
FILES_BYTES_MAX = 900_000


def result_of(
    job: Job,
    nonce: str,
    *,
    exit_code: int,
    files: list[OutputFile],
    times: dict[str, float],
    log_tail: str,
    device: JsonObject,
    notes: list[str],
    provenance: JsonObject,
) -> Result:
    """The result of a run that succeeded."""
    now_s = time.time()
    listed = _listable(files)
    short = len(files) - len(listed)
    return Result(
        job_id=job.job_id,
        state=JobState.SUCCEEDED,
        reason=Reason.NONE,
        attempt=job.attempt,
        nonce=nonce,
        exit_code=exit_code,
        files=listed,
        times=times | {"committed": now_s},
        log_tail=log_tail,
        device=device,
        detail=f"{short} of {len(files)} output files are not listed" if short else "",
        ended_at_s=now_s,
        notes=notes,
        provenance=provenance,
    )


def _listable(files: list[OutputFile]) -> list[JsonObject]:
    listed: list[JsonObject] = []
    size = 0
    for file in files:
        entry = asdict(file)
        size += len(json.dumps(entry)) + 1
        if size > FILES_BYTES_MAX:
            break
        listed.append(entry)
    return listed


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
    return any(_exists(s3, bucket, key) for key in keys)


def _exists(s3: S3, bucket: str, key: str) -> bool:
    try:
        with s3_errors(f"look for s3://{bucket}/{key}"):
            s3.head_object(Bucket=bucket, Key=key)
    except StorageError as error:
        if error.status == 404:
            return False
        raise
    return True


def report(
    s3: S3,
    job: Job,
    nonce: str,
    failure: AttemptFailed,
    moments: dict[str, float],
    *,
    lacks: JsonObject,
    provenance: JsonObject,
) -> None:
    """Write the report of a failed attempt; repeating overwrites it. Raises StorageError."""
    record = Report(
        job_id=job.job_id,
        attempt=job.attempt,
        nonce=nonce,
        reason=failure.reason,
        exit_code=failure.exit_code,
        detail=failure.detail,
        log_tail=failure.log_tail,
        times=moments | failure.times,
        lacks=lacks,
        provenance=provenance,
    )
    key = report_key(job.job_id, job.attempt)
    with s3_errors(f"write report s3://{job.intermediate_bucket}/{key}"):
        s3.put_object(
            Bucket=job.intermediate_bucket,
            Key=key,
            Body=record.to_json(),
            ContentType="application/json",
        )

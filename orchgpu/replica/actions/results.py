"""Results and reports in the intermediate bucket: read, and written at most once."""

from __future__ import annotations

from contract.keys import report_key, result_key
from contract.result import Report, Result
from contract.states import Reason
from corekit.errors import AppError, ErrorCode
from orchgpu.ports import ObjectStore

RECORD_BYTES_MAX = 1 << 20  #: of a result or report; the runner's are a few KiB


async def put_once(store: ObjectStore, bucket: str, key: str, body: bytes) -> None:
    """Store an object unless there is one: an earlier try, or another replica, was first."""
    try:
        await store.put(bucket, key, body, if_absent=True)
    except AppError as error:
        if error.code is not ErrorCode.CONFLICT:
            raise


async def read_result(
    store: ObjectStore, bucket: str, job: str, wall_s: float
) -> tuple[Result | None, str]:
    """The result of a job and its etag. An object that is not a result ends the job as FAILED."""
    try:
        stored = await store.get(bucket, result_key(job), bytes_max=RECORD_BYTES_MAX)
    except AppError as error:
        if error.code is ErrorCode.NOT_FOUND:
            return None, ""
        raise
    try:
        return Result.from_json(stored.body or b""), stored.etag
    except (ValueError, RecursionError) as error:
        return _bad_result(job, str(error), wall_s), stored.etag


def _bad_result(job: str, detail: str, wall_s: float) -> Result:
    return Result(
        job_id=job,
        state="FAILED",
        reason=Reason.BAD_RESULT.value,
        attempt=0,
        nonce="",
        exit_code=None,
        files=[],
        times={},
        log_tail="",
        ended_at_s=wall_s,
        detail=f"{result_key(job)} is not a valid result: {detail}",
    )


async def write_result(
    store: ObjectStore, bucket: str, result: Result, replace_etag: str | None, wall_s: float
) -> Result:
    """Commit a result unless there is one (other than `replace_etag`); returns the valid one."""
    key = result_key(result.job_id)
    try:
        await store.put(
            bucket, key, result.to_json(), if_absent=replace_etag is None, if_match=replace_etag
        )
    except AppError as error:
        if error.code is not ErrorCode.CONFLICT:
            raise
        standing, _ = await read_result(store, bucket, result.job_id, wall_s)
        if standing is None:  # deleted between the two calls: write again
            raise AppError(ErrorCode.UNAVAILABLE, f"{key} was deleted while it was read") from error
        return standing
    return result


async def read_report(store: ObjectStore, bucket: str, job: str, attempt: int) -> Report | None:
    """The report of a failed attempt from inside its function; None unless it is complete."""
    try:
        stored = await store.get(bucket, report_key(job, attempt), bytes_max=RECORD_BYTES_MAX)
        return Report.from_json(stored.body or b"")
    except AppError as error:
        if error.code is not ErrorCode.NOT_FOUND:
            raise
    except (ValueError, RecursionError):
        pass  # half a report explains nothing: the end of the lease must suffice
    return None

"""Objects of the intermediate bucket: results and reports, claims of attempts without a device
(`contract.claim`), envelopes, and what is noted of targets. Each is written at most once."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timedelta

from contract.claim import Claim
from contract.keys import before_key, claim_key, report_key, result_key, staging_key
from contract.parameters import seen_by_jobs
from contract.result import Report, Result
from contract.run import run_key
from contract.states import JobState, Reason
from corekit.decode import decode_json_known
from corekit.errors import AppError, ErrorCode
from orchgpu.core import actions as do
from orchgpu.core.routing import InputEvent
from orchgpu.core.runs.records import Frozen
from orchgpu.ports import ObjectStore, StoredObject, Tolerating, if_present

logger = logging.getLogger(__name__)

RECORD_BYTES_MAX = 1 << 20  #: of a result, report or claim; the runner's are a few KiB


async def put_once(store: ObjectStore, bucket: str, key: str, body: bytes) -> None:
    """Store an object unless there is one: an earlier try, or another replica, was first."""
    with Tolerating(ErrorCode.CONFLICT):
        await store.put(bucket, key, body, if_absent=True)


async def _read(store: ObjectStore, bucket: str, key: str) -> StoredObject | None:
    return await if_present(store.get(bucket, key, bytes_max=RECORD_BYTES_MAX))


# ---------------------------------------------------------------------- results and reports


async def read_result(
    store: ObjectStore, bucket: str, job: str, wall_s: float
) -> tuple[Result | None, str]:
    """The result of a job and its etag. An object that is not a result ends the job as FAILED."""
    stored = await _read(store, bucket, result_key(job))
    if stored is None:
        return None, ""
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
    key, body = result_key(result.job_id), result.to_json()
    with Tolerating(ErrorCode.CONFLICT):
        absent = replace_etag is None
        await store.put(bucket, key, body, if_absent=absent, if_match=replace_etag)
        return result
    standing, _ = await read_result(store, bucket, result.job_id, wall_s)
    if standing is None:  # deleted between the two calls: write again
        raise AppError(ErrorCode.UNAVAILABLE, f"{key} was deleted while it was read")
    return standing


async def read_report(store: ObjectStore, bucket: str, job: str, attempt: int) -> Report | None:
    """The report of a failed attempt from inside its function; None unless it is complete."""
    stored = await _read(store, bucket, report_key(job, attempt))
    try:
        return None if stored is None else Report.from_json(stored.body or b"")
    except (ValueError, RecursionError):
        return None  # half a report explains nothing: the end of the lease must suffice


# ---------------------------------------------------------------------- claims


async def read_claim(store: ObjectStore, bucket: str, job: str, attempt: int) -> Claim | None:
    """The claim that stands. An object that is not a claim closes the attempt: no start runs it."""
    stored = await _read(store, bucket, claim_key(job, attempt))
    try:
        return None if stored is None else Claim.from_json(stored.body or b"")
    except (ValueError, RecursionError):
        return Claim(job_id=job, attempt=attempt, request="", claimed_at_s=0.0, ends_at_s=0.0)


async def close_claim(
    store: ObjectStore, bucket: str, job: str, attempt: int, wall_s: float
) -> Claim:
    """Take the claim unless a start has it; returns the one that stands. Idempotent."""
    mine = Claim(job_id=job, attempt=attempt, request="", claimed_at_s=wall_s, ends_at_s=wall_s)
    await put_once(store, bucket, claim_key(job, attempt), mine.to_json())
    standing = await read_claim(store, bucket, job, attempt)
    if standing is None:  # S3 may answer 404 for a moment, or it expired between the two calls
        raise AppError(ErrorCode.UNAVAILABLE, f"the claim of {job}:{attempt} is not readable")
    return standing


# ---------------------------------------------------------------------- envelopes


async def put_envelope(store: ObjectStore, action: do.StageEnvelope, body: bytes) -> str:
    """Store an envelope, whose event starts the function; its key. Idempotent: one stays."""
    function = action.function
    fence = 0 if action.granted is None else action.granted.lease.fence
    key = staging_key(function.name, action.job, action.attempt, fence, action.form)
    await put_once(store, function.intermediate_bucket, key, body)
    return key


async def remove_envelope(store: ObjectStore, action: do.RemoveEnvelope) -> None:
    """Delete the envelope of one attempt, or without a fence all envelopes of the job.

    One that is left expires.
    """
    try:
        await _remove_envelope(store, action)
    except AppError as error:
        logger.warning("%s", error, extra={"event": "envelope_left", "job": action.job})


async def _remove_envelope(store: ObjectStore, action: do.RemoveEnvelope) -> None:
    function, bucket = action.function, action.function.intermediate_bucket
    if action.fence is None:
        prefix = staging_key(function.name, action.job, 0, 0).rpartition("/")[0] + "/"
        keys = [*await store.etags(bucket, prefix)]
    else:
        n, fence = action.attempt, action.fence
        keys = [staging_key(function.name, action.job, n, fence, action.form)]
    for key in keys:
        await store.delete(bucket, key)


async def metadata_of(
    store: ObjectStore, source: InputEvent, stored: StoredObject
) -> dict[str, str]:
    """The metadata of a job's input as it was read, as far as jobs see it; of a step the run's."""
    of = source.step
    if of is None:
        return seen_by_jobs(stored.metadata)
    if not of.run_bucket:
        return {}
    key = run_key(of.run)
    found = await store.get(of.run_bucket, key, bytes_max=RECORD_BYTES_MAX)
    return dict(decode_json_known(Frozen, found.body or b"", key)[0].metadata)


# ---------------------------------------------------------------------- targets

# The object that ends a foreign function's job: its state before the run, the check for a change.
#
# Etag and time of the object are kept in `attempts/<job_id>/<n>/before.json`, written before the
# envelope, so every replica that adopts the job compares with the same ones. A changed object
# becomes the job's one result, which the orchestrator writes on the condition that there is none.
#
# S3 may answer 404 for an object that exists, within about 15 minutes after its bucket's versioning
# was enabled (https://docs.aws.amazon.com/AmazonS3/latest/userguide/Versioning.html). Therefore an
# object that is older than `before.json` is never the result, whatever was noted.

BEFORE_BYTES_MAX = 64 * 1024
#: Times of S3 are whole seconds, of several servers.
TIMES_DIFFER = timedelta(seconds=1)
ABSENT = ""  #: the etag of an object that does not exist


async def note_target(store: ObjectStore, action: do.StageEnvelope) -> None:
    """Keep the state of the target before the function may start. Idempotent."""
    assert action.target is not None, "only a foreign function's job has a target"
    found = await if_present(store.head(action.target.bucket, action.target.key))
    before = {"etag": ABSENT, "last_modified": ""}
    if found is not None:
        before = {"etag": found.etag, "last_modified": found.last_modified}
    body = json.dumps(before).encode()
    key = before_key(action.job, action.attempt)
    await put_once(store, action.function.intermediate_bucket, key, body)


async def committed_target(
    store: ObjectStore, action: do.ReadResult, wall_s: float
) -> Result | None:
    """The result of a job whose target has changed; None before that."""
    assert action.target is not None, "only a foreign function's job has a target"
    key = before_key(action.job, action.attempt)
    noted = await if_present(store.get(action.bucket, key, bytes_max=BEFORE_BYTES_MAX))
    if noted is None:  # not staged yet
        return None
    found = await if_present(store.head(action.target.bucket, action.target.key))
    if found is None or not _is_changed(noted, found):
        return None
    file = {"bucket": action.target.bucket, "key": action.target.key, "size": found.size}
    file |= {"version": found.version_id, "etag": found.etag}
    return Result(
        job_id=action.job,
        state=JobState.SUCCEEDED.value,
        reason=Reason.NONE.value,
        attempt=action.attempt,
        nonce="",
        exit_code=None,
        files=[{**file, "sha256": ""}],
        times={"committed": wall_s},
        log_tail="",
        ended_at_s=wall_s,
        detail="its object was written; a foreign function reports nothing else",
    )


def _is_changed(noted: StoredObject, found: StoredObject) -> bool:
    before = json.loads(noted.body or b"{}")
    same_time = before.get("last_modified") == found.last_modified
    if found.etag == before.get("etag") and same_time:
        return False
    written, staged = (datetime.fromisoformat(one.last_modified) for one in (found, noted))
    return written >= staged - TIMES_DIFFER

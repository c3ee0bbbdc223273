"""The claim of an attempt without a device (`contract.claim`): read, and closed."""

from __future__ import annotations

from contract.claim import Claim
from contract.keys import claim_key
from corekit.errors import AppError, ErrorCode
from orchgpu.ports import ObjectStore
from orchgpu.replica.actions.results import RECORD_BYTES_MAX, put_once


async def read(store: ObjectStore, bucket: str, job: str, attempt: int) -> Claim | None:
    """The claim that stands. An object that is not a claim closes the attempt: no start runs it."""
    try:
        stored = await store.get(bucket, claim_key(job, attempt), bytes_max=RECORD_BYTES_MAX)
    except AppError as error:
        if error.code is ErrorCode.NOT_FOUND:
            return None
        raise
    try:
        return Claim.from_json(stored.body or b"")
    except (ValueError, RecursionError):
        return Claim(job_id=job, attempt=attempt, request="", claimed_at_s=0.0, ends_at_s=0.0)


async def close(store: ObjectStore, bucket: str, job: str, attempt: int, wall_s: float) -> Claim:
    """Take the claim unless a start has it; returns the one that stands. Idempotent."""
    mine = Claim(job_id=job, attempt=attempt, request="", claimed_at_s=wall_s, ends_at_s=wall_s)
    await put_once(store, bucket, claim_key(job, attempt), mine.to_json())
    standing = await read(store, bucket, job, attempt)
    if standing is None:  # S3 may answer 404 for a moment, or it expired between the two calls
        raise AppError(ErrorCode.UNAVAILABLE, f"the claim of {job}:{attempt} is not readable")
    return standing

"""The object that ends a foreign function's job: its etag before the run, the check for a change.

The etag is kept in `attempts/<job_id>/<n>/before.json`, written before the envelope, so every
replica that adopts the job compares with the same etag. A changed object becomes the job's one
result, which the orchestrator writes on the condition that there is none.
"""

from __future__ import annotations

import json

from contract.keys import before_key
from contract.result import Result
from contract.states import JobState, Reason
from corekit.errors import AppError, ErrorCode
from orchgpu.actions.results import put_once
from orchgpu.core import actions as do
from orchgpu.core.target import Target
from orchgpu.ports import ObjectStore, StoredObject

BEFORE_BYTES_MAX = 64 * 1024
ABSENT = ""  #: the etag of an object that does not exist


async def note_etag(store: ObjectStore, action: do.StageEnvelope) -> None:
    """Keep the etag of the target before the function may start. Idempotent."""
    assert action.target is not None, "only a foreign function's job has a target"
    found = await _head(store, action.target)
    body = json.dumps({"etag": ABSENT if found is None else found.etag}).encode()
    key = before_key(action.job, action.attempt)
    await put_once(store, action.function.intermediate_bucket, key, body)


async def committed(store: ObjectStore, action: do.ReadResult, wall_s: float) -> Result | None:
    """The result of a job whose target has changed; None before that."""
    assert action.target is not None, "only a foreign function's job has a target"
    key = before_key(action.job, action.attempt)
    try:
        noted = await store.get(action.bucket, key, bytes_max=BEFORE_BYTES_MAX)
    except AppError as error:
        if error.code is ErrorCode.NOT_FOUND:  # not staged yet
            return None
        raise
    found = await _head(store, action.target)
    if found is None or found.etag == json.loads(noted.body or b"{}").get("etag"):
        return None
    file = {"bucket": action.target.bucket, "key": action.target.key, "size": found.size}
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


async def _head(store: ObjectStore, target: Target) -> StoredObject | None:
    try:
        return await store.head(target.bucket, target.key)
    except AppError as error:
        if error.code is ErrorCode.NOT_FOUND:
            return None
        raise

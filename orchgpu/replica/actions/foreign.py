"""The object that ends a foreign function's job: its state before the run, the check for a change.

Etag and time of the object are kept in `attempts/<job_id>/<n>/before.json`, written before the
envelope, so every replica that adopts the job compares with the same ones. A changed object becomes
the job's one result, which the orchestrator writes on the condition that there is none.

S3 may answer 404 for an object that exists, within about 15 minutes after its bucket's versioning
was enabled (https://docs.aws.amazon.com/AmazonS3/latest/userguide/Versioning.html). Therefore an
object that is older than `before.json` is never the result, whatever was noted.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from contract.keys import before_key
from contract.result import Result
from contract.states import JobState, Reason
from orchgpu.core import actions as do
from orchgpu.ports import ObjectStore, StoredObject, if_present
from orchgpu.replica.actions.objects import put_once

BEFORE_BYTES_MAX = 64 * 1024
#: Times of S3 are whole seconds, of several servers.
TIMES_DIFFER = timedelta(seconds=1)
ABSENT = ""  #: the etag of an object that does not exist


async def note_before(store: ObjectStore, action: do.StageEnvelope) -> None:
    """Keep the state of the target before the function may start. Idempotent."""
    assert action.target is not None, "only a foreign function's job has a target"
    found = await if_present(store.head(action.target.bucket, action.target.key))
    before = {"etag": ABSENT, "last_modified": ""}
    if found is not None:
        before = {"etag": found.etag, "last_modified": found.last_modified}
    body = json.dumps(before).encode()
    key = before_key(action.job, action.attempt)
    await put_once(store, action.function.intermediate_bucket, key, body)


async def committed(store: ObjectStore, action: do.ReadResult, wall_s: float) -> Result | None:
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

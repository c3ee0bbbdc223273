"""Envelopes in the intermediate bucket: stored under one key per attempt, removed after it."""

from __future__ import annotations

from contract.keys import staging_key
from orchgpu.core import actions as do
from orchgpu.ports import ObjectStore
from orchgpu.replica.actions.results import put_once


async def put(store: ObjectStore, action: do.StageEnvelope, body: bytes) -> str:
    """Store an envelope, whose event starts the function; its key. Idempotent: one stays."""
    function = action.function
    fence = 0 if action.granted is None else action.granted.lease.fence
    key = staging_key(function.name, action.job, action.attempt, fence, function.envelope_form)
    await put_once(store, function.intermediate_bucket, key, body)
    return key


async def remove(store: ObjectStore, action: do.RemoveEnvelope) -> None:
    """Delete the envelope of one attempt, or without a fence all envelopes of the job."""
    function, bucket = action.function, action.function.intermediate_bucket
    if action.fence is None:
        prefix = staging_key(function.name, action.job, 0, 0).rpartition("/")[0] + "/"
        keys = [*await store.etags(bucket, prefix)]
    else:
        n, fence = action.attempt, action.fence
        keys = [staging_key(function.name, action.job, n, fence, function.envelope_form)]
    for key in keys:
        await store.delete(bucket, key)

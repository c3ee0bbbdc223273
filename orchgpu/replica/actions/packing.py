"""Builds the envelope of one attempt: the zip or tar.gz that starts the function."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping

from contract import envelope
from orchgpu.core import actions as do
from orchgpu.core.provenance import provenance_of
from orchgpu.core.routing import InputEvent
from orchgpu.ports import StoredObject

#: A fixed time makes the envelope of an attempt byte for byte the same on every replica.
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
PACK_INLINE_BYTES = 256 * 1024  #: a larger envelope is packed in a thread
NAME_BYTES_MAX = 200  #: of a local file name; file systems stop at 255


async def packed(
    action: do.StageEnvelope,
    stored: StoredObject,
    environment: Mapping[str, object] | None,
    **times: float,
) -> bytes:
    """As `pack`; a large envelope off the event loop."""
    if stored.body is None or len(stored.body) <= PACK_INLINE_BYTES:
        return pack(action, stored, environment, **times)
    return await asyncio.to_thread(pack, action, stored, environment, **times)


def pack(
    action: do.StageEnvelope,
    stored: StoredObject,
    environment: Mapping[str, object] | None,
    *,
    staged_at_s: float,
    connect_by_s: float,
) -> bytes:
    """The envelope's bytes. The input travels inside when `stored` has its body.

    `environment`: None for an attempt without a device.
    """
    job = _job(action, stored, staged_at_s, connect_by_s)
    entries = {envelope.JOB_NAME: job.to_json()}
    if environment is not None:
        entries[envelope.ENV_NAME] = json.dumps(environment).encode()
    if stored.body is not None:
        entries[envelope.INPUT_FOLDER + local_name(action.input.key)] = stored.body
    return _FORMATS[action.form](entries)


def _zip(entries: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in entries.items():
            archive.writestr(zipfile.ZipInfo(name, _ZIP_TIME), data)
    return buffer.getvalue()


def _tar_gz(entries: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=1, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, data in entries.items():
            info = tarfile.TarInfo(name)  # of 1970, without an owner
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


_FORMATS = {"zip": _zip, "tar.gz": _tar_gz}


def _job(
    action: do.StageEnvelope, stored: StoredObject, staged_at_s: float, connect_by_s: float
) -> envelope.Job:
    function = action.function
    return envelope.Job(
        job_id=action.job,
        attempt=action.attempt,
        fence=0 if action.granted is None else action.granted.lease.fence,
        function=function.name,
        input_bucket=action.input.bucket,
        input_key=action.input.key,
        input_version=action.input.version_id,
        input_etag=stored.etag,
        input_size=stored.size,
        input_inline=stored.body is not None,
        event=action.input.as_s3_event(),
        outputs=[
            {
                "bucket": output.bucket,
                "prefix": output.prefix,
                "suffix": list(output.suffixes),
                "filter": list(output.name_prefixes),
            }
            for output in function.outputs
        ],
        intermediate_bucket=function.intermediate_bucket,
        staged_at_s=staged_at_s,
        connect_by_s=connect_by_s,
        replace_etag=action.replace_etag,
        variables=dict(function.variables),
        traceparent=action.traceparent or None,
        provenance=provenance_of(
            function, action.input, action.granted, stored.etag, stored.metadata, action.place
        ),
        run=_run(action.input),
        cost=None if action.cost is None else dict(action.cost),
        metadata=dict(stored.metadata) or None,
    )


def _run(source: InputEvent) -> dict[str, object] | None:
    of = source.step
    if of is None:
        return None
    return {
        "id": of.run,
        "workflow": of.workflow,
        "step": of.step,
        "feeder": of.feeder,
        "lists_files": source.lists_files,
    }


def local_name(key: str) -> str:
    """The last part of a key as a safe local file name; never empty, `.` or `..`."""
    name = key.rsplit("/", 1)[-1]
    name = "".join("_" if c in "\\:" or ord(c) < 32 or ord(c) == 127 else c for c in name)
    encoded = name.encode()[-NAME_BYTES_MAX:]
    name = encoded.decode(errors="ignore")
    return name if name.strip(". ") else "input"

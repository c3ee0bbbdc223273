"""Endpoints of functions: the job that opens one, and the way to its run."""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
import zipfile
from pathlib import Path

from contract.envelope import ENV_NAME
from contract.keys import parse_staging_key
from corekit.errors import AppError, ErrorCode, invalid
from orchgpu.core.function import Function
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.uploaded import Submitted
from remote_gpu.wire.connection import Access, parse_access
from remote_gpu.wire.errors import WireError


def open_endpoint(cloud: JobCloud, function: Function, id_: str) -> Submitted:
    """Store the input whose job answers calls; repeated with an `id_`, it is the same job."""
    suffix = function.input_suffixes[0] if function.input_suffixes else ""
    with tempfile.TemporaryDirectory(prefix="orchgpu-endpoint-") as folder:
        file = Path(folder) / f"endpoint-{id_}{suffix}"
        file.write_text("This input opens an endpoint.\n")
        return cloud.submit_once(function, file, opens=True)


def access_of(cloud: JobCloud, function: Function, job: str) -> Access | None:
    """The access to the lease of a job's newest attempt; None: it has no envelope, or no device.

    The envelope holds the lease's secret, and exists as long as the attempt.
    """
    bucket, prefix = function.intermediate_bucket, f"staging/{function.name}/{job}/"
    staged = (parse_staging_key(entry.key) for entry in cloud.objects(bucket, prefix))
    newest = max((one for one in staged if one is not None), key=lambda one: one.n, default=None)
    if newest is None:
        return None
    key = f"{prefix}{newest.n}.{newest.fence}.{newest.form}"
    try:
        body = cloud.services.read_object(bucket, key)[0]
    except AppError as error:
        if error.code is ErrorCode.NOT_FOUND:
            return None  # the attempt has ended
        raise
    try:
        environment = _entry(body, newest.form)
        return None if environment is None else parse_access(environment["connection"])
    except (WireError, ValueError, KeyError, TypeError, OSError, zipfile.BadZipFile) as error:
        raise invalid(f"the envelope s3://{bucket}/{key} is not readable: {error}") from None


def _entry(envelope: bytes, form: str) -> dict[str, object] | None:
    """env.json of an envelope; None where it has none. Raises what the formats' modules raise."""
    file = io.BytesIO(envelope)
    if form == "zip":
        with zipfile.ZipFile(file) as archive:
            found = archive.read(ENV_NAME) if ENV_NAME in archive.namelist() else None
    else:
        with tarfile.open(fileobj=file, mode="r:gz") as tar:
            member = tar.extractfile(ENV_NAME) if ENV_NAME in tar.getnames() else None
            found = None if member is None else member.read()
    value = None if found is None else json.loads(found)
    return value if isinstance(value, dict) else None

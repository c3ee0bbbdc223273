"""The envelope of an attempt: its job, and the access to the device."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Self

from contract.envelope import ENV_NAME, INPUT_FOLDER, JOB_NAME, Job
from contract.record import JsonObject
from lambda_functions.gpu_runner.envelope import archive
from lambda_functions.gpu_runner.errors import EnvelopeError
from lambda_functions.gpu_runner.storage.s3 import CHUNK_BYTES, S3, s3_errors

#: Of an input inside the envelope; a larger one is sent by reference.
INPUT_BYTES_MAX = 16 * 2**20
#: Of job.json and env.json, which hold an event, outputs and variables: Lambda's payload limit.
JSON_BYTES_MAX = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """env.json: the access to the granted device."""

    middleware: str
    connection: JsonObject  #: the argument of `remote_gpu.client.Session.open`
    variables: Mapping[str, str]  #: for the middleware's own client; not yet checked


class Envelope:
    """An open envelope. `job` and `grant` are read at once, the input on demand.

    `grant` is None for an attempt without a device.
    """

    def __init__(self, file: IO[bytes], form: str = "zip") -> None:
        """Owns `file` from now on. Raises EnvelopeError."""
        self._file = file
        self._archive = archive.opened(file, form)
        try:
            self.job = Job.from_json(self._small(JOB_NAME))
            self.grant = _grant(self._small(ENV_NAME)) if self.job.fence else None
        except (ValueError, RecursionError) as error:  # JSON may nest deeper than Python reads
            self._archive.close()
            raise EnvelopeError(str(error)) from None
        except EnvelopeError:
            self._archive.close()
            raise

    def save_input(self, target: Path, seen: Callable[[bytes], object] = bool) -> int:
        """Write the input inside the envelope to `target`; returns its size in bytes.

        `seen` gets its bytes too.

        Raises EnvelopeError when there is none, or it is not the one that job.json describes.
        """
        names = [name for name in self._archive.names if name.startswith(INPUT_FOLDER)]
        if not names:
            raise EnvelopeError(f"no {INPUT_FOLDER}<name>, but job.json has input_inline")
        size = 0
        with target.open("wb") as file:
            for chunk in self._archive.chunks(names[0], INPUT_BYTES_MAX):
                size += file.write(chunk)
                seen(chunk)
        if size != self.job.input_size:
            raise EnvelopeError(
                f"{names[0]} has {size} bytes, not {self.job.input_size} as in job.json"
            )
        return size

    def _small(self, name: str) -> bytes:
        if name not in self._archive.names:
            raise EnvelopeError(f"no {name}")
        return b"".join(self._archive.chunks(name, JSON_BYTES_MAX))

    def close(self) -> None:
        """Free the temporary file. Safe to repeat."""
        self._archive.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def fetch(s3: S3, bucket: str, key: str, form: str) -> Envelope:
    """Read the envelope at `key`, within bounds; `form` is the one in its key.

    Raises StorageError (404: withdrawn) and EnvelopeError.
    """
    file = SpooledTemporaryFile(max_size=archive.SPOOL_BYTES)  # noqa: SIM115 - the envelope owns it
    try:
        with s3_errors(f"read envelope s3://{bucket}/{key}"):
            body = s3.get_object(Bucket=bucket, Key=key)["Body"]
            size = 0
            while chunk := body.read(CHUNK_BYTES):
                size += file.write(chunk)
                if size > archive.ARCHIVE_BYTES_MAX:
                    raise EnvelopeError(f"{key}: larger than {archive.ARCHIVE_BYTES_MAX} bytes")
        return Envelope(file, form)
    except EnvelopeError as error:
        file.close()
        raise EnvelopeError(f"envelope s3://{bucket}/{key}: {error}") from None
    except BaseException:
        file.close()
        raise


def _grant(data: bytes) -> Grant:
    value = json.loads(data)
    if not isinstance(value, dict) or not isinstance(value.get("connection"), dict):
        raise EnvelopeError(f"{ENV_NAME}: no connection")
    variables = value.get("variables") or {}
    if not isinstance(variables, dict) or not all(isinstance(v, str) for v in variables.values()):
        raise EnvelopeError(f"{ENV_NAME}: variables must map names to strings")
    return Grant(
        middleware=str(value.get("middleware", "")),
        connection=value["connection"],
        variables=variables,
    )

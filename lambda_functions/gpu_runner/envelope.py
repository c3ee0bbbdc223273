"""Opens the envelope of an attempt without trusting it.

Whoever can write to the intermediate bucket can put any zip there, so nothing that a zip says is
believed: entries are bounded before `zipfile` parses them, names are compared with the three that
an envelope has, sizes are counted while reading, and nothing is ever extracted by its own name.
"""

from __future__ import annotations

import json
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import IO, Any, Self

from contract.envelope import ENV_NAME, INPUT_FOLDER, JOB_NAME, Job
from lambda_functions.gpu_runner.errors import EnvelopeError
from lambda_functions.gpu_runner.storage import CHUNK_BYTES, S3, s3_errors

#: Inline inputs end at 8 MiB (the budget's inline_input_bytes_max); as much again is slack.
ENVELOPE_BYTES_MAX = 16 * 2**20
#: The input as it comes out of the zip; a larger one travels by reference.
INPUT_BYTES_MAX = 16 * 2**20
#: job.json and env.json hold an S3 event, outputs and variables: Lambda's own payload limit.
JSON_BYTES_MAX = 2**20
#: Deflate cannot expand more than 1,032:1, so more means entries that share their data.
RATIO_MAX = 1100
#: job.json, env.json, one input.
ENTRIES_MAX = 3
#: Central directory of three entries: 46 bytes, a name of at most 1,024 and extra fields each.
DIRECTORY_BYTES_MAX = 8192
#: Up to here an envelope never touches the disk.
SPOOL_BYTES = 2**20

_END = struct.Struct("<4s4H2LH")
_ENCRYPTED = 0x1


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """env.json: how the granted device is reached."""

    middleware: str
    connection: Mapping[str, Any]  #: what `remote_gpu.client` opens the session with
    variables: Mapping[str, str]  #: for the middleware's own client; not yet filtered


class Envelope:
    """An open envelope. `job` and `grant` are read at once, the input when it is wanted."""

    def __init__(self, file: IO[bytes]) -> None:
        """Takes `file` over. Raises EnvelopeError."""
        self._file = file
        self._zip = _open_zip(file)
        self._entries = _entries(self._zip)
        try:
            self.job = Job.from_json(self._small(JOB_NAME))
            self.grant = _grant(self._small(ENV_NAME))
        except ValueError as error:
            raise EnvelopeError(str(error)) from None

    def save_input(self, target: Path) -> int:
        """Write the input that lies inside to `target`; returns its size in bytes.

        Raises EnvelopeError when there is none, or it is not the one that job.json describes.
        """
        names = [name for name in self._entries if name.startswith(INPUT_FOLDER)]
        if not names:
            raise EnvelopeError(f"no {INPUT_FOLDER}<name> in it, and job.json says it is inline")
        size = 0
        with target.open("wb") as file:
            for chunk in self._chunks(self._entries[names[0]], INPUT_BYTES_MAX):
                size += file.write(chunk)
        if size != self.job.input_size:
            raise EnvelopeError(
                f"{names[0]} holds {size} bytes, job.json says {self.job.input_size}"
            )
        return size

    def _small(self, name: str) -> bytes:
        if name not in self._entries:
            raise EnvelopeError(f"no {name} in it")
        return b"".join(self._chunks(self._entries[name], JSON_BYTES_MAX))

    def _chunks(self, info: zipfile.ZipInfo, bytes_max: int) -> Iterator[bytes]:
        """The entry's bytes, counted while they are read; the checksum is verified at the end."""
        size = 0
        ratio_bytes_max = max(info.compress_size, 1) * RATIO_MAX
        try:
            with self._zip.open(info) as entry:
                while chunk := entry.read(CHUNK_BYTES):
                    size += len(chunk)
                    if size > min(bytes_max, ratio_bytes_max):
                        raise EnvelopeError(f"{info.filename} is too large: over {size} bytes")
                    yield chunk
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError) as error:
            raise EnvelopeError(f"{info.filename} cannot be read: {error}") from None

    def close(self) -> None:
        """Free the temporary file. Safe to repeat."""
        self._zip.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def fetch(s3: S3, bucket: str, key: str) -> Envelope:
    """Read the envelope at `key`, bounded.

    Raises StorageError (404: withdrawn) and EnvelopeError.
    """
    file = SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115 - the envelope owns it
    try:
        with s3_errors(f"read envelope s3://{bucket}/{key}"):
            body = s3.get_object(Bucket=bucket, Key=key)["Body"]
            size = 0
            while chunk := body.read(CHUNK_BYTES):
                size += file.write(chunk)
                if size > ENVELOPE_BYTES_MAX:
                    raise EnvelopeError(f"{key}: larger than {ENVELOPE_BYTES_MAX} bytes")
        return Envelope(file)
    except EnvelopeError as error:
        file.close()
        raise EnvelopeError(f"envelope s3://{bucket}/{key}: {error}") from None
    except BaseException:
        file.close()
        raise


def _open_zip(file: IO[bytes]) -> zipfile.ZipFile:
    """A ZipFile whose directory was bounded before it was parsed."""
    size = file.seek(0, 2)
    tail_bytes = min(size, _END.size + 20)  # with the place of a zip64 locator
    file.seek(size - tail_bytes)
    tail = file.read(tail_bytes)
    end = tail[-_END.size :]
    if len(end) < _END.size or end[:4] != b"PK\x05\x06":
        raise EnvelopeError("not a zip file, or one with a comment")
    if tail.startswith(b"PK\x06\x07"):
        raise EnvelopeError("zip64 archives are not envelopes")
    *_, entries, directory_bytes, _offset, _comment = _END.unpack(end)
    if entries > ENTRIES_MAX or directory_bytes > DIRECTORY_BYTES_MAX:
        raise EnvelopeError(f"{entries} entries in {directory_bytes} bytes of directory: too many")
    try:
        return zipfile.ZipFile(file)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
        raise EnvelopeError(f"not a readable zip: {error}") from None


def _entries(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    found: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        _check_entry(info)
        if info.filename in found:
            raise EnvelopeError(f"{info.filename} is in it twice")
        found[info.filename] = info
    if sum(name.startswith(INPUT_FOLDER) for name in found) > 1:
        raise EnvelopeError("more than one input in it")
    return found


def _check_entry(info: zipfile.ZipInfo) -> None:
    name = info.orig_filename  # as written: zipfile cuts `filename` at a NUL
    known = name in (JOB_NAME, ENV_NAME)
    inner = name.removeprefix(INPUT_FOLDER)
    plain = inner not in ("", ".", "..") and not any(c in inner for c in "/\\\0")
    if not known and not (name.startswith(INPUT_FOLDER) and plain):
        raise EnvelopeError(f"unexpected entry {name!r}")
    mode = info.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        raise EnvelopeError(f"{name!r} is not a plain file")
    if info.flag_bits & _ENCRYPTED:
        raise EnvelopeError(f"{name!r} is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise EnvelopeError(f"{name!r} is packed by a method that envelopes do not use")


def _grant(data: bytes) -> Grant:
    value = json.loads(data)
    if not isinstance(value, dict) or not isinstance(value.get("connection"), dict):
        raise EnvelopeError(f"{ENV_NAME}: no connection in it")
    variables = value.get("variables") or {}
    if not isinstance(variables, dict) or not all(isinstance(v, str) for v in variables.values()):
        raise EnvelopeError(f"{ENV_NAME}: variables must map names to strings")
    return Grant(
        middleware=str(value.get("middleware", "")),
        connection=value["connection"],
        variables=variables,
    )

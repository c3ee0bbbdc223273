"""The envelope of an attempt: its job, the access to the device, and the input; read without trust.

It is a zip or a gzip-compressed tar. A client with write access to the intermediate bucket can put
any object there. So the directory of an archive is bounded before it is parsed, names are compared
with the three of an envelope, sizes are counted while reading, and nothing is extracted under its
own name.
"""

from __future__ import annotations

import gzip
import json
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Generic, Self, TypeVar

from contract.envelope import ENV_NAME, INPUT_FOLDER, JOB_NAME, Job
from contract.record import JsonObject
from lambda_functions.gpu_runner.errors import EnvelopeError
from lambda_functions.gpu_runner.storage.s3 import CHUNK_BYTES, S3, s3_errors

#: Of an input inside the envelope; a larger one is sent by reference.
INPUT_BYTES_MAX = 16 * 2**20
#: Of job.json and env.json, which hold an event, outputs and variables: Lambda's payload limit.
JSON_BYTES_MAX = 2**20
#: Inline inputs end at 8 MiB (the budget's inline_input_bytes_max); as much again is slack.
ARCHIVE_BYTES_MAX = 16 * 2**20
#: Deflate cannot expand more than 1,032:1, so more means entries that share their data.
RATIO_MAX = 1100
#: job.json, env.json, one input.
ENTRIES_MAX = 3
#: Central directory of three entries: 46 bytes, a name of at most 1,024 and extra fields each.
DIRECTORY_BYTES_MAX = 8192
#: A tar once it is decompressed: the input, both JSON files, headers and padding.
UNPACKED_BYTES_MAX = ARCHIVE_BYTES_MAX + 4 * 2**20
#: Larger data goes to the disk.
SPOOL_BYTES = 2**20

_END = struct.Struct("<4s4H2LH")
_ENCRYPTED = 0x1
#: Errors of the libraries on malformed data.
_UNREADABLE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    EOFError,
    NotImplementedError,
    ValueError,
    OSError,
)
_Info = TypeVar("_Info")


class _Archive(Generic[_Info]):
    """The entries of an envelope by their distinct names, each one valid there."""

    def __init__(self) -> None:
        self.entries: dict[str, _Info] = {}

    def add(self, name: str, written: str, entry: _Info) -> None:
        """`written`: the name as the archive has it. Raises EnvelopeError."""
        _check_name(written)
        if name in self.entries:
            raise EnvelopeError(f"{name} occurs twice")
        self.entries[name] = entry
        if len(self.entries) > ENTRIES_MAX:
            raise EnvelopeError(f"over {ENTRIES_MAX} entries: too many")
        if sum(known.startswith(INPUT_FOLDER) for known in self.entries) > 1:
            raise EnvelopeError("more than one input")

    def chunks(self, name: str, bytes_max: int) -> Iterator[bytes]:
        """The bytes of an entry, counted while they are read. Raises EnvelopeError."""
        size = 0
        try:
            with self._opened(name) as entry:
                while chunk := entry.read(CHUNK_BYTES):
                    size += len(chunk)
                    if size > bytes_max:
                        raise EnvelopeError(f"{name} is too large: over {size} bytes")
                    yield chunk
        except _UNREADABLE as error:
            raise EnvelopeError(f"{name} cannot be read: {error}") from None
        if size != self._size(name):
            raise EnvelopeError(f"{name} is cut: {size} of {self._size(name)} bytes")

    def close(self) -> None:
        """Free temporary files. Safe to repeat."""
        raise NotImplementedError

    def _opened(self, name: str) -> IO[bytes]:
        raise NotImplementedError

    def _size(self, name: str) -> int:
        raise NotImplementedError


class _Zip(_Archive[zipfile.ZipInfo]):
    """A zip; its directory is bounded before `zipfile` parses it."""

    def __init__(self, file: IO[bytes]) -> None:
        """Raises EnvelopeError."""
        super().__init__()
        self._zip = _open_zip(file)
        for info in self._zip.infolist():
            # as written: zipfile cuts `filename` at a NUL
            self.add(info.filename, info.orig_filename, info)
            _check_zip_entry(info)

    def close(self) -> None:
        self._zip.close()

    def _opened(self, name: str) -> IO[bytes]:
        return self._zip.open(self.entries[name])

    def _size(self, name: str) -> int:
        return self.entries[name].file_size

    def chunks(self, name: str, bytes_max: int) -> Iterator[bytes]:
        compressed = max(self.entries[name].compress_size, 1)
        return super().chunks(name, min(bytes_max, compressed * RATIO_MAX))


class _Tar(_Archive[tarfile.TarInfo]):
    """A tar in gzip; decompressed into a bounded temporary file before `tarfile` parses it."""

    def __init__(self, file: IO[bytes]) -> None:
        """Raises EnvelopeError."""
        super().__init__()
        self._plain = _decompressed(file)
        try:
            self._tar = tarfile.open(fileobj=self._plain, mode="r:")  # noqa: SIM115 - kept open
            for info in self._tar:
                self.add(info.name, info.name, info)
                if not info.isreg() or info.issparse():
                    raise EnvelopeError(f"{info.name!r} is not a plain file")
        except _UNREADABLE as error:
            self._plain.close()
            raise EnvelopeError(f"not a readable tar: {error}") from None
        except EnvelopeError:
            self._plain.close()
            raise

    def close(self) -> None:
        self._tar.close()
        self._plain.close()

    def _opened(self, name: str) -> IO[bytes]:
        entry = self._tar.extractfile(self.entries[name])
        assert entry is not None, "only plain files are entries"
        return entry

    def _size(self, name: str) -> int:
        return self.entries[name].size


#: Archives by the form that the key of an envelope names.
_FORMS: Mapping[str, Callable[[IO[bytes]], _Zip | _Tar]] = {"zip": _Zip, "tar.gz": _Tar}


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
        self._archive = _FORMS[form](file)
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
        names = [name for name in self._archive.entries if name.startswith(INPUT_FOLDER)]
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
        if name not in self._archive.entries:
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
    file = SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115 - the envelope owns it
    try:
        with s3_errors(f"read envelope s3://{bucket}/{key}"):
            body = s3.get_object(Bucket=bucket, Key=key)["Body"]
            size = 0
            while chunk := body.read(CHUNK_BYTES):
                size += file.write(chunk)
                if size > ARCHIVE_BYTES_MAX:
                    raise EnvelopeError(f"{key}: larger than {ARCHIVE_BYTES_MAX} bytes")
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


def _decompressed(file: IO[bytes]) -> IO[bytes]:
    plain = SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115 - the archive owns it
    try:
        file.seek(0)
        size = 0
        with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
            while chunk := unpacked.read(CHUNK_BYTES):
                size += plain.write(chunk)
                if size > UNPACKED_BYTES_MAX:
                    raise EnvelopeError(f"larger than {UNPACKED_BYTES_MAX} bytes unpacked")
        plain.seek(0)
        return plain
    except _UNREADABLE as error:
        plain.close()
        raise EnvelopeError(f"not a readable tar.gz: {error}") from None
    except EnvelopeError:
        plain.close()
        raise


def _open_zip(file: IO[bytes]) -> zipfile.ZipFile:
    size = file.seek(0, 2)
    tail_bytes = min(size, _END.size + 20)  # 20: a zip64 locator
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
    except _UNREADABLE as error:
        raise EnvelopeError(f"not a readable zip: {error}") from None


def _check_name(name: str) -> None:
    inner = name.removeprefix(INPUT_FOLDER)
    plain = inner not in ("", ".", "..") and not any(c in inner for c in "/\\\0")
    if name not in (JOB_NAME, ENV_NAME) and not (name.startswith(INPUT_FOLDER) and plain):
        raise EnvelopeError(f"unexpected entry {name!r}")


def _check_zip_entry(info: zipfile.ZipInfo) -> None:
    name = info.filename
    if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
        raise EnvelopeError(f"{name!r} is not a plain file")
    if info.flag_bits & _ENCRYPTED:
        raise EnvelopeError(f"{name!r} is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise EnvelopeError(f"{name!r} has an unsupported compression method")

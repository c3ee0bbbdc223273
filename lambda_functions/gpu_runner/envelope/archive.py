"""The two forms of an envelope, read without trust: a zip, or a gzip-compressed tar.

A client with write access to the intermediate bucket can put any object there. So the directory of
an archive is bounded before it is parsed, names are compared with the three of an envelope, sizes
are counted while reading, and nothing is extracted under its own name.
"""

from __future__ import annotations

import gzip
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from tempfile import SpooledTemporaryFile
from typing import IO, Protocol, TypeVar

from contract.envelope import ENV_NAME, INPUT_FOLDER, JOB_NAME
from lambda_functions.gpu_runner.errors import EnvelopeError
from lambda_functions.gpu_runner.storage.s3 import CHUNK_BYTES

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


class Archive(Protocol):
    """An open envelope's entries."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its distinct names, each one valid in an envelope."""
        ...

    def chunks(self, name: str, bytes_max: int) -> Iterator[bytes]:
        """The bytes of an entry, counted while they are read. Raises EnvelopeError."""
        ...

    def close(self) -> None:
        """Free temporary files. Safe to repeat."""
        ...


def opened(file: IO[bytes], form: str) -> Archive:
    """The archive in `file`, by the form that its key names. Raises EnvelopeError."""
    return _FORMS[form](file)


class ZipArchive:
    """A zip; its directory is bounded before `zipfile` parses it."""

    def __init__(self, file: IO[bytes]) -> None:
        """Raises EnvelopeError."""
        self._zip = _open_zip(file)
        self._entries: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            _check_name(info.orig_filename)  # as written: zipfile cuts `filename` at a NUL
            _check_zip_entry(info)
            _add(self._entries, info.filename, info)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def chunks(self, name: str, bytes_max: int) -> Iterator[bytes]:
        """See `Archive`; the checksum is verified at the end."""
        info = self._entries[name]
        bytes_max = min(bytes_max, max(info.compress_size, 1) * RATIO_MAX)
        try:
            with self._zip.open(info) as entry:
                yield from _counted(entry, name, bytes_max)
        except _UNREADABLE as error:
            raise EnvelopeError(f"{name} cannot be read: {error}") from None

    def close(self) -> None:
        self._zip.close()


class TarArchive:
    """A tar in gzip; decompressed into a bounded temporary file before `tarfile` parses it."""

    def __init__(self, file: IO[bytes]) -> None:
        """Raises EnvelopeError."""
        self._plain = _decompressed(file)
        self._entries: dict[str, tarfile.TarInfo] = {}
        try:
            self._tar = tarfile.open(fileobj=self._plain, mode="r:")  # noqa: SIM115 - kept open
            for info in self._tar:
                _check_name(info.name)
                if not info.isreg() or info.issparse():
                    raise EnvelopeError(f"{info.name!r} is not a plain file")
                _add(self._entries, info.name, info)
        except _UNREADABLE as error:
            self._plain.close()
            raise EnvelopeError(f"not a readable tar: {error}") from None
        except EnvelopeError:
            self._plain.close()
            raise

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def chunks(self, name: str, bytes_max: int) -> Iterator[bytes]:
        """See `Archive`."""
        info = self._entries[name]
        try:
            entry = self._tar.extractfile(info)
            assert entry is not None, "only plain files are entries"
            size = 0
            for chunk in _counted(entry, name, bytes_max):
                size += len(chunk)
                yield chunk
        except _UNREADABLE as error:
            raise EnvelopeError(f"{name} cannot be read: {error}") from None
        if size != info.size:
            raise EnvelopeError(f"{name} is cut: {size} of {info.size} bytes")

    def close(self) -> None:
        self._tar.close()
        self._plain.close()


_FORMS: dict[str, Callable[[IO[bytes]], Archive]] = {"zip": ZipArchive, "tar.gz": TarArchive}


def _counted(entry: IO[bytes], name: str, bytes_max: int) -> Iterator[bytes]:
    size = 0
    while chunk := entry.read(CHUNK_BYTES):
        size += len(chunk)
        if size > bytes_max:
            raise EnvelopeError(f"{name} is too large: over {size} bytes")
        yield chunk


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


def _add(found: dict[str, _Info], name: str, entry: _Info) -> None:
    if name in found:
        raise EnvelopeError(f"{name} occurs twice")
    found[name] = entry
    if len(found) > ENTRIES_MAX:
        raise EnvelopeError(f"over {ENTRIES_MAX} entries: too many")
    if sum(known.startswith(INPUT_FOLDER) for known in found) > 1:
        raise EnvelopeError("more than one input")


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

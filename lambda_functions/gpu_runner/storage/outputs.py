"""The files that a script wrote, their destinations and upload.

An output takes every file that starts with one of `filter` and ends with one of `suffix`, both
tested on its path below TMP_OUTPUT_DIR; an empty list matches all. The key is that path below the
output's prefix, as in SCAR: two jobs whose scripts write the same name write the same key, and the
later one wins. The metadata of each object names the job that wrote it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import IO, BinaryIO, NoReturn

from contract.record import JsonObject
from contract.result import OutputFile
from contract.states import Reason
from lambda_functions.gpu_runner.errors import AttemptFailed, StorageError
from lambda_functions.gpu_runner.sandbox import open_folder, open_plain
from lambda_functions.gpu_runner.storage.s3 import CHUNK_BYTES, S3, s3_errors

#: S3's limit for a key, as UTF-8.
KEY_BYTES_MAX = 1024
#: Larger files are uploaded in parts of this size.
PART_BYTES = 8 * 2**20
#: More files are most likely a script's fault.
FILES_MAX = 10_000
#: Including empty ones, because each is listed.
FOLDERS_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """One output of the function."""

    bucket: str
    prefix: str  #: without slashes at its ends; "" for the whole bucket
    name_prefixes: tuple[str, ...]
    suffixes: tuple[str, ...]

    @classmethod
    def of(cls, value: JsonObject) -> Destination:
        """Read one entry of `contract.envelope.Job.outputs`."""
        return cls(
            bucket=str(value["bucket"]),
            prefix=str(value.get("prefix") or "").strip("/"),
            name_prefixes=tuple(value.get("filter") or ()),
            suffixes=tuple(value.get("suffix") or ()),
        )

    def takes(self, name: str) -> bool:
        """Whether this output takes the file `name`, a path below TMP_OUTPUT_DIR."""
        starts = not self.name_prefixes or name.startswith(self.name_prefixes)
        return starts and (not self.suffixes or name.endswith(self.suffixes))

    def key(self, name: str) -> str:
        """The object key of the file `name`."""
        return f"{self.prefix}/{name}" if self.prefix else name


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that the script wrote."""

    name: str  #: below TMP_OUTPUT_DIR, with slashes
    root: Path  #: the job's folder
    inside: PurePath  #: below `root`, where no link led when it was found

    @property
    def path(self) -> Path:
        return self.root / self.inside

    @contextlib.contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Its content. Raises OSError, also where a link has come since: none is followed."""
        *folders, name = self.inside.parts
        with open_folder(self.root, folders) as folder, open_plain(name, folder) as file:
            if file is None:
                raise OSError(errno.EINVAL, "it is not a plain file")
            yield file


#: A file, and the destinations that take it.
Upload = tuple[WrittenFile, tuple[Destination, ...]]


def find(
    folder: Path, root: Path, *, files_max: int = FILES_MAX, folders_max: int = FOLDERS_MAX
) -> list[WrittenFile]:
    """Every file below `folder`, sorted by name. A link may lead to a file below `root` only.

    Raises AttemptFailed(OUTPUT_ERROR) for a link that is broken or leads out of `root`, and for
    names and numbers of files over a limit, and where `folder` is a link. Sockets, pipes and
    devices are skipped.
    """
    found: list[WrittenFile] = []
    if folder.is_symlink():
        _fail("the output folder is a link in place of a folder; write into the one that was there")
    real_root = root.resolve()
    for path in _walk(folder, folders_max):
        inside = path.relative_to(root)
        if path.is_symlink():
            inside = _target(path, folder, real_root)
        if not stat.S_ISREG(path.stat().st_mode):
            continue
        found.append(WrittenFile(_name(path, folder), root, inside))
        if len(found) > files_max:
            _fail(f"more than {files_max} output files; pack them into one")
    return sorted(found, key=lambda file: file.name)


def upload(
    s3: S3, uploads: Iterable[Upload], metadata: Mapping[str, str], *, pinned: bool = False
) -> Iterator[OutputFile]:
    """Store every file at each of its destinations, one by one.

    The caller may stop after any of them (a lost session). Raises AttemptFailed(OUTPUT_ERROR).
    `pinned`: a file in parts is worth a call more that asks for its version, for a next step.
    """
    for file, destinations in uploads:
        for destination in destinations:
            stored = _store(s3, file, destination, metadata)
            yield _pinned(s3, stored, metadata) if pinned and not stored.etag else stored


def _pinned(s3: S3, stored: OutputFile, metadata: Mapping[str, str]) -> OutputFile:
    """The file with its version, if it is readable, and still the one that was stored."""
    try:
        with s3_errors(f"read s3://{stored.bucket}/{stored.key}"):
            found = s3.head_object(Bucket=stored.bucket, Key=stored.key)
    except StorageError:
        return stored
    if found.get("Metadata") != metadata:
        return stored
    return replace(stored, version=_version_of(found), etag=_etag_of(found))


def _version_of(reply: Mapping[str, object]) -> str | None:
    version = reply.get("VersionId")
    return version if isinstance(version, str) and version not in ("", "null") else None


def _etag_of(reply: Mapping[str, object]) -> str:
    return str(reply.get("ETag") or "").strip('"')


def _walk(folder: Path, folders_max: int) -> Iterator[Path]:
    """Everything but folders. A folder deeper than a key can be long is refused: below it even
    system calls accept no path."""
    pending, count = [""], 0
    while pending:
        place = pending.pop()
        count += 1
        if count > folders_max:
            _fail(f"more than {folders_max} output folders; pack them into one file")
        if len(os.fsencode(place)) > KEY_BYTES_MAX:
            _fail(f"output folders are nested too deeply for a key: {place[:60]!r}…")
        try:
            with os.scandir(folder / place) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(f"{place}{entry.name}/")
                    else:
                        yield Path(entry.path)
        except OSError as error:
            _fail(f"folder {place or '.'!r} cannot be read: {error.strerror}")


def _target(path: Path, folder: Path, real_root: Path) -> Path:
    """The file that a link leads to, below the root."""
    name = path.relative_to(folder)
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):
        _fail(f"output {str(name)!r} is a broken link; remove it")
    if not target.is_relative_to(real_root):
        _fail(f"output {str(name)!r} links to outside of the job's folder; copy the file instead")
    if target.is_dir():
        _fail(f"output {str(name)!r} is a link to a folder; copy the folder instead")
    return target.relative_to(real_root)


def _name(path: Path, folder: Path) -> str:
    name = path.relative_to(folder).as_posix()
    try:
        name.encode()
    except UnicodeEncodeError:
        _fail(f"output {os.fsencode(name)!r} is not a UTF-8 name, which S3 requires; rename it")
    return name


def _store(
    s3: S3, file: WrittenFile, destination: Destination, metadata: Mapping[str, str]
) -> OutputFile:
    bucket, key = destination.bucket, destination.key(file.name)
    if len(key.encode()) > KEY_BYTES_MAX:
        _fail(f"output {file.name!r}: its key is longer than {KEY_BYTES_MAX} bytes")
    try:
        with s3_errors(f"write s3://{bucket}/{key}"):
            return _put(s3, file, bucket, key, dict(metadata))
    except StorageError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"output {file.name!r} cannot be read: {error.strerror}")


def _put(
    s3: S3, written: WrittenFile, bucket: str, key: str, metadata: dict[str, str]
) -> OutputFile:
    """Store a file that no process writes to any more."""
    with written.opened() as file:
        size = os.fstat(file.fileno()).st_size
        if size <= PART_BYTES:
            data = file.read()
            reply = s3.put_object(Bucket=bucket, Key=key, Body=data, Metadata=metadata)
            return OutputFile(
                bucket=bucket,
                key=key,
                size=len(data),
                sha256=hashlib.sha256(data).hexdigest(),
                version=_version_of(reply),
                etag=_etag_of(reply),
            )
        digest = _sha256(file, size)
        file.seek(0)
        s3.upload_fileobj(file, bucket, key, ExtraArgs={"Metadata": metadata})
        return OutputFile(bucket=bucket, key=key, size=size, sha256=digest)


def _sha256(file: IO[bytes], size: int) -> str:
    digest = hashlib.sha256()
    read = 0
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
        read += len(chunk)
    assert read == size, "an output changed its size after the script had ended"
    return digest.hexdigest()


def _fail(detail: str) -> NoReturn:
    raise AttemptFailed(Reason.OUTPUT_ERROR, detail)

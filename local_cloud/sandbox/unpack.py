"""Unpacking a function's zip safely, once per content.

Nothing may leave the folder or be anything but a plain file: absolute names, `..`, links, devices
and repeated names are refused; sizes are counted while reading, never believed from headers.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import tempfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import IO

from corekit.errors import AppError, invalid

UNPACKED_BYTES_MAX = 250 * 2**20  #: Lambda's limit for a zip function with its layers
ENTRIES_MAX = 50_000


def unpack(archive: bytes | Path, folder: Path) -> Path:
    """The folder `folder/<sha256>` with the zip's files; made when it does not exist yet.

    Raises INVALID naming the entry for anything that is not a harmless zip.
    """
    data = archive.read_bytes() if isinstance(archive, Path) else archive
    target = folder / hashlib.sha256(data).hexdigest()
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix="unpacking-", dir=folder))
    try:
        _extract(data, fresh)
        fresh.chmod(0o755)
        try:
            fresh.replace(target)
        except OSError:
            if not target.is_dir():  # another process was faster: the same content
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target


def _extract(data: bytes, folder: Path) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            _check_names(entries)
            left = UNPACKED_BYTES_MAX
            for entry in entries:
                left -= _extract_one(archive, entry, folder, left)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise invalid(f"the code is not a readable zip archive: {error}") from error


def _check_names(entries: list[zipfile.ZipInfo]) -> None:
    if len(entries) > ENTRIES_MAX:
        raise invalid(f"the zip has {len(entries)} entries; {ENTRIES_MAX} are allowed")
    seen: set[str] = set()
    for entry in entries:
        path = PurePosixPath(entry.filename)
        mode = entry.external_attr >> 16
        kind = stat.S_IFMT(mode)
        if path.is_absolute() or ".." in path.parts or "\\" in entry.filename:
            raise _refused(entry, "leaves its folder")
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise _refused(entry, "is not a plain file")
        if str(path) in seen:
            raise _refused(entry, "is there twice")
        seen.add(str(path))


def _extract_one(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path, left: int) -> int:
    target = folder.joinpath(*PurePosixPath(entry.filename).parts)
    if entry.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        return 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(entry) as source, target.open("xb") as out:
        written = _copy(source, out, left)
    executable = (entry.external_attr >> 16) & 0o111
    os.chmod(target, 0o755 if executable else 0o644)  # noqa: PTH101 - not through a link
    return written


def _copy(source: IO[bytes], out: IO[bytes], left: int) -> int:
    written = 0
    while data := source.read(1 << 18):
        written += len(data)
        if written > left:
            raise invalid(f"the zip unpacks to more than {UNPACKED_BYTES_MAX} bytes")
        out.write(data)
    return written


def _refused(entry: zipfile.ZipInfo, why: str) -> AppError:
    return invalid(f"the zip's entry {entry.filename!r} {why}")

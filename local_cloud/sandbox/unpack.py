"""Unpacking a function's zip safely, once per content.

zipfile writes plain files inside its folder alone: it drops the parts of a name that would leave
it, and makes a link a file. Sizes are those that were unpacked, never those of the headers.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import tempfile
import zipfile
from pathlib import Path

from corekit.errors import AppError, invalid

UNPACKED_BYTES_MAX = 250 * 2**20  #: Lambda's limit for a zip function with its layers
ENTRIES_MAX = 50_000


def unpack(archive: bytes | Path, folder: Path) -> Path:
    """The folder `folder/<sha256>` with the zip's files; made when it does not exist yet.

    Raises INVALID for anything that is not a zip of a function's size.
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
            if len(entries) > ENTRIES_MAX:
                raise invalid(f"the zip has {len(entries)} entries; {ENTRIES_MAX} are allowed")
            left = UNPACKED_BYTES_MAX
            for entry in entries:
                if entry.file_size > left:  # more than this is not read: zipfile checks it
                    raise _too_large()
                left -= entry.file_size
                path = Path(archive.extract(entry, folder))
                if not entry.is_dir():
                    executable = (entry.external_attr >> 16) & 0o111
                    path.chmod(0o755 if executable else 0o644)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise invalid(f"the code is not a readable zip archive: {error}") from error


def _too_large() -> AppError:
    return invalid(f"the zip unpacks to more than {UNPACKED_BYTES_MAX} bytes")

"""The code of functions: zips by content, and their files, unpacked safely once.

zipfile writes plain files inside its folder alone: it drops the parts of a name that would leave
it, and makes a link a file. Sizes are those that were unpacked, never those of the headers.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

from corekit.errors import AppError, invalid
from corekit.values import Value
from local_cloud.model.errors import refused

UNPACKED_BYTES_MAX = 250 * 2**20  #: Lambda's limit for a zip function with its layers
ENTRIES_MAX = 50_000


class Code(Value):
    """A stored zip."""

    sha256: str  #: base64, as Lambda shows it
    size: int  #: bytes of the zip


class CodeStore:
    """Zips by content, unpacked on arrival; never deleted, a few per function."""

    def __init__(self, folder: Path) -> None:
        self._zips = folder / "zips"
        self._unpacked = folder / "unpacked"
        self._zips.mkdir(parents=True, exist_ok=True)

    def add(self, data: bytes) -> Code:
        """Store and unpack. Raises InvalidParameterValueException for anything but a good zip."""
        try:
            unpack(data, self._unpacked)
        except AppError as error:
            raise refused("InvalidParameterValueException", error.message) from error
        digest = hashlib.sha256(data).digest()
        path = self.zip_path(digest.hex())
        if not path.exists():
            fresh = path.with_suffix(f".{os.getpid()}.tmp")
            fresh.write_bytes(data)
            fresh.replace(path)
        return Code(sha256=base64.b64encode(digest).decode(), size=len(data))

    def folder(self, sha256: str) -> Path:
        """The unpacked files of a stored zip; unpacked again when they were removed."""
        name = base64.b64decode(sha256).hex()
        folder = self._unpacked / name
        if folder.is_dir():
            return folder
        return unpack(self.zip_path(name).read_bytes(), self._unpacked)

    def zip_path(self, name: str) -> Path:
        """The zip with this sha256 in hexadecimal, which may not exist."""
        return self._zips / f"{name}.zip"


def unpack(data: bytes, folder: Path) -> Path:
    """The folder `folder/<sha256>` with the zip's files; made when it does not exist yet.

    Raises INVALID for anything that is not a zip of a function's size.
    """
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
                    raise invalid(f"the zip unpacks to more than {UNPACKED_BYTES_MAX} bytes")
                left -= entry.file_size
                path = Path(archive.extract(entry, folder))
                if not entry.is_dir():
                    executable = (entry.external_attr >> 16) & 0o111
                    path.chmod(0o755 if executable else 0o644)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise invalid(f"the code is not a readable zip archive: {error}") from error

"""The store of functions' code: zips as they were sent, and their unpacked folders."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

from corekit.errors import AppError
from corekit.values import Value
from local_cloud.model.errors import refused
from local_cloud.sandbox.unpack import unpack


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
        return folder if folder.is_dir() else unpack(self.zip_path(name), self._unpacked)

    def zip_path(self, name: str) -> Path:
        """The zip with this sha256 in hexadecimal, which may not exist."""
        return self._zips / f"{name}.zip"

"""Files that are replaced as a whole: a reader finds the old content or the new one, never half."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path


def replace_json(path: Path, value: Mapping[str, object], *, private: bool = False) -> None:
    """Replace a small JSON file. A `private` one is readable by its owner alone. Raises OSError."""
    text = json.dumps(value, indent=2) + "\n"
    replace_file(path, text.encode(), mode=0o600 if private else 0o666, durable=False)


def replace_file(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Write a file in the place of any other. Raises OSError and leaves the old one then.

    `mode` is that of a new file, without the bits of the umask. `durable`: the file and its name
    are synced, so that both survive a power failure.
    """
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        write_new(new, data, mode=mode, durable=durable)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def write_new(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Write a new file, after removing the leftover of an earlier try. Raises OSError."""
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
        file.write(data)
        file.flush()
        if durable:
            os.fsync(fd)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

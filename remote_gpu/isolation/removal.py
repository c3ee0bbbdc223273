"""Removal of folders that leases filled: of any depth and mode, following no link.

`shutil.rmtree` recurses, and leaves folders that their owner has closed. A tenant could fill the
disk with both.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Collection, Iterator
from pathlib import Path
from stat import S_ISDIR

_CLOSED = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(folder: Path) -> None:
    """Remove a folder; entries that cannot be removed stay. Idempotent, raises nothing."""
    remove_contents(folder)
    with contextlib.suppress(OSError):
        folder.rmdir()


def remove_contents(folder: Path, kept: Collection[str] = ()) -> None:
    """Remove the entries of a folder but `kept`; those that cannot be removed stay."""
    with contextlib.suppress(OSError), _opened(folder) as top:
        left = [name for name in names_in(top) if name not in kept]
        while left:
            with contextlib.suppress(OSError):
                left += _take_apart(left.pop(), top)


def names_in(folder: int) -> list[str]:
    """The names in an open folder. Raises OSError."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def _take_apart(name: str, top: int) -> list[str]:
    """Remove an entry of an open folder; folders in it become entries, with the names returned."""
    if not S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=top)
        return []
    lifted: list[str] = []
    with _opened(name, top) as folder:
        for inner in names_in(folder):
            with contextlib.suppress(OSError):
                if not S_ISDIR(os.stat(inner, dir_fd=folder, follow_symlinks=False).st_mode):
                    os.unlink(inner, dir_fd=folder)
                    continue
                with _opened(inner, folder):  # it may be moved only where it can be written
                    new = secrets.token_hex(16)
                    os.rename(inner, new, src_dir_fd=folder, dst_dir_fd=top)
                    lifted.append(new)
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=top)
    return lifted


@contextlib.contextmanager
def _opened(path: Path | str, above: int | None = None) -> Iterator[int]:
    closed = os.open(path, _CLOSED, dir_fd=above)
    try:
        with contextlib.suppress(PermissionError):  # another user's: as it is
            Path(f"/proc/self/fd/{closed}").chmod(0o700)
    finally:
        os.close(closed)
    descriptor = os.open(path, _FOLDER, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)

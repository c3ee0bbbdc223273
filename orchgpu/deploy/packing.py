"""The files of a package: below the definition's folder, checked and read without following links.

A definition may come from elsewhere; its paths and links must not put a file of the deploying
machine, such as its credentials, into a package that the function's code can publish. A hard link
cannot be distinguished from a file of the folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from corekit.errors import AppError, invalid
from corekit.values import Value

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Without O_NONBLOCK the open of a pipe would wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class File(Value):
    """One file to pack."""

    path: Path  #: as the definition leads to it
    real: Path  #: without links
    size: int  #: bytes, before it is read
    program: bool  #: may be executed


def within(path: Path, root: Path | None) -> File:
    """The file of a path. Raises INVALID when it leads out of `root`, or is not a file.

    `root` None: it may be anywhere.
    """
    try:
        real = path.resolve(strict=True)
        _check_within(path, real, root)
        status = real.stat()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise _unreadable(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise invalid(f"{path} is not a file: a package holds files")
    program = os.access(real, os.X_OK)
    return File(path=path, real=real, size=status.st_size, program=program)


def below(folder: Path, root: Path | None) -> Iterator[File]:
    """The files below a folder, sorted; links to folders within `root` are not followed.

    Raises INVALID as `within` does.
    """
    _check_within(folder, folder.resolve(), root)
    for inner, folders, names in os.walk(folder):
        folders.sort()
        for name in folders:
            path = Path(inner, name)
            if path.is_symlink():
                _check_within(path, path.resolve(), root)
        for name in sorted(names):
            yield within(Path(inner, name), root)


def read(file: File, root: Path | None, limit: int) -> bytes:
    """The content, at most `limit` bytes.

    Raises INVALID when the path became another file, or its size changes.
    """
    try:
        with os.fdopen(opened(file.real, root), "rb") as source:
            status = os.fstat(source.fileno())
            content = source.read(limit + 1) if stat.S_ISREG(status.st_mode) else b""
    except OSError as error:
        raise invalid(f"{file.path} changed while it was packed: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode) or len(content) != file.size:
        raise invalid(f"{file.path} changed while it was read: deploy again")
    return content


def opened(path: Path, root: Path | None) -> int:
    """A descriptor of a path without links; below `root` no part of it is followed if it became
    one."""
    if root is None:
        return os.open(path, _FILE)
    *folders, name = path.relative_to(root).parts
    descriptor = os.open(root, _FOLDER)
    try:
        for folder in folders:
            inner = os.open(folder, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        return os.open(name, _FILE, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def _check_within(path: Path, real: Path, root: Path | None) -> None:
    if root is not None and not real.is_relative_to(root):
        raise invalid(
            f"{path} leads out of the definition's folder, to {real}: copy it into the folder, or"
            " pack it with --allow-outside"
        )


def _unreadable(path: Path, error: Exception) -> AppError:
    reason = error.strerror if isinstance(error, OSError) else "a loop of links"
    return invalid(f"{path}: {reason}")

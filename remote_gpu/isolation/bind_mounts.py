"""Bind mounts that make files below closed folders reachable, for one process tree.

A worker with a user of its own must reach Python, libraries and data in any folder, also below one
that is closed to it, such as /root or the host's state. Over each closed folder an empty one is
mounted that any user may pass, and the needed files are bind-mounted in it. The rest is hidden.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from stat import S_IXOTH

from remote_gpu.isolation.system import checked, libc

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND, _MS_REC = 1, 2, 4, 32, 4096, 16384
_SIZE = b"mode=0711,size=256k"


def closed_above(path: Path) -> Path | None:
    """The topmost folder above a path that other users may not pass."""
    for folder in reversed(path.resolve().parents):
        if not folder.stat().st_mode & S_IXOTH:
            return folder
    return None


def outermost(paths: Iterable[Path]) -> list[Path]:
    """The existing paths that are below none of the others, resolved."""
    found: list[Path] = []
    for path in sorted({path.resolve() for path in paths if path.exists()}):
        if not found or not path.is_relative_to(found[-1]):
            found.append(path)
    return found


def cover(needed: Iterable[Path]) -> None:
    """Make `needed` reachable for every user of this mount namespace. Raises OSError."""
    by_folder: dict[Path, list[Path]] = {}
    for path in outermost(needed):
        if (folder := closed_above(path)) is not None:
            by_folder.setdefault(folder, []).append(path)
    for folder, paths in by_folder.items():
        _cover(folder, paths)


def _cover(folder: Path, paths: list[Path]) -> None:
    with contextlib.ExitStack() as stack:
        below: list[tuple[Path, int]] = []
        for path in paths:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            below.append((path, descriptor))
        flags = _MS_NOSUID | _MS_NODEV
        _mount(b"tmpfs", folder, b"tmpfs", flags, _SIZE)
        for path, descriptor in below:
            whole = Path(f"/proc/self/fd/{descriptor}").is_dir()
            (path if whole else path.parent).mkdir(mode=0o755, parents=True, exist_ok=True)
            if not whole:
                path.touch()
            _mount(f"/proc/self/fd/{descriptor}".encode(), path, None, _MS_BIND | _MS_REC, None)
        _mount(None, folder, None, flags | _MS_REMOUNT | _MS_RDONLY, None)


def _mount(
    source: bytes | None, target: Path, kind: bytes | None, flags: int, data: bytes | None
) -> None:
    checked(libc.mount(source, os.fsencode(target), kind, flags, data), f"mount at {target}")

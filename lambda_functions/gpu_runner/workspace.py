"""The private folder of one run: everything the script gets or leaves lies in it, and it goes.

A sandbox is reused, so what one job leaves in /tmp is the next one's disk space and the next one's
secret. The folder is locked by the process that made it: a folder that can be locked belongs to a
process that died, whoever that was, and is removed at the next start.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_PREFIX = "orchgpu-run-"
#: A file name on Linux ends at 255 bytes, a key at 1,024; this much of its end is kept.
NAME_BYTES_MAX = 200


class Workspace:
    """A folder of mode 0700, the script's home, with `input/` and `output/` in it.

    No more folders than these: to remove one costs a file system more than all else here.
    """

    def __init__(self, parent: Path | None = None) -> None:
        self._make(*_create(parent or Path(tempfile.gettempdir())))

    def part(self, number: int) -> Workspace:
        """A folder of the same kind inside this one, for one more run; it goes with this one."""
        part = Workspace.__new__(Workspace)
        root = self.root / f"step-{number}"
        root.mkdir()
        part._make(root, -1)
        return part

    def _make(self, root: Path, lock: int) -> None:
        self.root, self._lock = root, lock
        self.input = self.root / "input"
        self.output = self.root / "output"
        self.input.mkdir()
        self.output.mkdir()

    def remove(self) -> None:
        """Remove it with all that is in it, read-only folders too. Safe to repeat."""
        remove_tree(self.root)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


def sweep(parent: Path | None = None) -> int:
    """Remove the folders that dead processes left in `parent`; returns how many."""
    removed = 0
    for path in sorted((parent or Path(tempfile.gettempdir())).glob(_PREFIX + "*")):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid != os.geteuid():
                continue
            lock = _locked(path)
            if lock is not None:
                remove_tree(path)
                os.close(lock)
                removed += 1
    return removed


def sweep_sandbox(parent: Path, known: frozenset[Path]) -> int:
    """Remove everything in `parent` but `known`; only where the sandbox owns the whole of it."""
    removed = 0
    for path in sorted(set(parent.iterdir()) - known):
        if path.is_dir() and not path.is_symlink():
            remove_tree(path)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
        removed += not os.path.lexists(path)
    return removed


def input_name(key: str) -> str:
    """The file name under which the object `key` is given to the script.

    The last part of the key, as SCAR does it; "input" where that is no name for a file.
    """
    name = key.rsplit("/", 1)[-1].replace("\0", "")
    data = name.encode("utf-8", "surrogatepass")[-NAME_BYTES_MAX:]
    name = data.decode("utf-8", "ignore")
    return "input" if name in ("", ".", "..") else name


def remove_tree(path: Path) -> None:
    """rmtree that also removes what a script made unwritable; never follows a link."""
    if not os.path.lexists(path):
        return

    def retry(_function: Any, name: str, _info: Any) -> None:
        with contextlib.suppress(OSError):
            for place in (Path(name).parent, Path(name)):
                if not place.is_symlink() and place.is_relative_to(path):
                    place.chmod(stat.S_IRWXU)
            if Path(name).is_dir() and not Path(name).is_symlink():
                shutil.rmtree(name, ignore_errors=True)
            else:
                Path(name).unlink()

    shutil.rmtree(path, onerror=retry)


def _create(parent: Path) -> tuple[Path, int]:
    while True:  # again only if a sweep of another process wins the instant before our lock
        root = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))  # 0700
        lock = _locked(root)
        if lock is not None:
            return root, lock


def _locked(path: Path) -> int | None:
    """A descriptor that holds the lock of the folder, or None when it is held or gone."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.lexists(path):
            return lock
    except BlockingIOError:
        pass
    os.close(lock)
    return None

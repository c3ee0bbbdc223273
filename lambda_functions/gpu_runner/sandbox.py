"""The sandbox that all runs of one environment share: private folders, hidden credentials.

A sandbox is reused: files left in /tmp by one job would cost the next job disk space and show it
secrets. The process that made a folder holds a lock on it; one without a lock is left over from a
process that died, and is removed at the next start.

In Lambda the runner and the script have the same user. An undumpable process closes
`/proc/<pid>/environ`, `mem`, `fd` and ptrace to other processes of that user; the credentials are
also wiped from the environment block that the process was started with, so that not even root finds
them there. The script can still send signals to the runner, and reach on the network what the
function reaches without credentials.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Self

_PREFIX = "orchgpu-run-"
#: A file name has at most 255 bytes on Linux, a key 1,024; this much of its end is kept.
NAME_BYTES_MAX = 200
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PR_SET_DUMPABLE = 4  # <linux/prctl.h>
#: Static credentials of the function's role; existing clients keep their own copies.
CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
#: Wiped from the block but kept in `os.environ`: boto3 fetches new credentials with it.
_TOKENS = ("AWS_CONTAINER_AUTHORIZATION_TOKEN",)
#: Fields of /proc/self/stat after the name, from 0: start and end of the block.
_ENV_START, _ENV_END = 47, 48


def hide() -> None:
    """Make this process undumpable and wipe its credentials, also from `os.environ`.

    Call it once clients are made. Safe to repeat.
    """
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    with contextlib.suppress(OSError, ValueError, IndexError):  # a kernel without these fields
        wipe_block((*CREDENTIALS, *_TOKENS))
    for name in CREDENTIALS:
        os.environ.pop(name, None)


def wipe_block(names: Sequence[str]) -> None:
    """Overwrite the values of these variables in the process's initial environment block."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    at = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and os.fsdecode(name) in names:
            ctypes.memset(at + len(name) + 1, ord("x"), len(value))
        at += len(entry) + 1


class Workspace:
    """A folder of mode 0700, the script's home, with `input/` and `output/` in it.

    It has no more folders than these: removing a folder is the costliest step here.
    """

    run: Path | None  #: RUN_DIR: a folder that all steps of a group see; None = no group

    def __init__(self, parent: Path | None = None) -> None:
        self._make(*_create(parent or Path(tempfile.gettempdir())))

    def part(self, number: int) -> Workspace:
        """A folder of the same kind inside this one, for one more run; removed with this one."""
        part = Workspace.__new__(Workspace)
        root = self.root / f"step-{number}"
        root.mkdir()
        part._make(root, -1)
        part.run = self.run
        return part

    def share(self) -> None:
        """Make the folder that all parts see; it is removed with this one."""
        self.run = self.root / ".orchgpu-run"
        self.run.mkdir()

    def _make(self, root: Path, lock: int) -> None:
        self.root, self._lock = root, lock
        self.run = None
        self.input = self.root / "input"
        self.output = self.root / "output"
        self.input.mkdir()
        self.output.mkdir()

    def remove(self) -> None:
        """Remove the folder and its content, read-only folders included. Safe to repeat."""
        remove_tree(self.root)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def sweep(parent: Path | None = None) -> int:
    """Remove the folders of dead processes in `parent`; returns how many."""
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


def own_folder(
    parent: Path, *, in_lambda: bool, extensions: Path | None = None
) -> frozenset[Path] | None:
    """The initial entries of a temporary folder that belongs to this sandbox alone, else None.

    Later entries were left by a run. Lambda's /tmp belongs to the sandbox; elsewhere a folder does
    that is private to this user and was empty when the process started (the embedded cloud makes
    one for each environment). Where Lambda extensions run (files in `extensions`), theirs cannot
    be distinguished from a run's: nothing but the folders of runs is removed.
    """
    if extensions is not None and extensions.is_dir() and any(extensions.iterdir()):
        return None
    here = frozenset(parent.iterdir())
    if in_lambda:
        return here
    status = parent.stat()
    private = status.st_uid == os.geteuid() and not status.st_mode & 0o077
    return here if private and not here else None


def sweep_sandbox(parent: Path, known: frozenset[Path]) -> int:
    """Remove everything in `parent` except `known`; for folders of this sandbox alone."""
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
    """The name of the input file for the object `key`.

    The last part of the key, as in SCAR; "input" where that is not a valid file name.
    """
    name = key.rsplit("/", 1)[-1].replace("\0", "")
    data = name.encode("utf-8", "surrogatepass")[-NAME_BYTES_MAX:]
    name = data.decode("utf-8", "ignore")
    return "input" if name in ("", ".", "..") else name


@contextlib.contextmanager
def open_plain(path: Path | str, folder: int | None = None) -> Iterator[BinaryIO | None]:
    """A file of the user's code, to be read; None unless it is a plain file.

    The code may have made a link or a pipe there, and may still run. `folder`: a descriptor that
    `path` is relative to. Raises OSError, also for a link.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as opened:
        yield opened if stat.S_ISREG(os.fstat(descriptor).st_mode) else None


@contextlib.contextmanager
def open_folder(root: Path, parts: Sequence[str]) -> Iterator[int]:
    """A descriptor of a folder below `root`; no link is followed, `root` itself included.

    Raises OSError, also for a link.
    """
    folder = os.open(root, _FOLDER)
    try:
        for part in parts:
            outer, folder = folder, os.open(part, _FOLDER, dir_fd=folder)
            os.close(outer)
        yield folder
    finally:
        os.close(folder)


def write_new(root: Path, parts: Sequence[str], content: bytes) -> None:
    """Write a new file below `root`, at a place that the user's code may change meanwhile.

    Raises OSError, also for a link on the way, and where there is a file.
    """
    with open_folder(root, parts[:-1]) as folder:
        descriptor = os.open(parts[-1], _NEW, 0o666, dir_fd=folder)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)


def remove_tree(path: Path) -> None:
    """Remove a folder and all below it, even unwritable folders and paths over the length limit.

    Links are not followed, and errors are ignored. Inner folders are moved to the top one by one,
    so that neither paths nor calls nest.
    """
    if path.is_symlink():
        with contextlib.suppress(OSError):
            path.unlink()
        return
    pending, folders = [path], list[Path]()
    while pending:
        folder = pending.pop()
        folders.append(folder)
        with contextlib.suppress(OSError):
            folder.chmod(stat.S_IRWXU)
            pending += _emptied(folder, path)
    for folder in reversed(folders):  # the top is the first one
        with contextlib.suppress(OSError):
            folder.rmdir()


def _emptied(folder: Path, top: Path) -> Iterator[Path]:
    """Unlink the files of `folder` and move its folders below `top`; yields the folders."""
    with os.scandir(folder) as listed:
        entries = list(listed)
    for entry in entries:
        inner = Path(entry.path)
        with contextlib.suppress(OSError):
            if not entry.is_dir(follow_symlinks=False):
                inner.unlink()
                continue
            if folder != top:
                inner.chmod(stat.S_IRWXU)  # its parent changes: it must be writable
                inner = inner.rename(top / f".removed-{secrets.token_hex(8)}")
            yield inner


def _create(parent: Path) -> tuple[Path, int]:
    while True:  # repeated only if another process sweeps between creation and lock
        root = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))  # 0700
        lock = _locked(root)
        if lock is not None:
            return root, lock


def _locked(path: Path) -> int | None:
    """A descriptor that holds the folder's lock; None if another has it, or the folder is gone."""
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

"""Contents that callers sent: sources, constants and resources, kept for the tenant's next lease.

One folder per tenant, because a shared cache would reveal to one tenant what another one has. Files
are named by the hash of their bytes and checked once per process, so a damaged file has no effect.
The least recently used files are evicted above the tenant's limit.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import time
from collections.abc import Collection
from pathlib import Path
from stat import S_ISREG

from gpu_scheduler.warm import tenant_folder
from remote_gpu.wire.errors import OpCode, OpFailed, invalid
from remote_gpu.wire.graphs import CONTENT_PREFIX, content_id
from remote_gpu.worker.loading import LoadingTime

#: Of one tenant on one host; larger constants should be host data (`gpud --data`).
TENANT_BYTES_MAX = 4 << 30


class Contents:
    """The contents of one tenant. Safe for use by several of its processes."""

    def __init__(self, folder: Path | None = None, bytes_max: int = TENANT_BYTES_MAX) -> None:
        """`folder`: None keeps the contents in this process only."""
        self._folder = folder
        self._bytes_max = bytes_max
        self._checked: dict[str, memoryview] = {}
        self.loading = LoadingTime()

    @classmethod
    def of_tenant(cls, root: Path | None, tenant: str) -> Contents:
        """The contents of a tenant below a host's folder."""
        if root is None:
            return cls()
        return cls(root / tenant_folder(tenant))

    @property
    def folder(self) -> Path | None:
        """The folder of the files; None: in this process only."""
        return self._folder

    @property
    def compiled(self) -> Path | None:
        """The folder of this tenant's compiled kernels, a cache."""
        return None if self._folder is None else self._folder / "compiled"

    def find(self, content: str) -> memoryview | None:
        """The bytes of a content, or None. A file that does not match its hash is removed."""
        if (known := self._checked.get(content)) is not None:
            return known
        path = self._path(content)
        if path is None:
            return None
        with self.loading:
            return self._read(path, content)

    def keep_only(self, contents: Collection[str]) -> None:
        """Forget all contents read so far but these; their files stay."""
        self._checked = {name: self._checked[name] for name in contents if name in self._checked}

    def _read(self, path: Path, content: str) -> memoryview | None:
        try:
            with path.open("rb") as file:
                view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
                with contextlib.suppress(OSError):
                    _touch(file.fileno())
        except (OSError, ValueError):  # ValueError: an empty file cannot be mapped
            return None
        if content_id(view) != content:
            path.unlink(missing_ok=True)
            return None
        self._checked[content] = view
        return view

    def put(self, content: str, data: memoryview) -> None:
        """Store bytes under their hash. Raises OpFailed: EINVAL for another hash, E2BIG, ENOMEM."""
        if content_id(data) != content:
            raise invalid(f"these bytes are not {content}")
        if len(data) > self._bytes_max:
            message = f"{len(data)} bytes; contents have at most {self._bytes_max}"
            raise OpFailed(OpCode.E2BIG, message)
        path = self._path(content)
        if path is None:
            self._checked[content] = memoryview(bytes(data))
            return
        try:
            self._write(path, data)
        except OSError as error:
            raise OpFailed(OpCode.ENOMEM, f"the host cannot store {content}: {error}") from None

    def _path(self, content: str) -> Path | None:
        return None if self._folder is None else self._folder / content.removeprefix(CONTENT_PREFIX)

    def _write(self, path: Path, data: memoryview) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._make_room(path.parent, len(data))
        new = path.with_name(f"new-{secrets.token_hex(8)}")
        try:
            with new.open("xb", buffering=0) as file:  # no buffer that keeps a copy
                left = data
                while left.nbytes:
                    left = left[file.write(left) :]
                _touch(file.fileno())
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)

    def _make_room(self, folder: Path, wanted: int) -> None:
        files = []
        for path in folder.iterdir():
            with contextlib.suppress(OSError):  # removed by another process
                stat = path.stat()
                if S_ISREG(stat.st_mode):
                    files.append((stat.st_mtime_ns, stat.st_size, path))
        held = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if held + wanted <= self._bytes_max:
                break
            path.unlink(missing_ok=True)
            held -= size


def _touch(file: int) -> None:
    """Set the time of last use, by the descriptor: workers may not set it by a path."""
    now_ns = time.time_ns()
    try:
        os.utime(file, ns=(now_ns, now_ns))
    except (
        PermissionError
    ):  # another lease's file: only the kernel's coarser current time is allowed
        os.utime(file)

"""The contents that a host keeps for all tenants together: limits on bytes and on tenants.

Each tenant has a limit of its own in its workers. Without a common one, the contents of tenants
that never return would fill the host; a new tenant's name costs nothing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from remote_gpu.isolation.removal import remove_tree

#: Four tenants' limits: a kept content saves a transfer, and the disk is the host's.
HOST_BYTES_MAX = 16 << 30
#: Of the file system, where that is less: a small disk has other uses.
DISK_PART = 1 / 4
#: Folders; one host serves fewer tenants in turn.
TENANTS_MAX = 256
#: Nesting of folders; those of compiled kernels have six levels.
_DEPTH_MAX = 32
_UNMEASURED_BYTES = 1 << 62


@dataclass(frozen=True, slots=True, order=True)
class StoredItem:
    """One content, or the folder of compiled kernels, of one tenant."""

    used_ns: int  #: time of the last use
    path: Path
    bytes: int

    @property
    def tenant(self) -> Path:
        return self.path.parent


def surplus(
    kept: Collection[StoredItem],
    bytes_max: int = HOST_BYTES_MAX,
    tenants_max: int = TENANTS_MAX,
    spared: Collection[Path] = (),
) -> list[StoredItem]:
    """The items to evict: all of the least recently seen tenants, then the least recently used.

    `spared`: items that stay, and count.
    """
    last_ns: dict[Path, int] = {}
    for item in kept:
        last_ns[item.tenant] = max(item.used_ns, last_ns.get(item.tenant, 0))
    staying = set(sorted(last_ns, key=lambda tenant: (-last_ns[tenant], tenant))[:tenants_max])
    free = [item for item in kept if item.path not in spared]
    evicted = [item for item in free if item.tenant not in staying]
    held = sum(item.bytes for item in kept) - sum(item.bytes for item in evicted)
    for item in sorted(item for item in free if item.tenant in staying):
        if held <= bytes_max:
            break
        evicted.append(item)
        held -= item.bytes
    return evicted


def limit_bytes(disk_bytes: int) -> int:
    """The limit on a file system of that size."""
    return min(HOST_BYTES_MAX, int(disk_bytes * DISK_PART))


def evict(
    root: Path,
    bytes_max: int | None = None,
    tenants_max: int = TENANTS_MAX,
    spared: Collection[Path] = (),
) -> None:
    """Remove the surplus below a host's folder of contents; safe while workers use it.

    `bytes_max`: None = that of the file system; `spared`: items that stay.

    A worker with an open file keeps its bytes; a worker that misses a file requests it from its
    client again.
    """
    kept = _scan(root)
    if bytes_max is None:
        bytes_max = limit_bytes(shutil.disk_usage(root).total) if kept else 0
    for item in surplus(kept, bytes_max, tenants_max, spared):
        if item.path.is_dir() and not item.path.is_symlink():
            remove_tree(_renamed(item.path))
        else:
            with contextlib.suppress(OSError):
                item.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty: the tenant has more
            item.tenant.rmdir()


def _renamed(folder: Path) -> Path:
    """The folder under another name: one that is removed in part is not taken for a whole one."""
    with contextlib.suppress(OSError):
        return folder.rename(folder.with_name(f".evicted-{secrets.token_hex(8)}"))
    return folder


def _scan(root: Path) -> list[StoredItem]:
    found: list[StoredItem] = []
    with contextlib.suppress(OSError):
        for tenant in root.iterdir():
            with contextlib.suppress(OSError):  # a worker removed it meanwhile
                found += [_measure(path) for path in tenant.iterdir()]
    return found


def _measure(path: Path) -> StoredItem:
    """Raises OSError when it is gone. An item nested too deep to be ours is evicted first."""
    own = path.lstat()
    size, used_ns = own.st_size, own.st_mtime_ns
    for folder, _, names in os.walk(path):
        if len(Path(folder).parts) - len(path.parts) > _DEPTH_MAX:
            return StoredItem(0, path, _UNMEASURED_BYTES)
        for name in names:
            with contextlib.suppress(OSError):
                stat = (Path(folder) / name).lstat()
                size += stat.st_size
                used_ns = max(used_ns, stat.st_mtime_ns)
    return StoredItem(used_ns, path, size)

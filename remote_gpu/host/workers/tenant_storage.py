"""What the host keeps for all tenants together: a limit on bytes and on tenants.

Each tenant has a limit of its own (`worker/contents.py`). Without one for all of them a host fills
up with what tenants left who never come back; a name of a tenant costs its inventor nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from remote_gpu.host.workers.removal import remove_tree

#: Four tenants' limits: what is kept saves a transfer, and the disk belongs to the host.
HOST_BYTES_MAX = 16 << 30
#: Folders; more tenants than this do not take turns on one host.
TENANTS_MAX = 256
#: Folders within folders; those of compiled kernels have six.
_DEPTH_MAX = 32
_UNMEASURED_BYTES = 1 << 62


@dataclass(frozen=True, slots=True, order=True)
class StoredItem:
    """One content, or the folder of compiled kernels, of one tenant."""

    used_ns: int  #: when it was last used
    path: Path
    bytes: int

    @property
    def tenant(self) -> Path:
        return self.path.parent


def surplus(
    kept: Collection[StoredItem], bytes_max: int = HOST_BYTES_MAX, tenants_max: int = TENANTS_MAX
) -> list[StoredItem]:
    """What has to go: all of the tenants that were away longest, then what was unused longest."""
    last_ns: dict[Path, int] = {}
    for one in kept:
        last_ns[one.tenant] = max(one.used_ns, last_ns.get(one.tenant, 0))
    staying = set(sorted(last_ns, key=lambda tenant: (-last_ns[tenant], tenant))[:tenants_max])
    going = [one for one in kept if one.tenant not in staying]
    left = sorted(one for one in kept if one.tenant in staying)
    held = sum(one.bytes for one in left)
    for one in left:
        if held <= bytes_max:
            break
        going.append(one)
        held -= one.bytes
    return going


def evict(root: Path, bytes_max: int = HOST_BYTES_MAX, tenants_max: int = TENANTS_MAX) -> None:
    """Remove the surplus below a host's folder of contents; safe beside workers that use it.

    A worker that has a file open keeps its bytes; one that looks for it asks its client again.
    """
    for one in surplus(_look(root), bytes_max, tenants_max):
        if one.path.is_dir() and not one.path.is_symlink():
            remove_tree(one.path)
        else:
            with contextlib.suppress(OSError):
                one.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty: the tenant has more
            one.tenant.rmdir()


def _look(root: Path) -> list[StoredItem]:
    found: list[StoredItem] = []
    with contextlib.suppress(OSError):
        for tenant in root.iterdir():
            with contextlib.suppress(OSError):  # a worker removed it meanwhile
                found += [_measure(path) for path in tenant.iterdir()]
    return found


def _measure(path: Path) -> StoredItem:
    """Raises OSError when it is gone. What lies too deep to be ours is the first that has to go."""
    own = path.lstat()
    size, used_ns = own.st_size, own.st_mtime_ns
    for place, _, names in os.walk(path):
        if len(Path(place).parts) - len(path.parts) > _DEPTH_MAX:
            return StoredItem(0, path, _UNMEASURED_BYTES)
        for name in names:
            with contextlib.suppress(OSError):
                stat = (Path(place) / name).lstat()
                size += stat.st_size
                used_ns = max(used_ns, stat.st_mtime_ns)
    return StoredItem(used_ns, path, size)

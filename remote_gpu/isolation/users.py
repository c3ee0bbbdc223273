"""A user for each lease, from a range of numbers that is unused on the machine.

gpud as root takes one block of the range, so that two gpuds on one machine never use the same
number, and gives a lease's worker one that no running lease has. A tenant's folder has a group: the
tenant's leases share its kept contents, and other tenants cannot enter.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import os
import pwd
from collections import deque
from collections.abc import Collection
from pathlib import Path
from typing import Final

#: User numbers above those of Linux, systemd and containers (systemd's UIDS-GIDS.md), and below
#: the half that programs read as negative.
RANGE: Final = range(2_000_000_000, 2_000_524_288)
#: Leases at once on one host, and tenants with kept contents there.
BLOCK: Final = 8192
_LOCKS = Path("/run/orchgpu")


class UserBlock:
    """A block of the range, reserved for this process until it ends."""

    def __init__(self, ids: range) -> None:
        self.ids = ids
        self.killer = ids[0]  #: not a lease's: the user of `kill_user`
        self._free = deque(ids[1:])  # the least recently used number comes first
        self._lock = -1

    @classmethod
    def take(cls, within: range = RANGE, locks: Path = _LOCKS) -> UserBlock:
        """Take the first block that no other gpud of this machine has. Raises OSError."""
        named = {one.pw_uid for one in pwd.getpwall()} | {one.gr_gid for one in grp.getgrall()}
        named |= _running()  # also those of a killed gpud's leftovers
        locks.mkdir(mode=0o700, parents=True, exist_ok=True)
        for first in range(within.start, within.stop - BLOCK + 1, BLOCK):
            block = cls(range(first, first + BLOCK))
            if any(number in named for number in block.ids):
                continue
            lock = os.open(
                locks / f"users-{first}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # another gpud has it
                os.close(lock)
                continue
            block._lock = lock
            return block
        raise OSError(f"all blocks of {BLOCK} users in {within} are in use")

    def close(self) -> None:
        """Release the block. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def lend(self) -> int:
        """A number that no running lease has. Raises OSError when all are lent."""
        if not self._free:
            raise OSError(f"all {len(self.ids)} users of this host's block are in use")
        return self._free.popleft()

    def give_back(self, user: int) -> None:
        """Return the number of a lease without processes."""
        self._free.append(user)

    def group_of(self, taken: Collection[int]) -> int:
        """A group for a tenant, none of `taken`. Raises OSError when there is none."""
        for number in self.ids:
            if number not in taken:
                return number
        raise OSError(f"all {len(self.ids)} groups of this host's block have a tenant")


def _running() -> set[int]:
    found: set[int] = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # it has ended
            lines = status.read_text(errors="replace").splitlines()
            found.update(
                int(word) for line in lines if line[:4] == "Uid:" for word in line[4:].split()
            )
    return found


def become(user: int, group: int) -> None:
    """Change to that user, with that group only. Raises OSError."""
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


def can_become(user: int) -> None:
    """Raises OSError where this process may not, or its namespace lacks the user."""
    become(user, user)
    with contextlib.suppress(PermissionError):
        os.setresuid(0, 0, 0)
        raise OSError("the user of a lease could become root again")

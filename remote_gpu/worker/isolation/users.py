"""A user for each lease: numbers out of a range that nobody else on the machine uses.

gpud as root takes one block of the range, so that two of one machine never use the same number, and
gives a lease's worker one that no living lease has. A tenant's folder has a group instead, which is
how one tenant's leases share what is kept for it while no other tenant can pass.
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

#: Of a machine's numbers for users: above what Linux, systemd and containers give out
#: (systemd's UIDS-GIDS.md), below the half that programs take for negative.
RANGE: Final = range(2_000_000_000, 2_000_524_288)
#: Leases that live at once on one host, and tenants with something kept there.
BLOCK: Final = 8192
_LOCKS = Path("/run/orchgpu")


class UserBlock:
    """A block of the range, this process's own until it ends."""

    def __init__(self, ids: range) -> None:
        self.ids = ids
        self.killer = ids[0]  #: never a lease's: what ends others' processes has it
        self._free = deque(ids[1:])  # the one that is free for longest comes first
        self._lock = -1

    @classmethod
    def take(cls, within: range = RANGE, locks: Path = _LOCKS) -> UserBlock:
        """The first that no other gpud of this machine has. Raises OSError."""
        named = {one.pw_uid for one in pwd.getpwall()} | {one.gr_gid for one in grp.getgrall()}
        named |= _running()  # also what a gpud that was killed has left
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
            except OSError:  # another gpud's
                os.close(lock)
                continue
            block._lock = lock
            return block
        raise OSError(f"all blocks of {BLOCK} users in {within} are in use")

    def close(self) -> None:
        """Others may have it. Safe to repeat."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def lend(self) -> int:
        """A number that no living lease has. Raises OSError when all are lent."""
        if not self._free:
            raise OSError(f"all {len(self.ids)} users of this host's block are in use")
        return self._free.popleft()

    def give_back(self, user: int) -> None:
        """Nothing of the lease that had it is left."""
        self._free.append(user)

    def group_of(self, taken: Collection[int]) -> int:
        """A group for a tenant, none of `taken`. Raises OSError when there is none."""
        for number in self.ids:
            if number not in taken:
                return number
        raise OSError(f"all {len(self.ids)} groups of this host's block have a tenant")


def _running() -> set[int]:
    """Users of living processes."""
    found: set[int] = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # it has ended
            lines = status.read_text(errors="replace").splitlines()
            found.update(
                int(word) for line in lines if line[:4] == "Uid:" for word in line[4:].split()
            )
    return found


def become(user: int, group: int) -> None:
    """This process is that user's from now on, in that group alone. Raises OSError."""
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


def can_become(user: int) -> None:
    """Raises OSError where this process may not, or there is no such user in its namespace."""
    become(user, user)
    with contextlib.suppress(PermissionError):
        os.setresuid(0, 0, 0)
        raise OSError("the user of a lease could become root again")

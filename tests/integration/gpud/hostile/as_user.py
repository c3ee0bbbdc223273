"""Run as root: `as_user.py USER FOLDER… -- COMMAND…` becomes COMMAND of an ordinary user.

Python and the tree under test are made reachable for it, wherever they lie, by mounts of its own.
With BARE=1 in the environment the kernel has neither Landlock nor seccomp nor namespaces for it,
with BARE=unshare no namespaces: a filter gives the answers of such a kernel. x86-64 alone.
"""

import errno
import os
import struct
import sys
from pathlib import Path

from remote_gpu.isolation import bind_mounts, namespaces, places, privileges, seccomp, users

_ABSENT = {
    444: errno.ENOSYS,
    445: errno.ENOSYS,
    446: errno.ENOSYS,
    317: errno.ENOSYS,
    272: errno.EPERM,
}  # landlock_*, seccomp, unshare
_PRCTL, _UNSHARE, _PR_SET_SECCOMP = 157, 272, 22


def lose_isolation(what: str) -> None:
    """Of this process and all below it."""
    load, equal, ret, allow = 0x20, 0x15, 0x06, 0x7FFF0000
    code = [(load, 0, 0, 0)]
    for number, error in _ABSENT.items():
        if what == "1" or number == _UNSHARE:
            code += [(equal, 0, 1, number), (ret, 0, 0, 0x50000 | error)]
    if what == "1":
        code += [
            (equal, 0, 3, _PRCTL),
            (load, 0, 0, 16),
            (equal, 0, 1, _PR_SET_SECCOMP),
            (ret, 0, 0, 0x50000 | errno.EINVAL),
        ]
    code.append((ret, 0, 0, allow))
    privileges.set_no_new_privileges()
    seccomp.install(b"".join(struct.pack("=HBBI", *one) for one in code))


if __name__ == "__main__":
    end = sys.argv.index("--")
    user, folders, command = int(sys.argv[1]), sys.argv[2:end], sys.argv[end + 1 :]
    namespaces.unshare_mounts()
    bind_mounts.cover([*places.libraries(), *map(Path, folders)])
    users.become(user, user)
    if os.environ.get("BARE"):
        lose_isolation(os.environ["BARE"])
    os.execv(command[0], command)

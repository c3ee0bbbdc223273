"""Namespaces of processes, network and mounts.

The spawner enters them once, and each worker is the first process of a process namespace of its
own: when it ends, the kernel kills its children before it reports the end (pid_namespaces(7)).
Without root, all three kinds need a user namespace, in which users and groups keep their numbers.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from remote_gpu.isolation.privileges import make_undumpable
from remote_gpu.isolation.system import checked, libc

_NEWNS, _NEWUSER, _NEWPID, _NEWNET = 0x00020000, 0x10000000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 0x4000, 1 << 18
_PROC: Final = b"/proc"


def unshare(flags: int, what: str) -> None:
    """Move this process (its children, for `_NEWPID`) into new namespaces. Raises OSError."""
    checked(libc.unshare(flags), what)


def unshare_user() -> None:
    """Enter a user namespace with all rights inside it, and no more outside. Raises OSError.

    Needs a dumpable process: the kernel keeps the maps of others for root.
    """
    user, group = os.geteuid(), os.getegid()
    unshare(_NEWUSER, "user namespace")
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")


def unshare_user_of_undumpable() -> None:
    """`unshare_user` for a process that is undumpable, and is so again when this returns."""
    make_undumpable(False)
    try:
        unshare_user()
    finally:
        make_undumpable()


def unshare_mounts() -> None:
    """Enter a mount namespace; later mounts are visible in it only. Raises OSError."""
    unshare(_NEWNS, "mount namespace")
    checked(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "mount of / as private")


def unshare_network() -> None:
    """Enter a network namespace without interfaces; existing sockets go on. Raises OSError."""
    unshare(_NEWNET, "network namespace")


def become_first_process() -> None:
    """Fork once: the child returns as the first process of a namespace, the parent waits for it.

    When the parent ends, the child is killed; when the child ends, its descendants are.
    """
    unshare(_NEWPID, "process namespace")
    pid = os.fork()
    if pid:
        make_undumpable()
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        os._exit(code if code >= 0 else 128 - code)  # as a shell has it


def own_proc() -> None:
    """Mount a /proc of this process's namespace. Raises OSError."""
    unshare_mounts()
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    checked(libc.mount(b"proc", _PROC, b"proc", flags, None), "mount of /proc")


class NamespaceForker:
    """Forks processes that are each the first of a namespace.

    Made after `become_first_process`, or as root anywhere.
    """

    def __init__(self) -> None:
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def fork(self) -> int:
        """As os.fork(); its child is number 1. Raises OSError."""
        unshare(_NEWPID, "process namespace")
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid:
                checked(libc.setns(self._own, _NEWPID), "return to the process namespace")
        if not pid:
            os.close(self._own)
        return pid

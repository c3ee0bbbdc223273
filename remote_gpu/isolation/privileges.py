"""Privileges that a process gives up: dumps, debuggers, new privileges by `exec`, capabilities.

A process that is not dumpable cannot be read or traced by others of its user: /proc/PID/mem,
environ, maps, fd and ptrace need CAP_SYS_PTRACE then (proc(5), ptrace(2), PTRACE_MODE_*).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from collections.abc import MutableMapping
from typing import Final

from remote_gpu.isolation.system import checked, libc, prctl

_PR_SET_DUMPABLE: Final = 4  # <linux/prctl.h>
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAPBSET_DROP: Final = 24  # <linux/prctl.h>
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_VERSION_3: Final = 0x20080522  # <linux/capability.h>
_LAST_POSSIBLE: Final = 63


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def drop_capabilities() -> None:
    """Drop all capabilities of this process and its children, also those of programs of user 0.

    Raises OSError.
    """
    for number in range(_LAST_POSSIBLE + 1):
        with contextlib.suppress(OSError):  # unknown to this kernel, or there is none to drop
            prctl(_PR_CAPBSET_DROP, number)
    with contextlib.suppress(OSError):
        prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    none = (ctypes.c_uint32 * 6)()
    checked(libc.capset(ctypes.byref(_Header(_VERSION_3, 0)), none), "capset")


def make_undumpable(hidden: bool = True) -> None:
    """Make this process undumpable; lost at `exec`. Raises OSError."""
    prctl(_PR_SET_DUMPABLE, 0 if hidden else 1, what="prctl(PR_SET_DUMPABLE)")
    if hidden:
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def set_no_new_privileges() -> None:
    """Set `no_new_privs`: programs get no more rights than this process. Raises OSError."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1, what="prctl(PR_SET_NO_NEW_PRIVS)")


def take(names: tuple[str, ...], environment: MutableMapping[str, str] = os.environ) -> None:
    """Remove secrets from the environment, so that child processes do not inherit them.

    The copy in /proc/PID/environ stays: `make_undumpable` protects it.
    """
    for name in names:
        environment.pop(name, None)

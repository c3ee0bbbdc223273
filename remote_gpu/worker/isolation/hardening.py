"""Hardening of a process: no dump, no debugger, no new privileges by `exec`, no inherited secrets.

A process that is not dumpable cannot be read or traced by others of its user: /proc/PID/mem,
environ, maps, fd and ptrace need CAP_SYS_PTRACE then (proc(5), ptrace(2), PTRACE_MODE_*).
"""

from __future__ import annotations

import os
import resource
from collections.abc import MutableMapping
from typing import Final

from remote_gpu.worker.isolation.system import prctl

_PR_SET_DUMPABLE: Final = 4  # <linux/prctl.h>
_PR_SET_NO_NEW_PRIVS: Final = 38


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

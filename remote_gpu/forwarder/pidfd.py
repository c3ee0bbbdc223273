"""A descriptor of a process, also where Python was built without the call.

Lambda's Python 3.11 is built for Amazon Linux 2, whose headers of Linux 4.14 lack `pidfd_open`
(Linux 5.3); the kernel below it has the call.
"""

from __future__ import annotations

import ctypes
import os

#: The same number on every architecture.
_PIDFD_OPEN = 434


def pidfd_open(pid: int) -> int:
    """A descriptor that is readable once the process has ended. Raises OSError."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.syscall(ctypes.c_long(_PIDFD_OPEN), ctypes.c_int(pid), ctypes.c_uint(0))
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return descriptor

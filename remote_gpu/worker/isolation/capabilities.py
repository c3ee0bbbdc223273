"""Dropping of all capabilities, including those that a program of user 0 would get."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Final

from remote_gpu.worker.isolation.system import checked, libc, prctl

_PR_CAPBSET_DROP: Final = 24  # <linux/prctl.h>
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_VERSION_3: Final = 0x20080522  # <linux/capability.h>
_LAST_POSSIBLE: Final = 63


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def drop_all() -> None:
    """Drop all capabilities of this process and its children. Raises OSError."""
    for number in range(_LAST_POSSIBLE + 1):
        with contextlib.suppress(OSError):  # unknown to this kernel, or there is none to drop
            prctl(_PR_CAPBSET_DROP, number)
    with contextlib.suppress(OSError):
        prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    none = (ctypes.c_uint32 * 6)()
    checked(libc.capset(ctypes.byref(_Header(_VERSION_3, 0)), none), "capset")

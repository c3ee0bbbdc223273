"""System calls that Python 3.11 does not have. Linux on x86-64 and aarch64 only."""

from __future__ import annotations

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


def checked(result: int, what: str) -> int:
    """The result of a call. Raises OSError for a negative one, naming the call."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, first: int = 0, second: int = 0, third: int = 0, what: str = "prctl") -> int:
    """prctl(2). Raises OSError."""
    return checked(int(libc.prctl(option, first, second, third, 0)), what)


def call(number: int, *arguments: object, what: str) -> int:
    """A system call by its number. Raises OSError."""
    return checked(int(libc.syscall(ctypes.c_long(number), *arguments)), what)


def architecture() -> str:
    """This machine, as `uname -m` names it."""
    return platform.machine()

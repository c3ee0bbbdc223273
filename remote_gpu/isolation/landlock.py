"""Landlock: the files that a process may access, and a ban on its own connections.

Rules allow files, and folders with everything below them; other access is refused, even to the
owner. A restricted process cannot trace or read the memory of an unrestricted one (landlock(7)).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from remote_gpu.isolation.system import call

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # the same on all architectures
_VERSION_FLAG, _PATH_BENEATH = 1, 1

EXECUTE: Final = 1 << 0  # <linux/landlock.h>
_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG, _MAKE_SYM = 1 << 4, 1 << 5, 1 << 7, 1 << 8, 1 << 12
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
#: Access rights by version of the interface; a newer version has those of the last one.
_KNOWN = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_NET_SINCE, _SCOPED_SINCE = 4, 6
_BIND_CONNECT_TCP, _ABSTRACT_SOCKETS_SIGNALS = 3, 3

READ: Final = _READ_FILE | _READ_DIR
WRITE: Final = (
    READ
    | _WRITE_FILE
    | _REMOVE_DIR
    | _REMOVE_FILE
    | _MAKE_DIR
    | _MAKE_REG
    | _MAKE_SYM
    | _REFER
    | _TRUNCATE
)
DEVICE: Final = READ | _WRITE_FILE | _IOCTL_DEV
_OF_FILES: Final = EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV


class _Ruleset(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("access", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def version() -> int:
    """The version of this kernel's interface. Raises OSError where it is not enabled."""
    size = ctypes.c_size_t(0)
    return call(_CREATE, None, size, ctypes.c_uint32(_VERSION_FLAG), what="Landlock")


def restrict(abi: int, allowed: Iterable[tuple[Path, int]]) -> None:
    """Restrict this thread and its children to `allowed`: paths with their access rights.

    Paths that do not exist are left out. The restriction cannot be undone. Raises OSError.
    """
    handled = _KNOWN[max(one for one in _KNOWN if one <= abi)]
    ruleset = _Ruleset(
        fs=handled,
        net=_BIND_CONNECT_TCP if abi >= _NET_SINCE else 0,
        scoped=_ABSTRACT_SOCKETS_SIGNALS if abi >= _SCOPED_SINCE else 0,
    )
    size = 24 if abi >= _SCOPED_SINCE else 16 if abi >= _NET_SINCE else 8
    rules = call(
        _CREATE,
        ctypes.byref(ruleset),
        ctypes.c_size_t(size),
        ctypes.c_uint32(0),
        what="landlock_create_ruleset",
    )
    try:
        for path, access in allowed:
            _allow(rules, path, access & handled)
        call(_RESTRICT, ctypes.c_int(rules), ctypes.c_uint32(0), what="landlock_restrict_self")
    finally:
        os.close(rules)


def _allow(rules: int, path: Path, access: int) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not path.is_dir():
                access &= _OF_FILES
            rule = _Beneath(access=access, parent=parent)
            call(
                _ADD_RULE,
                ctypes.c_int(rules),
                ctypes.c_int(_PATH_BENEATH),
                ctypes.byref(rule),
                ctypes.c_uint32(0),
                what=f"landlock_add_rule of {path}",
            )
        finally:
            os.close(parent)

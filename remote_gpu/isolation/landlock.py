"""Landlock: the files that a process may access, and the ports of its TCP connections.

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
_VERSION_FLAG, _PATH_BENEATH, _NET_PORT = 1, 1, 2

EXECUTE: Final = 1 << 0  # <linux/landlock.h>
_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG, _MAKE_SYM = 1 << 4, 1 << 5, 1 << 7, 1 << 8, 1 << 12
_MAKE_SOCK, _MAKE_FIFO = 1 << 9, 1 << 10
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
#: Access rights by version of the interface; a newer version has those of the last one.
_KNOWN = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
NET_SINCE: Final = 4
_SCOPED_SINCE: Final = 6
_BIND_TCP, _CONNECT_TCP, _ABSTRACT_SOCKETS_SIGNALS = 1, 2, 3

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
#: A folder of a program's own, in which it may also start what it has written.
OWN: Final = WRITE | EXECUTE | _MAKE_SOCK | _MAKE_FIFO
DEVICE: Final = READ | _WRITE_FILE | _IOCTL_DEV
_OF_FILES: Final = EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV


class _Ruleset(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("access", ctypes.c_uint64), ("parent", ctypes.c_int32)]


class _Port(ctypes.Structure):
    _fields_ = [("access", ctypes.c_uint64), ("port", ctypes.c_uint64)]


def version() -> int:
    """The version of this kernel's interface. Raises OSError where it is not enabled."""
    size = ctypes.c_size_t(0)
    return call(_CREATE, None, size, ctypes.c_uint32(_VERSION_FLAG), what="Landlock")


def restrict(
    abi: int,
    allowed: Iterable[tuple[Path, int]],
    *,
    connect: Iterable[int] = (),
    bind: Iterable[int] = (),
) -> None:
    """Restrict this thread and its children to `allowed`: paths with their access rights.

    `connect`, `bind`: ports of TCP, at all addresses; 0 to bind = a port that the kernel chooses.
    Paths that do not exist are left out. The restriction cannot be undone. Raises OSError.
    """
    handled = _KNOWN[max(one for one in _KNOWN if one <= abi)]
    ruleset = _Ruleset(
        fs=handled,
        net=_BIND_TCP | _CONNECT_TCP if abi >= NET_SINCE else 0,
        scoped=_ABSTRACT_SOCKETS_SIGNALS if abi >= _SCOPED_SINCE else 0,
    )
    size = 24 if abi >= _SCOPED_SINCE else 16 if abi >= NET_SINCE else 8
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
        for access, ports in ((_CONNECT_TCP, connect), (_BIND_TCP, bind)):
            for port in ports if abi >= NET_SINCE else ():
                _add(rules, _NET_PORT, _Port(access=access, port=port), f"port {port}")
        call(_RESTRICT, ctypes.c_int(rules), ctypes.c_uint32(0), what="landlock_restrict_self")
    finally:
        os.close(rules)


def _allow(rules: int, path: Path, access: int) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not path.is_dir():
                access &= _OF_FILES
            _add(rules, _PATH_BENEATH, _Beneath(access=access, parent=parent), str(path))
        finally:
            os.close(parent)


def _add(rules: int, kind: int, rule: ctypes.Structure, what: str) -> None:
    call(
        _ADD_RULE,
        ctypes.c_int(rules),
        ctypes.c_int(kind),
        ctypes.byref(rule),
        ctypes.c_uint32(0),
        what=f"landlock_add_rule of {what}",
    )

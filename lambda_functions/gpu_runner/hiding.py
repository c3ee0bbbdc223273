"""Keeps what the user's script is not given out of its reach, as far as one user allows.

In Lambda the runner and the script have the same user. What the kernel would show that user of the
runner (`/proc/<pid>/environ`, `mem`, `fd`, ptrace) is closed by making the process undumpable; the
function's credentials are also wiped from the block that the process was started with, which not
even root finds there then. What cannot be hidden: the script may send signals to the runner, and
reach whatever the network lets the function reach without credentials.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

_PR_SET_DUMPABLE = 4  # <linux/prctl.h>
#: Static credentials of the function's role; a client that was made keeps its own copy.
CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
#: Wiped where it was handed in, but kept in `os.environ`: with it credentials are fetched again.
_TOKENS = ("AWS_CONTAINER_AUTHORIZATION_TOKEN",)
#: Fields of /proc/self/stat behind the name, counted from 0: where the block begins and ends.
_ENV_START, _ENV_END = 47, 48


def hide() -> None:
    """Close this process to others of its user; wipe credentials. Call it once clients are made.

    `os.environ` has no credentials afterwards. Safe to repeat.
    """
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    with contextlib.suppress(OSError, ValueError, IndexError):  # a kernel without these fields
        wipe_block((*CREDENTIALS, *_TOKENS))
    for name in CREDENTIALS:
        os.environ.pop(name, None)


def wipe_block(names: Sequence[str]) -> None:
    """Overwrite the values of these variables where the kernel put them at the start."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    at = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and os.fsdecode(name) in names:
            ctypes.memset(at + len(name) + 1, ord("x"), len(value))
        at += len(entry) + 1

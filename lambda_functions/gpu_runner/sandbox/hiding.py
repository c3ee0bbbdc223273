"""Protection of the function's credentials from the user's script.

In Lambda the runner and the script have the same user. An undumpable process closes
`/proc/<pid>/environ`, `mem`, `fd` and ptrace to other processes of that user; the credentials are
also wiped from the environment block that the process was started with, so that not even root finds
them there. The script can still send signals to the runner, and reach on the network what the
function reaches without credentials.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

_PR_SET_DUMPABLE = 4  # <linux/prctl.h>
#: Static credentials of the function's role; existing clients keep their own copies.
CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
#: Wiped from the block but kept in `os.environ`: boto3 fetches new credentials with it.
_TOKENS = ("AWS_CONTAINER_AUTHORIZATION_TOKEN",)
#: Fields of /proc/self/stat after the name, from 0: start and end of the block.
_ENV_START, _ENV_END = 47, 48


def hide() -> None:
    """Make this process undumpable and wipe its credentials, also from `os.environ`.

    Call it once clients are made. Safe to repeat.
    """
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    with contextlib.suppress(OSError, ValueError, IndexError):  # a kernel without these fields
        wipe_block((*CREDENTIALS, *_TOKENS))
    for name in CREDENTIALS:
        os.environ.pop(name, None)


def wipe_block(names: Sequence[str]) -> None:
    """Overwrite the values of these variables in the process's initial environment block."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    at = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and os.fsdecode(name) in names:
            ctypes.memset(at + len(name) + 1, ord("x"), len(value))
        at += len(entry) + 1

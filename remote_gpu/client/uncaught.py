"""What a program prints that a device's error ends: a traceback down to the program's own line.

The last lines of a program are what a job shows of it; frames of this package would fill them.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType

from remote_gpu.wire.errors import RemoteError

#: Its folder, with a separator; by hand, because pathlib costs a cold function milliseconds.
_PACKAGE = __file__.rpartition(os.sep)[0].rpartition(os.sep)[0] + os.sep


def end_in_own_line() -> None:
    """From now on an uncaught RemoteError is printed without this package's last frames.

    All other exceptions are printed as ever, and a program's own `sys.excepthook` stays. Safe to
    repeat.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print


def _print(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, RemoteError):
        sys.__excepthook__(kind, error, trace)
        return
    import traceback  # slow, and needed once

    told = traceback.TracebackException(kind, error, trace)
    while len(told.stack) > 1 and told.stack[-1].filename.startswith(_PACKAGE):
        told.stack.pop()
    sys.stderr.write("".join(told.format()))

"""The traceback of an uncaught device error, ending at the program's own line.

A job shows the last lines of its program's output; frames of our packages would fill them.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType

from remote_gpu.wire.errors import RemoteError

#: Beside which `operations` stands; by hand, because pathlib costs a cold function milliseconds.
_ROOT = __file__.rpartition(os.sep)[0].rpartition(os.sep)[0].rpartition(os.sep)[0]
_PACKAGES = tuple(f"{_ROOT}{os.sep}{name}{os.sep}" for name in ("remote_gpu", "operations"))


def end_in_own_line() -> None:
    """Print an uncaught RemoteError without our packages' last frames, from now on.

    Other exceptions are printed as usual, and a program's own `sys.excepthook` is kept. Safe to
    repeat.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print


def _print(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, RemoteError):
        sys.__excepthook__(kind, error, trace)
        return
    import traceback  # slow, and needed once

    summary = traceback.TracebackException(kind, error, trace)
    while len(summary.stack) > 1 and summary.stack[-1].filename.startswith(_PACKAGES):
        summary.stack.pop()
    sys.stderr.write("".join(summary.format()))

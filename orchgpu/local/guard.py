"""Run as a script: `guard.py PARENT_PID COMMAND…` becomes COMMAND, bound to the life of its parent.

The kernel sends SIGTERM to the program when the process that started it dies, even by SIGKILL;
that survives `exec`, so the program itself needs no code for it. It imports the standard library
only, and is started with `python -I -S`, which takes a few milliseconds.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main(arguments: list[str]) -> None:
    """Bind to the parent, then become the command. Never returns."""
    parent, command = int(arguments[0]), arguments[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the line above
        sys.exit(128 + signal.SIGTERM)
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(sys.argv[1:])

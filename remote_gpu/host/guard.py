"""Run as a script: `guard.py PARENT_PID PROGRAM…` becomes PROGRAM, killed when its parent ends.

The kernel sends SIGKILL when gpud dies, by whatever; that survives `exec`, so the program itself
needs to know nothing of it. Standard library only and no import of ours: it is started with
`python -I -S` to cost a few milliseconds.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main(arguments: list[str]) -> None:
    """Bind to the parent, then become the program. Never returns."""
    parent, program = int(arguments[0]), arguments[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        sys.exit(128 + signal.SIGKILL)
    os.execv(program[0], program)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(sys.argv[1:])

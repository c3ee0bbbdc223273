"""Run as a script: `guard.py PARENT_PID USER PROGRAM…` becomes PROGRAM, killed with its parent.

The kernel sends SIGKILL when gpud dies, by whatever; that survives `exec`, so the program itself
needs to know nothing of it. It begins when gpud has written a byte to its standard input, as a user
of its own unless USER is -1. Standard library only and no import of ours: it is started with
`python -I -S` to cost a few milliseconds.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38  # <linux/prctl.h>


def main(arguments: list[str]) -> None:
    """Bind to the parent, then become the program. Never returns."""
    parent, user, program = int(arguments[0]), int(arguments[1]), arguments[2:]
    libc = ctypes.CDLL(None)
    if not os.read(0, 1):  # gpud gave it up, or is gone
        sys.exit(128 + signal.SIGKILL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if user >= 0:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # another user would have lost it
    if os.getppid() != parent:  # it died before the line above
        sys.exit(128 + signal.SIGKILL)
    os.execv(program[0], program)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(sys.argv[1:])

"""Run as a script: `guard.py PARENT_PID SIGNAL USER HELD COMMAND…` becomes COMMAND.

The kernel sends the signal to COMMAND when its parent dies, even by SIGKILL; it survives `exec`: so
the program itself needs no code for it. USER -1: the parent's own user. HELD 1: it begins when the
parent has written a byte to its standard input. Standard library only and no import of ours: it is
started with `python -I -S` to cost a few milliseconds (`corekit.aio.process.guarded`).
"""

import ctypes
import os
import sys

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38  # <linux/prctl.h>


def main(arguments: list[str]) -> None:
    """Bind to the parent, then become the command. Never returns."""
    parent, signal, user, held = map(int, arguments[:4])
    command = arguments[4:]
    libc = ctypes.CDLL(None)
    if held:
        if not os.read(0, 1):  # the parent closed it, or is gone
            sys.exit(128 + signal)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
    if user >= 0:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal)  # after the change of user, which resets it
    if os.getppid() != parent:  # it died before the line above
        sys.exit(128 + signal)
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(sys.argv[1:])

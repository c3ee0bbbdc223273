"""Run as a script: `warden.py PARENT_PID STATUS_FD PROGRAM…` runs PROGRAM and ends all it started.

It leads a process group of its own. When PROGRAM ends, its status is written and the group killed;
when the parent ends, by whatever, the kernel tells this process and the group is killed. Standard
library only and no import of ours: it is started with `python -I -S` to cost a few milliseconds.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main(arguments: list[str]) -> None:
    """Never returns."""
    parent, status, program = int(arguments[0]), int(arguments[1]), arguments[2:]
    signal.signal(signal.SIGTERM, _kill_group)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the line above
        _kill_group()
    pid = os.fork()
    if pid == 0:
        os.set_inheritable(status, False)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            os.execve(program[0], program, {})  # noqa: S606 - no shell is wanted
        except OSError as error:
            os.write(2, f"{program[0]}: {error.strerror}\n".encode())
        os._exit(127)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(status, str(code).encode())
    _kill_group()


def _kill_group(*_: object) -> None:
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])

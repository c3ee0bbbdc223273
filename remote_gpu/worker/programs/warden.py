"""A script: `warden.py PARENT_PID STATUS_FD[,FD] FOLDER PROGRAM…` runs PROGRAM in FOLDER, and ends
all processes that it started. FD stays open until all of them have ended.

Orphans among the descendants become children of this process, their subreaper. When the program or
the parent has ended, or at SIGTERM, every descendant is killed and reaped, the folder is removed,
and the program's exit status, if it has one, is written. Standard library only: it is started with
`python -I -S`, which takes a few milliseconds.
"""

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>


#: Blocked, and received by `sigwait` only: a handler that runs between the last check of the
#: interpreter and a blocking `waitpid` would be noticed when that returns, that is, too late.
_SIGNALS = frozenset({signal.SIGTERM, signal.SIGCHLD})


def main(arguments: list[str]) -> None:
    """Returns when all processes of the program have ended."""
    parent, held = int(arguments[0]), [int(number) for number in arguments[1].split(",")]
    folder, program = Path(arguments[2]), arguments[3:]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    libc = ctypes.CDLL(None)
    adopt_orphans()
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    code = None
    if os.getppid() == parent:  # else it ended before the line above
        code = _run(program, libc, held)
    end_children()
    _remove(folder)
    if code is not None:
        os.write(held[0], str(code).encode())


def _run(program: list[str], libc: ctypes.CDLL, held: list[int]) -> int | None:
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # if the warden is killed
        for number in held:
            os.set_inheritable(number, False)
        try:
            own = {name: value for name, value in os.environ.items() if name[:5] == "CUDA_"}
            os.execve(program[0], program, own)  # noqa: S606 - no shell is wanted
        except OSError as error:
            os.write(2, f"{program[0]}: {error.strerror}\n".encode())
        os._exit(127)
    while signal.sigwait(_SIGNALS) == signal.SIGCHLD:
        ended = -1
        while ended:  # one signal may stand for several children
            ended, code = os.waitpid(-1, os.WNOHANG)
            if ended == pid:
                return os.waitstatus_to_exitcode(code)
    return None


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent ends (prctl(2), subreaper)."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_children() -> None:
    """Kill and reap all children, and their orphans."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    with contextlib.suppress(ChildProcessError):
        while True:
            for pid in children.read_text().split():
                os.kill(int(pid), signal.SIGKILL)  # valid: children are reaped only here
            os.waitpid(-1, 0)


def _remove(folder: Path) -> None:
    """Remove the folder, ignoring errors; `shutil` would take too long to import."""
    for path in sorted(folder.rglob("*"), reverse=True):  # a folder's content comes before it
        with contextlib.suppress(OSError):
            (path.rmdir if path.is_dir() and not path.is_symlink() else path.unlink)()
    with contextlib.suppress(OSError):
        folder.rmdir()


if __name__ == "__main__":
    main(sys.argv[1:])

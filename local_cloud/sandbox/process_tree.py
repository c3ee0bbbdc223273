"""Every process of an environment: its group, its session, and its descendants.

A function may put children into their own groups or sessions; freezing and killing must reach those
too, so the kernel's list of children is walked as well.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

_PROC = Path("/proc")
_PF_EXITING = 0x4  #: <linux/sched.h>: it handles its end, and is not a zombie yet
_SIGKILL_BIT = 1 << (signal.SIGKILL - 1)


def descendants(pid: int) -> list[int]:
    """Children, their children and so on; without `pid` itself."""
    pids: list[int] = []
    todo = [pid]
    while todo:
        for task in _tasks(todo.pop()):
            with contextlib.suppress(OSError):
                children = [int(text) for text in (task / "children").read_text().split()]
                pids += children
                todo += children
    return pids


def _tasks(pid: int) -> list[Path]:
    with contextlib.suppress(OSError):
        return list((_PROC / str(pid) / "task").iterdir())
    return []


def session_members(session: int) -> list[int]:
    """Every process of a session, orphans included; reads the whole process table."""
    pids = []
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session:
                    pids.append(int(entry.name))
    return pids


def processes_in(folder: Path) -> list[int]:
    """Every process that works in `folder` or has it in its environment, with any parent."""
    name = os.fsencode(folder)
    values = (name + b"/", name + b"\0")  # `…/1` is not in `…/10`
    pids = []
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                inside = (entry / "cwd").readlink().is_relative_to(folder)
                if inside or _has_any((entry / "environ").read_bytes(), values):
                    pids.append(int(entry.name))
    return pids


def _has_any(data: bytes, values: tuple[bytes, ...]) -> bool:
    return any(value in data for value in values)


def is_alive(pid: int) -> bool:
    """Whether a process lives; False while it ends: killed, exiting, or a zombie.

    The pending signals are read first: a SIGKILL leaves them just before the exit is flagged.
    """
    try:
        status = (_PROC / str(pid) / "status").read_text()
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    pending = [line.split()[1] for line in status.splitlines() if line[:6] in ("SigPnd", "ShdPnd")]
    killed = any(int(text, 16) & _SIGKILL_BIT for text in pending)
    return not killed and fields[0] not in "ZX" and not int(fields[6]) & _PF_EXITING


def processor_wait_s(pid: int) -> float:
    """The time in which a process could have run and no processor was free: its main thread's,
    from <https://docs.kernel.org/scheduler/sched-stats.html>; 0 where the kernel does not count it.
    """
    try:
        return int((_PROC / str(pid) / "schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def signal_all(pid: int, number: signal.Signals) -> None:
    """Signal the group of `pid` and all descendants; processes that ended are skipped."""
    below = descendants(pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
    for child in below:  # a set-user-id program cannot be signalled
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(child, number)


def kill_all(pid: int, folder: Path) -> None:
    """SIGKILL for the session of `pid`, everything below it, and all that works in `folder`.

    Stopped first, so that nothing can fork away between looking and killing.
    """
    signal_all(pid, signal.SIGSTOP)
    kill(pid, *descendants(pid), *session_members(pid), *processes_in(folder))


def kill(*pids: int) -> None:
    """SIGKILL for each but this process; processes that ended are skipped."""
    for pid in dict.fromkeys(pids):
        if pid != os.getpid():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

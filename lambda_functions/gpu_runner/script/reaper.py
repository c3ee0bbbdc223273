"""The end of every process that a script started, at the end of its run at the latest.

Three mechanisms, because each has a gap: killing the process group misses a child that made itself
a session (`setsid`); adopting orphans as their subreaper catches that child while the runner lives;
and the guard, a shell that waits for the end of a pipe held by the runner, kills the group when the
runner is killed. A script whose runner is killed in the microseconds between the script's start and
the note to the guard ends with the sandbox.

PR_SET_PDEATHSIG is not used: it must be set between fork and exec, which forbids vfork and costs a
warm run more than all of the above.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
#: Orphans of orphans are adopted one generation at a time; a fork bomb must not block the runner.
_ROUNDS_MAX = 100
#: Reads lines of process group ids; the end of input kills those of the last line. When the runner
#: dies in a frozen sandbox, the kernel sends SIGHUP and SIGCONT: the guard is in its session.
_GUARD = """\
trap "" HUP
g=
while read -r n; do g=$n; done
for n in $g; do kill -s KILL -- "-$n"; done
exit 0
"""


_LIBC = ctypes.CDLL(None)


def adopt_orphans(adopt: bool) -> None:
    """Make this process the subreaper of its descendants, or end that."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


def children() -> frozenset[int]:
    """The child processes of this one, including ended ones that are not reaped yet."""
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):  # noqa: PTH208 - twice per run; Path is 4x slower
        try:
            found.update(map(int, _read(f"/proc/self/task/{task}/children").split()))
        except (FileNotFoundError, ProcessLookupError):  # the thread ended meanwhile, or
            if Path("/proc/self/task", task).exists():  # a kernel without CONFIG_PROC_CHILDREN
                return _children_by_scan()
    return frozenset(found)


def _read(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY)
    try:
        data = b""
        while chunk := os.read(file, 1 << 16):
            data += chunk
        return data
    finally:
        os.close(file)


def _children_by_scan() -> frozenset[int]:
    found: set[int] = set()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (place / "stat").read_bytes().rpartition(b")")[2].split()
            if int(fields[1]) == os.getpid():
                found.add(int(place.name))
    return frozenset(found)


def sweep_children(spared: frozenset[int], session: int = 0) -> int:
    """Kill and reap all children except `spared`, and their orphans; returns how many.

    `session`: only those of this session.
    """
    killed = 0
    for _ in range(_ROUNDS_MAX):
        strangers = sorted(children() - spared)
        if session:
            strangers = [pid for pid in strangers if _is_of(session, pid)]
        if not strangers:
            break
        for pid in strangers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in strangers:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
                killed += 1
    return killed


def _is_of(session: int, pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid) == session
    return False


class Guard:
    """The shell that kills process groups when this process has ended; one per sandbox."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            bufsize=0,
            process_group=0,
        )

    @property
    def alive(self) -> bool:
        """False once it was killed; a new one is needed."""
        return self._process.poll() is None

    def watch(self, groups: Iterable[int]) -> None:
        """Kill these when this process ends, and no others."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(" ".join(map(str, groups)).encode("ascii") + b"\n")

    def close(self) -> None:
        """End the guard without killing a group. Safe to repeat."""
        self.watch(())
        if self._process.stdin is not None:
            self._process.stdin.close()
            self._process.stdin = None
        self._process.wait()


_guard: Guard | None = None


def guard() -> Guard:
    """The guard of this sandbox, started on first use."""
    global _guard  # noqa: PLW0603 - one per process by nature, like the S3 client
    if _guard is None or not _guard.alive:
        _guard = Guard()
    return _guard


class Runs:
    """The runs under way in this sandbox, and the processes that wait for their next one.

    Thread-safe. Runs side by side spare each other's processes: what one of them left behind in a
    session of its own ends when no run is under way.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guard: Guard | None = None
        self._count = 0
        self._beside = False  #: the newest run began beside another one
        self._groups: set[int] = set()
        self._spared: frozenset[int] = frozenset()

    def begin(self) -> None:
        """Adopt the orphans of a run, until its end."""
        with self._lock:
            if not self._count:
                self._guard = guard()
                self._spared = children()
                self._groups &= self._spared  # the others have ended
                self._watch()
                adopt_orphans(True)
            self._beside = self._count > 0
            self._count += 1

    def start(self, command: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """Start the process of a run, which leads a group. Raises what `command` raises."""
        with self._lock:
            process = command()
            self._groups.add(process.pid)
            self._watch()
        return process

    def sweep(self, group: int) -> None:
        """Kill what the run of a group left behind."""
        with self._lock:
            spared = self._spared | self._groups
            sweep_children(spared, 0 if self._count == 1 else group)
            if self._count > 1:
                for pid in children() - spared:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)

    def end(self, group: int | None) -> None:
        """A run is over; `group`: it has ended, too."""
        with self._lock:
            if group is not None:
                self._groups.discard(group)
                self._watch()
            self._count -= 1
            if not self._count:
                if self._beside:  # two that end at once have spared each other's
                    sweep_children(self._spared | self._groups)
                adopt_orphans(False)

    def forget(self, group: int) -> None:
        """The process of a group was killed between two runs; its number may be another's soon."""
        with self._lock:
            self._groups.discard(group)
            self._watch()

    def _watch(self) -> None:
        if self._guard is not None:
            self._guard.watch(self._groups)


#: One per process by nature, like the guard.
RUNS = Runs()

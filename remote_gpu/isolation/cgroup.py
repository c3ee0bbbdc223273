"""A control group per lease (version 2): its memory and tasks limited, and killed as a whole."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Final

from remote_gpu.isolation.policy import TASKS_MAX

_CONTROLLERS: Final = ("memory", "pids")
_FREEZE_S, _POLL_S = 1.0, 0.002


def own_folder() -> Path:
    """The folder of this process's group. Raises OSError where version 2 is not mounted."""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        fields, _, rest = line.partition(" - ")
        if rest.split()[0] == "cgroup2":
            group = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
            own = next(one[3:] for one in group if one.startswith("0::"))
            return Path(fields.split()[4]) / own.lstrip("/")
    raise OSError("cgroup version 2 is not mounted")


def try_folder(folder: Path) -> None:
    """Try to make, kill and remove a group in a folder. Raises OSError."""
    group = Group(folder, f"orchgpu-probe-{os.getpid()}")
    try:
        group.kill()
    finally:
        group.remove()


def prepare(folder: Path) -> None:
    """Delegate the controllers to groups below, as far as gpud has them.

    A group with processes of its own cannot do that: if gpud is its only process, it moves into a
    group below (as with systemd's `DelegateSubgroup=`).
    """
    names = (folder / "cgroup.controllers").read_text(encoding="ascii").split()
    wanted = " ".join(f"+{name}" for name in _CONTROLLERS if name in names)
    if not wanted:
        return
    with contextlib.suppress(OSError):
        try:
            _write(folder / "cgroup.subtree_control", wanted)
        except OSError as error:
            alone = (folder / "cgroup.procs").read_text(encoding="ascii").split()
            if error.errno != errno.EBUSY or alone != [str(os.getpid())]:
                raise
            (folder / "gpud").mkdir(exist_ok=True)
            _write(folder / "gpud" / "cgroup.procs", str(os.getpid()))
            _write(folder / "cgroup.subtree_control", wanted)


class Group:
    """One group below a folder, empty when it is made. Raises OSError."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder / name
        self.folder.mkdir()

    def limit(self, memory_bytes: int, tasks: int = TASKS_MAX) -> None:
        """Limit its processes together, by the controllers that are available."""
        for name, value in (("memory.max", memory_bytes), ("pids.max", tasks)):
            with contextlib.suppress(OSError):
                _write(self.folder / name, str(value))

    def admit(self, pid: int) -> None:
        """Move a process in; its children inherit the group. Raises OSError."""
        _write(self.folder / "cgroup.procs", str(pid))

    def kill(self) -> None:
        """Kill its processes with SIGKILL, one by one before Linux 5.14."""
        try:
            _write(self.folder / "cgroup.kill", "1")
        except FileNotFoundError:
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)

    def freeze(self) -> None:
        """Stop its processes; blocks until none of them runs. SIGKILL still ends them.

        Raises OSError, TimeoutError when one is blocked in the kernel.
        """
        _write(self.folder / "cgroup.freeze", "1")
        until_s = time.monotonic() + _FREEZE_S
        while "frozen 1" not in (self.folder / "cgroup.events").read_text(encoding="ascii"):
            if time.monotonic() > until_s:
                raise TimeoutError("a process cannot be frozen")
            time.sleep(_POLL_S)

    def thaw(self) -> None:
        """Continue its processes. Raises OSError."""
        _write(self.folder / "cgroup.freeze", "0")

    def pids(self) -> list[int]:
        """Its processes."""
        try:
            text = (self.folder / "cgroup.procs").read_text(encoding="ascii")
        except OSError:  # it is gone
            return []
        return [int(pid) for pid in text.split()]

    def remove(self) -> bool:
        """Remove the group; False while it has a process that has not ended."""
        with contextlib.suppress(FileNotFoundError):
            try:
                self.folder.rmdir()
            except OSError as error:
                if error.errno == errno.EBUSY:
                    return False
                raise
        return True


def remove_all(folder: Path) -> None:
    """Kill and remove a folder of groups; a group that cannot be removed stays."""
    with contextlib.suppress(OSError):
        for below in [one for one in folder.iterdir() if one.is_dir()]:
            with contextlib.suppress(OSError):
                _write(below / "cgroup.kill", "1")
            with contextlib.suppress(OSError):
                below.rmdir()
        folder.rmdir()


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode("ascii"))
    finally:
        os.close(descriptor)

"""Files that a lease's processes may access: libraries and drivers to read, its own to write."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from remote_gpu.isolation.landlock import DEVICE, EXECUTE, OWN, READ, WRITE

#: On every machine: libraries, and configurations of the loader, drivers and time zones.
_SYSTEM = (
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/bin",
    "/sbin",
    "/opt/rocm",
    "/opt/amdgpu",
    "/opt/intel",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/OpenCL",
    "/etc/nvidia",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/nsswitch.conf",
    "/etc/mime.types",
    "/sys/devices",
    "/sys/bus",
    "/sys/class",
    "/sys/module",
)
#: In a /proc that shows other processes too: files about the machine and about this process.
_PROC = (
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/version",
    "/proc/devices",
    "/proc/modules",
    "/proc/filesystems",
    "/proc/driver",
    "/proc/sys/kernel",
    "/proc/sys/vm",
)
#: Linkers by which a compiler of OpenCL for CPUs makes a library of a kernel, and their loader.
_LINKERS = (
    "/usr/bin/ld",
    "/usr/bin/ld.lld",
    "/usr/bin/ld.gold",
    "/usr/bin/ld.bfd",
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-aarch64.so.1",
)
#: Of a program that connects to others by name: names, their servers, and trusted authorities.
NETWORK = (
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/protocols",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
#: By kind of device: device files of cards, and memory shared with the driver's services.
_CARDS: Mapping[str, tuple[str, ...]] = {
    "cuda": ("nvidia*", "dri", "shm"),
    "opencl": ("dri", "kfd", "nvidia*"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFiles:
    """Files of this host that all leases may access."""

    data: tuple[Path, ...] = ()  #: `gpud --data`
    programs: tuple[Path, ...] = ()  #: `gpud --program`
    pipes: tuple[Path, ...] = ()  #: pipes of NVIDIA MPS


def libraries() -> list[Path]:
    """The folders of this Python, of the packages it has loaded, and of `LD_LIBRARY_PATH`.

    The folder in which a program was started and that of its script are left out: workers have
    neither.
    """
    path = sys.path if sys.flags.safe_path else sys.path[1:]
    found = {sys.prefix, sys.base_prefix, sys.exec_prefix, *(one for one in path if one)}
    for name, module in tuple(sys.modules.items()):
        if "." not in name:
            found.update(str(one) for one in getattr(module, "__path__", ()))
    found.update(os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    return sorted(Path(one) for one in found if Path(one).is_absolute() and Path(one).exists())


def read_by_leases(path: Path, host: HostFiles) -> Path | None:
    """The folder around a path that all leases may read, if there is one."""
    open_to_all = (*map(Path, _SYSTEM), *libraries(), *host.data)
    whole = path.resolve()
    return next((one for one in open_to_all if whole.is_relative_to(one.resolve())), None)


def allowed(
    host: HostFiles,
    read: Iterable[Path],
    own: Iterable[Path],
    kinds: Collection[str],
    *,
    execute: bool,
    link: bool,
    own_proc: bool,
    own_programs: bool = False,
) -> list[tuple[Path, int]]:
    """Rules for `landlock.restrict`. `own`: files of the lease; `kinds`: of its devices;
    `own_programs`: it may start programs among its own files."""
    run = READ | (EXECUTE if execute else 0)
    found = [(Path(one), run) for one in _SYSTEM]
    found += [(one, run) for one in (*read, *host.programs)]
    found += [(one, READ) for one in host.data]
    found += [(one, OWN if own_programs else WRITE) for one in own]
    # the warden of a program reads the list of its processes
    found += [(Path(one), READ) for one in (("/proc",) if own_proc or execute else _PROC)]
    found += [(Path(one), DEVICE) for one in _DEVICES]
    if link:
        found += [(Path(one), READ | EXECUTE) for one in _LINKERS]
    for kind in kinds:
        for pattern in _CARDS.get(kind, ()):
            found += [(one, DEVICE | WRITE) for one in Path("/dev").glob(pattern)]
    if "cuda" in kinds:
        found += [(one, WRITE) for one in host.pipes]
    return found

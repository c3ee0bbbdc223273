"""What runs may leave on the hosts of a `Live`: processes, folders, mounts, cgroups."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from orchgpu.local.programs import HOSTS
from remote_gpu.isolation.apply import SCRATCH_NAME
from remote_gpu.isolation.cgroup import own_folder
from tests.e2e.live import Live


def run_processes(live: Live, host: str) -> list[int]:
    """Those of the runs of a host, runners and users' code: their folder is in its scratch."""
    scratch = str(live.home.state(host) / SCRATCH_NAME)
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(entry / "cwd").startswith(scratch):
                found.append(int(entry.name))
    return sorted(found)


def remains(live: Live, gpuds: set[int]) -> list[str]:
    """What is left of runs, while no job is there. `gpuds`: every process of a host that was."""
    return [*_processes(live), *_folders(live), *_mounts(live), *_groups(gpuds)]


def _processes(live: Live) -> Iterator[str]:
    for host in HOSTS:
        yield from (f"process {pid}" for pid in run_processes(live, host))


def _folders(live: Live) -> Iterator[str]:
    for host in HOSTS:
        yield from map(str, (live.home.state(host) / SCRATCH_NAME).iterdir())


def _mounts(live: Live) -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if str(live.home.path) in line:
            yield f"mount {line}"


def _groups(gpuds: set[int]) -> Iterator[str]:
    """Cgroups of hosts that have ended, and empty ones: workers in reserve have theirs."""
    with contextlib.suppress(OSError):  # no version 2 here
        for pid in gpuds:
            folder = own_folder() / f"orchgpu-{pid}"
            if not folder.is_dir():
                continue
            if not Path(f"/proc/{pid}").exists():
                yield f"{folder}, of a host that has ended"
            for group in folder.glob("*/cgroup.procs"):
                if not group.read_text():
                    yield f"{group.parent}, which is empty"

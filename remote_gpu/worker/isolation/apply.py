"""Puts processes into their isolation: the spawner once, each worker before it serves anybody.

Every step raises OSError when the kernel refuses it. The policy was decided by trying them, so that
is a fault: a worker that cannot be isolated ends, and is never used without.
"""

from __future__ import annotations

import contextlib
import os
import resource
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from remote_gpu.worker.isolation import (
    bind_mounts,
    capabilities,
    hardening,
    landlock,
    namespaces,
    places,
    seccomp,
    system,
    users,
)
from remote_gpu.worker.isolation.policy import LANDLOCK_SIGNALS, TASKS_MAX, Policy

_READ_BY_GROUP = 0o007  #: umask: leases of a tenant have its group in common


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """What one lease's processes have of their own; given by gpud."""

    user: int = -1  #: -1: gpud's own
    group: int = -1  #: the tenant's
    folder: str = ""  #: for temporary files, removed after the lease; "" = the machine's
    compiled: str = ""  #: below the tenant's compiled kernels, this lease's; "" = all of them
    kinds: tuple[str, ...] = ()  #: of the lease's devices


def enclose_spawner(policy: Policy, host: places.Host, kept: Path) -> Callable[[], int]:
    """What all workers inherit; returns what forks one of them. Single-threaded still.

    Where processes have a namespace of their own, the caller is another process afterwards.
    """
    if policy.spaces or policy.network:
        if os.geteuid():
            namespaces.leave_users()
        if policy.network:
            namespaces.leave_network()
    if policy.users:
        with contextlib.suppress(OSError):  # not needed where all can be reached: `Facts.unreached`
            namespaces.leave_mounts()
            read = places.libraries()
            scratch = kept.parent / SCRATCH_NAME
            bind_mounts.cover([*read, *host.data, *host.programs, *host.pipes, kept, scratch])
    fork: Callable[[], int] = os.fork
    if policy.spaces:
        namespaces.lead_processes()
        fork = namespaces.NamespaceForker().fork
    hardening.make_undumpable()
    return fork


#: Beside the folder of kept contents: one folder for each lease's temporary files.
SCRATCH_NAME = "scratch"


def enclose_worker(policy: Policy, host: places.Host, sandbox: Sandbox, kept: Path | None) -> None:
    """This process is the lease's alone from now on. Single-threaded still."""
    hardening.make_undumpable()
    if policy.spaces:
        namespaces.own_proc()
    if policy.own_users:
        namespaces.leave_user_briefly_seen()
    if sandbox.folder:
        _use_folder(sandbox.folder)
    if policy.users and sandbox.user >= 0:
        os.umask(_READ_BY_GROUP)
        users.become(sandbox.user, sandbox.group)
        hardening.make_undumpable()
    if policy.seccomp or policy.landlock:
        capabilities.drop_all()
    hardening.set_no_new_privileges()
    if policy.own_users or (policy.users and sandbox.user >= 0):
        resource.setrlimit(resource.RLIMIT_NPROC, (TASKS_MAX, TASKS_MAX))
    if policy.landlock:
        own = [Path(sandbox.folder)] if sandbox.folder else []
        landlock.restrict(
            policy.landlock,
            places.allowed(
                host,
                places.libraries(),
                [*own, kept] if kept is not None else own,
                sandbox.kinds,
                execute=policy.execute,
                link=policy.link,
                own_proc=policy.spaces,
            ),
        )
    if policy.seccomp:
        code = seccomp.build(system.architecture(), permit(policy, sandbox.kinds), os.getpid())
        seccomp.install(code)


def permit(policy: Policy, kinds: Collection[str]) -> seccomp.Permit:
    """What a worker's filter lets through, beyond computing. Pure."""
    apart = policy.spaces or policy.users or policy.landlock >= LANDLOCK_SIGNALS
    return seccomp.Permit(
        start=policy.execute,
        link=policy.link,
        local_sockets="cuda" in kinds,
        attributes=policy.users,
        others=(policy.execute or policy.link) and apart,
        parents=(policy.execute or policy.link) and not policy.spaces,
    )


def _use_folder(folder: str) -> None:
    """For all that libraries keep in the temporary folder, or below the home."""
    os.chdir("/")
    os.environ.update(TMPDIR=folder, HOME=folder, XDG_CACHE_HOME=folder)
    tempfile.tempdir = folder
    machine = Path(folder, "machine")  # PoCL's hwloc opens the root it looks below: it may, here
    machine.mkdir()
    for name in ("sys", "proc"):
        (machine / name).symlink_to(f"/{name}")
    os.environ.update(HWLOC_FSROOT=str(machine), HWLOC_THISSYSTEM="1")

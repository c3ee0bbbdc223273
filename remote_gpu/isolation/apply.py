"""Isolation of processes: of the spawner once, of each worker before it serves a client.

Every step raises OSError when the kernel refuses it. The policy was decided by trying every step,
so a refusal is a fault: a worker that cannot be isolated ends, and serves no client.
"""

from __future__ import annotations

import contextlib
import os
import resource
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from remote_gpu.isolation import (
    bind_mounts,
    landlock,
    namespaces,
    places,
    privileges,
    seccomp,
    system,
    users,
)
from remote_gpu.isolation.policy import LANDLOCK_SIGNALS, TASKS_MAX, IsolationPolicy

_READ_BY_GROUP = 0o007  #: umask: leases of a tenant share its group


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """The user, group and folders of one lease's processes; made by gpud."""

    user: int = -1  #: -1: gpud's own
    group: int = -1  #: the tenant's
    folder: str = ""  #: for temporary files, removed after the lease; "" = the machine's
    compiled: str = ""  #: this lease's folder below the tenant's compiled kernels; "" = all of them
    kinds: tuple[str, ...] = ()  #: kinds of the lease's devices
    data: str = ""  #: folder of the declared data sets of its tenant; "" = none


def isolate_spawner(
    policy: IsolationPolicy, host: places.HostFiles, kept: Path
) -> Callable[[], int]:
    """Isolate the spawner, still single-threaded; returns the function that forks a worker.

    With process namespaces, the caller is another process afterwards.
    """
    if policy.pid_namespace or policy.network:
        if os.geteuid():
            namespaces.unshare_user()
        if policy.network:
            namespaces.unshare_network()
    if policy.users:
        with contextlib.suppress(
            OSError
        ):  # not needed where all files can be reached: `Facts.unreached`
            namespaces.unshare_mounts()
            read = places.libraries()
            own = (kept, kept.parent / SCRATCH_NAME, kept.parent / VIEWS_NAME)
            bind_mounts.cover([*read, *host.data, *host.programs, *host.pipes, *own])
    fork: Callable[[], int] = os.fork
    if policy.pid_namespace:
        namespaces.become_first_process()
        fork = namespaces.NamespaceForker().fork
    privileges.make_undumpable()
    return fork


#: Beside the folder of kept contents: one folder for each lease's temporary files.
SCRATCH_NAME = "scratch"
#: Beside it: one folder for each tenant's declared data sets, read-only.
VIEWS_NAME = "data-views"
#: In a lease's folder: links to parts of the machine, which a driver opens when it is loaded.
MACHINE_NAME = "machine"


def isolate_worker(
    policy: IsolationPolicy, host: places.HostFiles, sandbox: Sandbox, kept: Path | None
) -> None:
    """Isolate this worker for its lease, while it is single-threaded."""
    privileges.make_undumpable()
    if policy.pid_namespace:
        namespaces.own_proc()
    if policy.user_namespace:
        namespaces.unshare_user_of_undumpable()
    if sandbox.folder:
        _use_folder(sandbox.folder)
    if policy.users and sandbox.user >= 0:
        os.umask(_READ_BY_GROUP)
        users.become(sandbox.user, sandbox.group)
        privileges.make_undumpable()
    if policy.seccomp or policy.landlock:
        privileges.drop_capabilities()
    privileges.set_no_new_privileges()
    if policy.user_namespace or (policy.users and sandbox.user >= 0):
        resource.setrlimit(resource.RLIMIT_NPROC, (TASKS_MAX, TASKS_MAX))
    if policy.landlock:
        own = [Path(sandbox.folder)] if sandbox.folder else []
        landlock.restrict(
            policy.landlock,
            places.allowed(
                host,
                [*places.libraries(), *([Path(sandbox.data)] if sandbox.data else [])],
                [*own, kept] if kept is not None else own,
                sandbox.kinds,
                execute=policy.execute,
                link=policy.link,
                own_proc=policy.pid_namespace,
            ),
        )
    if policy.seccomp:
        code = seccomp.build(system.architecture(), permit(policy, sandbox.kinds), os.getpid())
        seccomp.install(code)


def permit(policy: IsolationPolicy, kinds: Collection[str]) -> seccomp.Permit:
    """The exceptions of a worker's filter of system calls. Pure."""
    apart = policy.pid_namespace or policy.users or policy.landlock >= LANDLOCK_SIGNALS
    return seccomp.Permit(
        start=policy.execute,
        link=policy.link,
        local_sockets="cuda" in kinds,
        attributes=policy.users,
        others=(policy.execute or policy.link) and apart,
        parents=(policy.execute or policy.link) and not policy.pid_namespace,
    )


def _use_folder(folder: str) -> None:
    os.chdir("/")
    os.environ.update(TMPDIR=folder, HOME=folder, XDG_CACHE_HOME=folder)
    tempfile.tempdir = folder
    machine = Path(folder, MACHINE_NAME)  # PoCL's hwloc must be able to open its root
    machine.mkdir()
    for name in ("sys", "proc"):
        (machine / name).symlink_to(f"/{name}")
    os.environ.update(HWLOC_FSROOT=str(machine), HWLOC_THISSYSTEM="1")

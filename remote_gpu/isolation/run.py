"""Isolation of a run: of a function's runner, which is its package's code, and of the user's code.

The runner needs the network, for S3; so ports limit it, never an address. It may connect to the
gateway, to HTTPS and to its endpoints, look names up, and read its package. The user's code, which
it starts by `confine.py`, loses the rest: it sees neither the runner's folder nor its processes,
has no sockets but TCP's, and may connect to the gateway alone, unless its function has the network.

Port 80 is never open: a cloud machine serves the credentials of its own role there.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
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
from remote_gpu.isolation.apply import Sandbox, permit
from remote_gpu.isolation.policy import TASKS_MAX, IsolationPolicy
from remote_gpu.isolation.system import prctl

#: In the sandbox's folder: of the runner alone, and the temporary folder that it shares with the
#: user's code.
PRIVATE_NAME, TMP_NAME = "private", "tmp"
#: Beside them: links to the declared data sets of its lease.
DATA_NAME = "data"
_CONFINE = Path(__file__).with_name("confine.py")
_HTTPS, _DNS = 443, 53
_ANY_FREE = (0,)
_PORTS = range(1, 1 << 16)
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReach:
    """The files and ports that a run may reach, beside the libraries of its host."""

    files: places.HostFiles
    packages: Path  #: the tenant's folder of packages
    gateway_port: int
    endpoint_ports: tuple[int, ...] = ()  #: of the cloud's services, beside HTTPS
    closed_ports: tuple[int, ...] = ()  #: to which the user's code never connects
    network: bool = False  #: the user's code may connect to all others


def enter(policy: IsolationPolicy, sandbox: Sandbox, reach: RunReach, parent: int) -> None:
    """Become the lease's user, in namespaces of its own and without privileges. Raises OSError.

    With a process namespace, the caller is its first process afterwards. `parent`: gpud, with which
    this process ends.
    """
    if policy.pid_namespace and os.geteuid():
        namespaces.unshare_user()
    if policy.users:
        with contextlib.suppress(OSError):  # not needed where all files can be reached
            namespaces.unshare_mounts()
            files = reach.files
            needed = [*places.libraries(), *files.data, *files.pipes, reach.packages.parent]
            bind_mounts.cover([*needed, *_declared(sandbox), Path(sandbox.folder).parent])
    alive, ours = os.pipe()
    if policy.pid_namespace:
        namespaces.become_first_process()
        namespaces.own_proc()
        os.close(ours)
    if policy.users and sandbox.user >= 0:
        users.become(sandbox.user, sandbox.group)
    prctl(_PR_SET_PDEATHSIG, _SIGKILL)  # after the change of user, which resets it
    if policy.pid_namespace:
        os.set_blocking(alive, False)
        with contextlib.suppress(BlockingIOError):
            os.read(alive, 1)  # the end: its parent ended before the line above
            os._exit(1)
    else:
        os.close(ours)
        if os.getppid() != parent:
            os._exit(1)
    os.close(alive)
    privileges.make_undumpable()
    if policy.seccomp or policy.landlock:
        privileges.drop_capabilities()
    privileges.set_no_new_privileges()
    if policy.user_namespace or (policy.users and sandbox.user >= 0):
        resource.setrlimit(resource.RLIMIT_NPROC, (TASKS_MAX, TASKS_MAX))


def restrict(
    policy: IsolationPolicy, sandbox: Sandbox, reach: RunReach, *own: Path, package: Path | None
) -> None:
    """Restrict files and connections of this process, to `own` folders and the package.

    May be repeated with less. Raises OSError.
    """
    if policy.landlock:
        landlock.restrict(
            policy.landlock,
            _files(policy, sandbox, reach, own, package),
            connect=_ports(reach),
            bind=_ANY_FREE,
        )


def filter_calls(policy: IsolationPolicy, sandbox: Sandbox) -> None:
    """Refuse the system calls that neither runner nor user's code needs. Raises OSError."""
    if policy.seccomp:
        _install(_permit(policy, sandbox, network=True))


def confining(
    policy: IsolationPolicy, sandbox: Sandbox, reach: RunReach, package: Path
) -> list[str]:
    """The command by which a runner starts the user's code; empty = without restrictions.

    It takes a descriptor with the environment as JSON, and the command.
    """
    if not (policy.landlock and policy.seccomp):
        return []
    own = (Path(sandbox.folder) / TMP_NAME,)
    rules = {
        "landlock": policy.landlock,
        "files": [[str(at), access] for at, access in _files(policy, sandbox, reach, own, package)],
        "connect": [] if reach.network else [reach.gateway_port],
        "closed": reach.closed_ports if reach.network else None,
        "permit": asdict(_permit(policy, sandbox, network=reach.network)),
    }
    return [sys.executable, "-I", "-S", str(_CONFINE), json.dumps(rules)]


def confine(rules: dict[str, object]) -> None:
    """Restrict this process to the rules of `confining`. Raises OSError."""
    abi, files, connect, closed = (
        rules[name] for name in ("landlock", "files", "connect", "closed")
    )
    assert isinstance(abi, int)
    assert isinstance(files, list)
    assert isinstance(connect, list)
    allowed = [(Path(path), int(access)) for path, access in files]
    if isinstance(closed, list):
        landlock.restrict(abi, allowed, connect=_but(closed), bind=_ANY_FREE)
    else:
        landlock.restrict(abi, allowed, connect=connect)
    given = rules["permit"]
    assert isinstance(given, dict)
    _install(seccomp.Permit(**given))


def _files(
    policy: IsolationPolicy,
    sandbox: Sandbox,
    reach: RunReach,
    own: Iterable[Path],
    package: Path | None,
) -> list[tuple[Path, int]]:
    found = places.allowed(
        reach.files,
        [*places.libraries(), *([package] if package is not None else [])],
        own,
        sandbox.kinds,
        execute=True,
        link=False,
        own_proc=policy.pid_namespace,
        own_programs=True,
    )
    read = [*map(Path, places.NETWORK), *_declared(sandbox), Path(sandbox.folder) / DATA_NAME]
    return found + [(one, landlock.READ) for one in read]


def _declared(sandbox: Sandbox) -> list[Path]:
    """The declared data sets of its tenant."""
    return [Path(sandbox.data)] if sandbox.data else []


def _ports(reach: RunReach) -> Iterable[int]:
    needed = {reach.gateway_port, _HTTPS, _DNS, *reach.endpoint_ports}
    if reach.network:
        return _but(set(reach.closed_ports) - needed)
    return sorted(needed)


def _but(closed: Iterable[int]) -> Iterable[int]:
    without = set(closed)
    return (port for port in _PORTS if port not in without)


def _permit(policy: IsolationPolicy, sandbox: Sandbox, *, network: bool) -> seccomp.Permit:
    """A worker's that may start programs, with sockets."""
    started = permit(_starting(policy), sandbox.kinds)
    sockets = {"tcp": True, "accept": network, "datagrams": network}
    return seccomp.Permit(**{**asdict(started), **sockets})


def _starting(policy: IsolationPolicy) -> IsolationPolicy:
    return IsolationPolicy(**{**asdict(policy), "execute": True})


def _install(allowed: seccomp.Permit) -> None:
    seccomp.install(seccomp.build(system.architecture(), allowed, os.getpid()))

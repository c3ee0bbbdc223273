"""`python -m remote_gpu.isolation.probe CLOSED…`: mechanisms of isolation of this machine.

Each mechanism is tried in a child process, because most cannot be undone. The answer is one JSON
object, the fields of `MachineFacts`. Run by gpud when it starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from remote_gpu.isolation import (
    bind_mounts,
    cgroup,
    landlock,
    namespaces,
    privileges,
    seccomp,
    system,
    users,
)
from remote_gpu.isolation.policy import MachineFacts

_ANSWER_S = 30.0  #: some tries of milliseconds each, on a busy machine
_REASON_BYTES_MAX = 4096
#: at least one of these exists
_REFUSED = Path("/etc/hostname"), Path("/etc/passwd"), Path("/proc/uptime")


def ask(reached: Iterable[Path]) -> MachineFacts:
    """Probe in a child process. `reached`: files that leases must be able to read."""
    command = [sys.executable, "-m", "remote_gpu.isolation.probe", *map(str, reached)]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=_ANSWER_S, check=True)
        return MachineFacts(**json.loads(answer.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError) as error:
        return MachineFacts(why={"probe": str(error)[:500]})


def find(reached: Iterable[Path]) -> MachineFacts:
    """Try all mechanisms; this process forks, so it must have one thread."""
    why: dict[str, str] = {}
    root = os.geteuid() == 0

    def works(name: str, attempt: Callable[[], object]) -> bool:
        if reason := _tried(attempt):
            why[name] = reason
        return not reason

    abi = 0
    if works("landlock", _landlock):
        abi = landlock.version()
    group = ""
    if works("cgroup", lambda: cgroup.try_folder(cgroup.own_folder())):
        group = str(cgroup.own_folder())
    pid_namespace = works("pid_namespace", _pid_namespace)
    return MachineFacts(
        users=works("users", lambda: users.can_become(users.RANGE.start)),
        mounts=root and works("mounts", namespaces.unshare_mounts),
        pid_namespace=pid_namespace,
        user_namespace=not root and pid_namespace and works("user_namespace", _user_namespace),
        network=works("network", _network),
        landlock=abi,
        seccomp=works("seccomp", _seccomp),
        cgroup=group,
        unreached=tuple(str(one) for one in _closed(reached)),
        why=why,
    )


def _closed(paths: Iterable[Path]) -> list[Path]:
    found = {folder for path in paths if (folder := bind_mounts.closed_above(path)) is not None}
    return sorted(found)


def _tried(attempt: Callable[[], object]) -> str:
    """The reason why an attempt fails in a child process; "" = it succeeds."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            attempt()
        except BaseException as error:
            os.write(write, (str(error) or repr(error)).encode()[:_REASON_BYTES_MAX])
            os._exit(1)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        reason = stream.read().decode(errors="replace")
    _, status = os.waitpid(pid, 0)
    return reason or ("" if status == 0 else f"the process that tried it ended with {status}")


def _pid_namespace() -> None:
    if os.geteuid():
        namespaces.unshare_user()
    namespaces.become_first_process()
    forker = namespaces.NamespaceForker()
    privileges.make_undumpable()
    for _ in range(2):
        pid = forker.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                namespaces.own_proc()
                os._exit(0 if str(Path("/proc/self").readlink()) == str(os.getpid()) == "1" else 2)
            os._exit(3)
        _, status = os.waitpid(pid, 0)
        if status:
            raise OSError("/proc cannot be mounted in a process namespace")


def _user_namespace() -> None:
    namespaces.unshare_user()
    privileges.make_undumpable()
    namespaces.unshare_user_of_undumpable()
    privileges.drop_capabilities()


def _network() -> None:
    if os.geteuid():
        namespaces.unshare_user()
    namespaces.unshare_network()


def _landlock() -> None:
    known = landlock.version()
    privileges.set_no_new_privileges()
    landlock.restrict(known, [])
    for path in _REFUSED:
        with contextlib.suppress(PermissionError, FileNotFoundError):
            path.read_bytes()
            raise OSError(f"{path} can be read in a domain without rules")


def _seccomp() -> None:
    if not seccomp.supported(system.architecture()):
        raise OSError(f"the system calls of {system.architecture()} are unknown")
    privileges.set_no_new_privileges()
    seccomp.install(seccomp.build(system.architecture(), seccomp.Permit(), os.getpid()))
    with contextlib.suppress(PermissionError):
        os.fork()
        raise OSError("a refused call succeeded")


def main() -> None:
    """Print the facts as JSON."""
    facts = find([Path(one) for one in sys.argv[1:]])
    sys.stdout.write(json.dumps(asdict(facts)))


if __name__ == "__main__":
    main()

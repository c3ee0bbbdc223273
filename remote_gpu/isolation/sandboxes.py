"""The sandbox of each lease on this host: user, cgroup, folders; and its certain end.

A sandbox is made before a worker learns of its lease: a user and a cgroup where the policy has
them, a folder for temporary files, and the tenant's folder of kept contents, closed to other
tenants. The sandbox is closed when the worker has ended: then no process that ran in it is left,
nor any of its files.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISDIR, S_ISGID, S_ISLNK, S_ISREG

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.warm import tenant_folder
from remote_gpu.isolation.apply import MACHINE_NAME, SCRATCH_NAME, VIEWS_NAME, Sandbox
from remote_gpu.isolation.bind_mounts import closed_above
from remote_gpu.isolation.cgroup import Group, prepare, remove_all
from remote_gpu.isolation.policy import IsolationPolicy
from remote_gpu.isolation.removal import names_in, remove_contents, remove_tree
from remote_gpu.isolation.users import UserBlock

logger = logging.getLogger(__name__)

#: Memory of a lease's cgroup beside its quota: interpreter, libraries, lanes' shared memory, and
#: the host's side of a card's contexts.
_OVERHEAD_BYTES = 1 << 30
_CARD_OVERHEAD_BYTES = 4 << 30
_GROUPS = "orchgpu-"  #: prefix of the folder of a gpud's groups, before its process id
_DEPTH_MAX = 16  #: nesting of folders; those of compiled kernels have six levels
_POLL_S = 0.005  #: between two checks of a cgroup whose processes were killed
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KILL_USER = Path(__file__).with_name("kill_user.py")
_KILL_USER_S = 10.0
_KILL_AGAIN_S = 1.0


class HostSandbox:
    """The sandbox of one lease, seen from gpud; its worker gets the field `sandbox`."""

    def __init__(
        self,
        sandboxes: Sandboxes,
        sandbox: Sandbox,
        group: Group | None,
        *,
        kills_user: bool = False,
    ) -> None:
        """`kills_user`: kill processes of its user at its end; no namespace or cgroup does."""
        self.sandbox = sandbox
        self._kills_user = kills_user
        self._sandboxes = sandboxes
        self._group = group
        self._ended = self._closed = False

    @property
    def holds_all(self) -> bool:
        """True when no process that it started is left once it is closed."""
        return self._sandboxes.holds_all

    def admit(self, pid: int) -> None:
        """Move a process in, before it learns of the lease. Raises OSError."""
        if self._group is not None:
            self._group.admit(pid)

    async def renew(self, memory_bytes: int, kinds: tuple[str, ...]) -> None:
        """Limit its processes to the memory of another lease of the same tenant."""
        if self._group is not None:
            await asyncio.to_thread(self._group.limit, group_bytes(memory_bytes, kinds))

    async def clear(self) -> None:
        """Remove the temporary files of a lease whose worker continues."""
        if self.sandbox.folder:
            await asyncio.to_thread(remove_contents, Path(self.sandbox.folder), {MACHINE_NAME})

    def kill(self) -> None:
        """Kill its processes. Idempotent; `close` waits for their end."""
        if self._group is not None:
            with contextlib.suppress(OSError):
                self._group.kill()

    async def end(self) -> None:
        """End its processes, once its first one has ended; returns when none is left. Idempotent.

        Its files and its user stay until `close`.
        """
        if self._ended:
            return
        self.kill()
        if self._kills_user and self.sandbox.user >= 0:
            await self._sandboxes.kill_user(self.sandbox.user)
        if self._group is not None:
            self.kill()
            while not self._group.remove():
                self.kill()
                await asyncio.sleep(_POLL_S)
        self._ended = True

    async def close(self) -> None:
        """Remove it, once its first process has ended; returns when nothing is left. Idempotent."""
        await self.end()
        if self._closed:
            return
        self._closed = True  # its user may have another lease now
        await asyncio.to_thread(self._sandboxes.release, self.sandbox)


class Sandboxes:
    """The sandboxes of one host."""

    def __init__(self, policy: IsolationPolicy, kept: Path) -> None:
        """`kept`: the folder of kept contents, made now; leftovers of an earlier gpud are removed.

        Raises AppError(UNAVAILABLE) when no users are left for this host, or when it lacks the only
        mechanism that ends the processes of leases; OSError.
        """
        self._kept = kept
        self._scratch = kept.parent / SCRATCH_NAME
        self._views = kept.parent / VIEWS_NAME
        remove_tree(self._scratch)
        for folder in (kept, self._scratch, self._views):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o711)  # passable, not readable: it lists tenants
        self._users: UserBlock | None = None
        if policy.users:
            try:
                self._users = UserBlock.take()
            except OSError as error:
                raise AppError(ErrorCode.UNAVAILABLE, f"no users for leases: {error}") from None
        self._groups = self._cgroup_folder(policy)
        #: Processes of a user are killed at its end: no namespace ends them.
        self._namespaces = policy.pid_namespace
        self._kills_users = (policy.execute or policy.link) and not policy.pid_namespace
        self.holds_all = (
            policy.pid_namespace or policy.seccomp
        )  #: the policy permits no process that it cannot end
        self._making, self._killing = asyncio.Lock(), asyncio.Lock()
        self._slots: dict[str, set[int]] = {}  # tenant → slots of compiled kernels in use
        self._groups_in_use: list[int] = []  # of leases, whose folder may be gone

    def close(self) -> None:
        """Release the users and cgroups; every sandbox is closed. Idempotent."""
        if self._users is not None:
            self._users.close()
        if self._groups is not None:
            remove_all(self._groups)

    def group(self, pid: int) -> Group | None:
        """Make a cgroup and move a process into it. Raises OSError."""
        if self._groups is None:
            return None
        group = Group(self._groups, secrets.token_hex(8))
        try:
            group.admit(pid)
        except BaseException:
            group.remove()
            raise
        return group

    async def make(
        self,
        tenant: str,
        memory_bytes: int,
        kinds: tuple[str, ...],
        group: Group | None,
        packages: Path | None = None,
    ) -> HostSandbox:
        """Make the sandbox of a lease, with the `group` of its worker or run. Raises OSError.

        `packages`: of a run, whose processes start others: the tenant gets a folder below it.
        """
        async with self._making:
            return await asyncio.to_thread(self._make, tenant, memory_bytes, kinds, group, packages)

    def _make(
        self,
        tenant: str,
        memory_bytes: int,
        kinds: tuple[str, ...],
        group: Group | None,
        packages: Path | None,
    ) -> HostSandbox:
        token = secrets.token_hex(8)
        folder = self._scratch / token
        folder.mkdir(mode=0o700)
        try:
            sandbox = self._sandbox(tenant, folder, kinds)
        except BaseException:
            folder.rmdir()
            raise
        try:
            if packages is not None:
                _make_tenants(packages, tenant_folder(tenant), sandbox.group)
            if group is not None:
                group.limit(group_bytes(memory_bytes, kinds))
        except BaseException:
            self.release(sandbox)
            raise
        kills_user = self._kills_users or (packages is not None and not self._namespaces)
        return HostSandbox(self, sandbox, group, kills_user=kills_user)

    def make_for_server(self, program: Path) -> HostSandbox:
        """Make the sandbox of an unmodified server: a user, if `program` is reachable for one, and
        a cgroup without limits. Raises OSError."""
        user = -1
        group = None
        if self._groups is not None:
            group = Group(self._groups, f"server-{secrets.token_hex(8)}")
        if self._users is not None and (closed := closed_above(program)) is None:
            user = self._users.lend()
        elif self._users is not None:
            text = "a server runs as gpud's user, because no other user may enter this folder"
            logger.warning(text, extra={"program": str(program), "folder": str(closed)})
        return HostSandbox(self, Sandbox(user=user, group=user), group, kills_user=True)

    async def kill_user(self, user: int) -> None:
        """Kill all processes of a lease's user; one call at a time, as killers share one user."""
        assert self._users is not None, "it lent the user"
        while True:
            async with self._killing:
                if await asyncio.to_thread(_kill_user, user, self._users.killer):
                    return
            logger.warning("processes of a lease's user have not ended yet", extra={"user": user})
            await asyncio.sleep(_KILL_AGAIN_S)

    def release(self, sandbox: Sandbox) -> None:
        """Remove the files of a sandbox without processes, and return its user and slot."""
        if sandbox.folder:
            remove_tree(Path(sandbox.folder))
            if Path(sandbox.folder).exists():
                logger.warning(
                    "a lease's folder cannot be removed", extra={"folder": sandbox.folder}
                )
        if sandbox.compiled:
            tenant, slot = Path(sandbox.compiled).parts[-3], int(Path(sandbox.compiled).name)
            self._slots[tenant].discard(slot)
            self._groups_in_use.remove(sandbox.group)
        if sandbox.user >= 0 and self._users is not None:
            self._users.give_back(sandbox.user)

    def _sandbox(self, tenant: str, folder: Path, kinds: tuple[str, ...]) -> Sandbox:
        own = self._kept / tenant_folder(tenant)
        if self._users is None:
            own.mkdir(mode=0o700, exist_ok=True)
            own.chmod(0o700)
            return Sandbox(folder=str(folder), kinds=kinds, data=self._view(own.name, -1))
        group = self._group_of(own, self._users)
        view = self._view(own.name, group)
        slots = self._slots.setdefault(own.name, set())
        slot = next(number for number in range(len(slots) + 1) if number not in slots)
        user = self._users.lend()
        slots.add(slot)
        self._groups_in_use.append(group)
        try:
            with (
                _opened(self._kept) as kept,
                _entered(own.name, kept, 0, group) as tenants,
                _entered("compiled", tenants, 0, group) as all_compiled,
                _entered(str(slot), all_compiled, user, group) as compiled,
            ):
                _chown_tree(compiled, user, group)
            os.chown(folder, user, group)
        except BaseException:
            slots.discard(slot)
            self._groups_in_use.remove(group)
            self._users.give_back(user)
            raise
        path = str(own / "compiled" / str(slot))
        return Sandbox(
            user=user, group=group, folder=str(folder), compiled=path, kinds=kinds, data=view
        )

    def _view(self, tenant: str, group: int) -> str:
        """The folder of a tenant's declared data sets, which its group may read."""
        folder = self._views / tenant
        folder.mkdir(mode=0o700, exist_ok=True)
        os.chown(folder, -1, group)
        folder.chmod(0o750)
        return str(folder)

    def _group_of(self, folder: Path, users: UserBlock) -> int:
        with contextlib.suppress(FileNotFoundError):
            stat = folder.stat()
            if stat.st_gid in users.ids:
                return stat.st_gid
        with os.scandir(self._kept) as entries:
            taken = {entry.stat(follow_symlinks=False).st_gid for entry in entries}
        taken.update(self._groups_in_use)
        group = users.group_of(taken)
        with _opened(self._kept) as kept, _entered(folder.name, kept, 0, group) as tenants:
            _chown_tree(tenants, -1, group)
        return group

    def _cgroup_folder(self, policy: IsolationPolicy) -> Path | None:
        if not policy.cgroup:
            return None
        own = Path(policy.cgroup)
        for left in own.glob(f"{_GROUPS}*"):  # of a gpud that was killed
            if not Path("/proc", left.name.removeprefix(_GROUPS)).exists():
                remove_all(left)
        prepare(own)
        folder = own / f"{_GROUPS}{os.getpid()}"
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            if not (policy.pid_namespace or policy.users):  # nothing else ends a lease's processes
                message = f"no cgroups for leases: {error}"
                raise AppError(ErrorCode.UNAVAILABLE, message) from None
            logger.warning("no cgroups for leases", extra={"why": str(error)})
            return None
        prepare(folder)
        return folder


def _make_tenants(packages: Path, name: str, group: int) -> None:
    """Make a tenant's folder of packages, for that group only; -1 = gpud's user alone.

    A folder of another group is emptied: its number may be another tenant's now.
    """
    own = packages / name
    with contextlib.suppress(FileNotFoundError):
        if group >= 0 and own.stat().st_gid != group:
            remove_tree(own)
    if group < 0:
        own.mkdir(mode=0o700, exist_ok=True)
        return
    with _opened(packages) as above, _entered(name, above, 0, group):
        pass


def group_bytes(memory_bytes: int, kinds: tuple[str, ...]) -> int:
    """The memory of a lease's cgroup."""
    overhead = _CARD_OVERHEAD_BYTES if set(kinds) - {"cpu"} else _OVERHEAD_BYTES
    return memory_bytes + overhead


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, _FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _entered(name: str, above: int, user: int, group: int) -> Iterator[int]:
    """Open a folder within an open one, made if absent, for that owner and that group only.

    Leases of the tenant may write to the folders above it meanwhile: no step follows a link.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=above)
    try:
        descriptor = os.open(name, _FOLDER, dir_fd=above)
    except NotADirectoryError:  # a link, or a file, made by a lease
        os.unlink(name, dir_fd=above)
        os.mkdir(name, dir_fd=above)
        descriptor = os.open(name, _FOLDER, dir_fd=above)
    try:
        os.fchown(descriptor, user, group)
        os.fchmod(descriptor, 0o2770)
        yield descriptor
    finally:
        os.close(descriptor)


def _chown_tree(folder: int, user: int, group: int, depth: int = 0) -> None:
    """Give all entries below an open folder an owner (-1: unchanged) and a group that may write.

    Follows no link. Three kinds of entries stay as they are, closed to the lease: those that cannot
    be changed, files with another name, and those nested deeper than ours.
    """
    for name in names_in(folder):
        with contextlib.suppress(OSError):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            mode = found.st_mode
            if S_ISREG(mode) and found.st_nlink > 1:
                continue
            os.chown(name, user, group, dir_fd=folder, follow_symlinks=False)
            if user < 0 and not S_ISLNK(mode):
                owners = mode & 0o700
                shared = owners | owners >> 3 | (S_ISGID if S_ISDIR(mode) else 0)
                os.chmod(name, shared, dir_fd=folder)
            if S_ISDIR(mode) and depth < _DEPTH_MAX:
                below = os.open(name, _FOLDER, dir_fd=folder)
                try:
                    _chown_tree(below, user, group, depth + 1)
                finally:
                    os.close(below)


def _kill_user(user: int, killer: int) -> bool:
    """Kill all processes of a lease's user, which no other lease has. False: some may remain."""
    command = [sys.executable, "-I", "-S", str(_KILL_USER), str(user), str(killer)]
    with contextlib.suppress(subprocess.TimeoutExpired, OSError):
        return subprocess.run(command, timeout=_KILL_USER_S, check=False).returncode == 0
    return False

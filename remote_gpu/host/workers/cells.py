"""What the processes of one lease have of their own on this host, and the end of it.

A sandbox is made before a worker learns of its lease: a user and a cgroup where the policy has them,
a folder for temporary files, and the tenant's folder of kept contents, closed to other tenants. It
is closed when the worker is gone: then nothing that ran in it is left, nor any of its files.
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
from remote_gpu.host.workers.removal import names_in, remove_tree
from remote_gpu.worker.isolation.apply import SCRATCH_NAME, Sandbox
from remote_gpu.worker.isolation.cgroup import Group, prepare, remove_all
from remote_gpu.worker.isolation.policy import Policy
from remote_gpu.worker.isolation.users import UserBlock
from remote_gpu.worker.isolation.veil import closed_above

logger = logging.getLogger(__name__)

#: Memory of a lease's cgroup beside its quota: interpreter, libraries, lanes' shared memory, and
#: the host's side of a card's contexts.
_OVERHEAD_BYTES = 1 << 30
_CARD_OVERHEAD_BYTES = 4 << 30
_GROUPS = "orchgpu-"  #: before the number of a gpud: the folder of its groups
_DEPTH_MAX = 16  #: folders within folders; those of compiled kernels have six
_LOOK_S = 0.005  #: between looks at a cgroup whose processes were killed
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SWEEP = Path(__file__).with_name("sweep.py")
_SWEEP_S = 10.0
_SWEEP_AGAIN_S = 1.0


class HostSandbox:
    """One lease's. `sandbox` is what its worker is told."""

    def __init__(
        self, cells: Sandboxes, sandbox: Sandbox, group: Group | None, *, sweep: bool = False
    ) -> None:
        """`sweep`: look for processes of its user at its end, which nothing else ends."""
        self.sandbox = sandbox
        self._sweep = sweep
        self._cells = cells
        self._group = group
        self._closed = False

    @property
    def holds_all(self) -> bool:
        """Nothing that its first process started is left once it is closed."""
        return self._cells.holds_all

    def admit(self, pid: int) -> None:
        """Before the process learns of the lease. Raises OSError."""
        if self._group is not None:
            self._group.admit(pid)

    def kill(self) -> None:
        """Everything in it, now. Safe to repeat; `close` makes sure of it."""
        if self._group is not None:
            with contextlib.suppress(OSError):
                self._group.kill()

    async def close(self) -> None:
        """Returns when nothing of it is left. Its first process has ended. Safe to repeat."""
        if self._closed:
            return
        self._closed = True
        self.kill()
        if self._sweep and self.sandbox.user >= 0:
            await self._cells.sweep(self.sandbox.user)
        if self._group is not None:
            self.kill()
            while not self._group.remove():
                self.kill()
                await asyncio.sleep(_LOOK_S)
        await asyncio.to_thread(self._cells.leave, self.sandbox)


class Sandboxes:
    """Those of one host."""

    def __init__(self, policy: Policy, kept: Path) -> None:
        """`kept`: the folder of kept contents; made now, and emptied of what a gpud left before.

        Raises AppError(UNAVAILABLE) when no users are left for this host, or the only thing that
        ends what leases start cannot be had; OSError.
        """
        self._kept = kept
        self._scratch = kept.parent / SCRATCH_NAME
        remove_tree(self._scratch)
        for folder in (kept, self._scratch):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o711)  # to be passed, not listed: names of tenants
        self._users: UserBlock | None = None
        if policy.users:
            try:
                self._users = UserBlock.take()
            except OSError as error:
                raise AppError(ErrorCode.UNAVAILABLE, f"no users for leases: {error}") from None
        self._groups = self._folder_of_groups(policy)
        #: A user's processes are looked for at its end: no namespace ends them.
        self._sweeps = (policy.execute or policy.link) and not policy.spaces
        self.holds_all = policy.spaces or policy.seccomp  #: a policy lets start what it can end
        self._making, self._sweeping = asyncio.Lock(), asyncio.Lock()
        self._slots: dict[str, set[int]] = {}  # tenant → slots of compiled kernels in use
        self._living: list[int] = []  # groups of leases; the folder of one may be gone

    def close(self) -> None:
        """Nobody is in any sandbox. Safe to repeat."""
        if self._users is not None:
            self._users.close()
        if self._groups is not None:
            remove_all(self._groups)

    def group(self, pid: int) -> Group | None:
        """A group for a process, in which it is when this returns. Raises OSError."""
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
        self, tenant: str, memory_bytes: int, kinds: tuple[str, ...], group: Group | None
    ) -> HostSandbox:
        """For a lease, with the `group` of its worker. Raises OSError."""
        async with self._making:
            return await asyncio.to_thread(self._make, tenant, memory_bytes, kinds, group)

    def _make(
        self, tenant: str, memory_bytes: int, kinds: tuple[str, ...], group: Group | None
    ) -> HostSandbox:
        token = secrets.token_hex(8)
        folder = self._scratch / token
        folder.mkdir(mode=0o700)
        try:
            sandbox = self._cell(tenant, folder, kinds)
        except BaseException:
            folder.rmdir()
            raise
        if group is not None:
            overhead = _CARD_OVERHEAD_BYTES if set(kinds) - {"cpu"} else _OVERHEAD_BYTES
            group.limit(memory_bytes + overhead)
        return HostSandbox(self, sandbox, group, sweep=self._sweeps)

    def make_of_server(self, program: Path) -> HostSandbox:
        """For a server that knows nothing of it: a user, where one may pass to `program`, and a
        cgroup without limits. Raises OSError."""
        user = -1
        group = None
        if self._groups is not None:
            group = Group(self._groups, f"server-{secrets.token_hex(8)}")
        if self._users is not None and (closed := closed_above(program)) is None:
            user = self._users.lend()
        elif self._users is not None:
            text = "a server runs as gpud's user: another one may not pass this folder"
            logger.warning(text, extra={"program": str(program), "folder": str(closed)})
        return HostSandbox(self, Sandbox(user=user, group=user), group, sweep=True)

    async def sweep(self, user: int) -> None:
        """End what a lease's user has left. One at a time: they are of one user themselves."""
        assert self._users is not None, "users are lent by it"
        while True:
            async with self._sweeping:
                if await asyncio.to_thread(_sweep, user, self._users.sweeper):
                    return
            logger.warning("processes of a lease's user do not end", extra={"user": user})
            await asyncio.sleep(_SWEEP_AGAIN_S)

    def leave(self, sandbox: Sandbox) -> None:
        """Remove its files, and free what it was lent. Nothing of it runs."""
        if sandbox.folder:
            remove_tree(Path(sandbox.folder))
            if Path(sandbox.folder).exists():
                logger.warning(
                    "a lease's folder cannot be removed", extra={"folder": sandbox.folder}
                )
        if sandbox.compiled:
            tenant, slot = Path(sandbox.compiled).parts[-3], int(Path(sandbox.compiled).name)
            self._slots[tenant].discard(slot)
            self._living.remove(sandbox.group)
        if sandbox.user >= 0 and self._users is not None:
            self._users.give_back(sandbox.user)

    def _cell(self, tenant: str, folder: Path, kinds: tuple[str, ...]) -> Sandbox:
        own = self._kept / tenant_folder(tenant)
        if self._users is None:
            own.mkdir(mode=0o700, exist_ok=True)
            own.chmod(0o700)
            return Sandbox(folder=str(folder), kinds=kinds)
        group = self._group_of(own, self._users)
        slots = self._slots.setdefault(own.name, set())
        slot = next(number for number in range(len(slots) + 1) if number not in slots)
        user = self._users.lend()
        slots.add(slot)
        self._living.append(group)
        try:
            with (
                _opened(self._kept) as kept,
                _entered(own.name, kept, 0, group) as tenants,
                _entered("compiled", tenants, 0, group) as all_compiled,
                _entered(str(slot), all_compiled, user, group) as compiled,
            ):
                _hand_over(compiled, user, group)
            os.chown(folder, user, group)
        except BaseException:
            slots.discard(slot)
            self._living.remove(group)
            self._users.give_back(user)
            raise
        place = str(own / "compiled" / str(slot))
        return Sandbox(user=user, group=group, folder=str(folder), compiled=place, kinds=kinds)

    def _group_of(self, folder: Path, users: UserBlock) -> int:
        """The tenant's, kept as the group of its folder; one of this block."""
        with contextlib.suppress(FileNotFoundError):
            stat = folder.stat()
            if stat.st_gid in users.ids:
                return stat.st_gid
        with os.scandir(self._kept) as entries:
            taken = {entry.stat(follow_symlinks=False).st_gid for entry in entries}
        taken.update(self._living)
        group = users.group_of(taken)
        with _opened(self._kept) as kept, _entered(folder.name, kept, 0, group) as tenants:
            _hand_over(tenants, -1, group)
        return group

    def _folder_of_groups(self, policy: Policy) -> Path | None:
        if not policy.cgroup:
            return None
        own = Path(policy.cgroup)
        for left in own.glob(f"{_GROUPS}*"):  # by a gpud that was killed
            if not Path("/proc", left.name.removeprefix(_GROUPS)).exists():
                remove_all(left)
        prepare(own)
        folder = own / f"{_GROUPS}{os.getpid()}"
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            if not (policy.spaces or policy.users):  # nothing else ends what a lease starts
                message = f"no cgroups for leases: {error}"
                raise AppError(ErrorCode.UNAVAILABLE, message) from None
            logger.warning("no cgroups for leases", extra={"why": str(error)})
            return None
        prepare(folder)
        return folder


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, _FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _entered(name: str, above: int, user: int, group: int) -> Iterator[int]:
    """A folder in an open one, made if it is not there, with that owner and for that group alone.

    Leases of the tenant may write to the folders above it meanwhile: no step follows a link.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=above)
    try:
        descriptor = os.open(name, _FOLDER, dir_fd=above)
    except NotADirectoryError:  # a link, or a file: a lease's doing
        os.unlink(name, dir_fd=above)
        os.mkdir(name, dir_fd=above)
        descriptor = os.open(name, _FOLDER, dir_fd=above)
    try:
        os.fchown(descriptor, user, group)
        os.fchmod(descriptor, 0o2770)
        yield descriptor
    finally:
        os.close(descriptor)


def _hand_over(folder: int, user: int, group: int, depth: int = 0) -> None:
    """All below an open folder to an owner (-1: as it is) and a group, which may write.

    Follows no link. What cannot be changed stays as it is, and closed to the lease; so do a file
    that has another name, which may be anybody's, and what lies deeper than anything of ours.
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
                    _hand_over(below, user, group, depth + 1)
                finally:
                    os.close(below)


def _sweep(user: int, sweeper: int) -> bool:
    """Kill all processes of a lease's user, which no other lease has. False: some may be left."""
    command = [sys.executable, "-I", "-S", str(_SWEEP), str(user), str(sweeper)]
    with contextlib.suppress(subprocess.TimeoutExpired, OSError):
        return subprocess.run(command, timeout=_SWEEP_S, check=False).returncode == 0
    return False

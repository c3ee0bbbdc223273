"""One run: the process of a function's runner, from its start to its certain end.

It is watched by its pidfd, as a worker is, and gone when no process of its sandbox is left: that
frees its devices. Its files, of any size, are removed afterwards. Where it
has a process namespace, the process is a parent of the namespace's first one, which is killed: the
kernel then ends all others before that end is reported.

The process of a warm order may stay for a later one (`parked`): frozen, without credentials.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from corekit.aio.process import guarded
from corekit.aio.supervise import Nursery
from gpu_scheduler.data_sets import DataSet
from gpu_scheduler.model import Share
from remote_gpu.host.containers.serving import RunContainer
from remote_gpu.host.environment import spawner_variables
from remote_gpu.host.runs.called import CallSocket
from remote_gpu.host.runs.launch import RunStart
from remote_gpu.host.runs.link import RunnerLink
from remote_gpu.host.runs.output import TAIL_BYTES, RunOutput
from remote_gpu.host.runs.private import PrivateFolder
from remote_gpu.isolation.cgroup import Group
from remote_gpu.isolation.sandboxes import HostSandbox
from remote_gpu.wire.runs import RunOrder

logger = logging.getLogger(__name__)

_AGAIN_S = 0.05  #: between two kills of a process that was about to fork


class Run:
    """One process with all that it starts."""

    def __init__(
        self,
        order: RunOrder,
        nursery: Nursery,
        container: RunContainer | None = None,
        *,
        namespaced: bool,
    ) -> None:
        """Start it; it waits for `begin` without knowing what it is for. Raises OSError.

        `container`: of an order with an image; its end is this run's.
        """
        self.order = order
        self.container = container
        self._nursery = nursery
        self._namespaced = namespaced
        self.link: RunnerLink | None = None
        self.calls: CallSocket | None = None
        with contextlib.ExitStack() as undo:
            if container is not None:
                undo.callback(container.abandon)
            if order.warm:
                self.link = RunnerLink()
                undo.callback(self.link.close)
            if order.called:
                self.calls = CallSocket()
                undo.callback(self.calls.close)
            parts = (container, self.link, self.calls)
            passed = [one.descriptor for one in parts if one is not None]
            reading, writing = os.pipe()
            undo.callback(os.close, reading)
            try:
                os.fchmod(writing, 0o200)  # a holder could reopen it, and read
                self._process = _started(writing, passed)
            finally:
                os.close(writing)
            undo.callback(_stop, self._process)
            self.pid = self._process.pid
            self._pidfd = os.pidfd_open(self.pid)
            undo.pop_all()
        for part in parts:
            if part is not None:
                part.inherited()
        self.output = RunOutput(reading)
        loop = asyncio.get_running_loop()
        #: Its first process has ended.
        self.exited: asyncio.Future[None] = loop.create_future()
        #: No process of it is left.
        self.gone: asyncio.Future[None] = loop.create_future()
        #: No file of it is left.
        self.removed: asyncio.Future[None] = loop.create_future()
        #: It has left its present lease: it is gone (""), or parked under this id.
        self.left: asyncio.Future[str] = loop.create_future()
        self.shares: tuple[Share, ...] = ()  #: of devices with a driver
        self.data_sets: tuple[DataSet, ...] = ()  #: that it finds at DATA_DIR
        self.package: Path | None = None  #: that may not be evicted
        self.ends_s = 0.0  #: monotonic: it is killed then
        self.stays = False  #: its lease has ended in order, and it may be parked
        self.parking = False  #: it is being parked, or is
        self._when_gone: Callable[[], None] | None = None
        self.why_killed = ""  #: by this host
        #: Held while it gets its cgroup and its sandbox; its end waits for that, and closes them.
        self.entering = asyncio.Lock()
        self.group: Group | None = None  #: cgroup, until it has a sandbox
        self._sandbox: HostSandbox | None = None
        self._private: PrivateFolder | None = None
        loop.add_reader(self._pidfd, self._on_exit)

    def enter(self, sandbox: HostSandbox) -> dict[str, str]:
        """Give it its sandbox, which it closes; returns AWS's variables. Raises OSError."""
        self._sandbox = sandbox
        self._private = PrivateFolder(sandbox.sandbox)
        self._private.write(self.order)
        return self._private.variables(self.order)

    def begin(self, start: RunStart) -> None:
        """Send it its work; blocks until it has read that. Raises OSError when it has died."""
        assert self._process.stdin is not None, "it is a pipe"
        data = start.to_json()
        try:
            with self._process.stdin as stdin:
                stdin.write(data)
        except ValueError:  # closed at its end
            raise BrokenPipeError("its process has ended") from None

    def renew(self, order: RunOrder) -> None:
        """Replace its credentials by those of a repeated order. Raises OSError."""
        self.order = self.order.renewed(order)
        if self._private is not None and not self.exited.done():
            self._private.write(self.order)

    async def park(self) -> RunOutput:
        """Take the credentials, and freeze it; returns the output of the job that is over.

        Raises OSError, TimeoutError: it cannot be frozen, and must be killed.
        """
        assert self._private is not None, "it has had a job"
        self.parking = True
        self._private.forget()
        if self.calls is not None:
            self.calls.cut()  # its callers would wait for a frozen process
        if self.group is not None:
            await asyncio.to_thread(self.group.freeze)
        self.stays = False
        before, self.output = self.output, self.output.handed_on()
        return before

    def leave(self, parked: str = "") -> None:
        """Detach the run from its lease, which has ended or continues without it."""
        if not self.left.done():
            self.left.set_result(parked)

    @property
    def parked(self) -> str:
        """The id under which it was parked last, unless it was continued since; or ""."""
        return self.left.result() if self.left.done() else ""

    def take(self, order: RunOrder) -> None:
        """Take it for another order of its program. Raises OSError."""
        if self._private is not None:
            self._private.write(order)
        self.parking = False
        self.order, self.left = order, asyncio.get_running_loop().create_future()
        assert self.link is not None, "it was parked"
        self.link.idle = asyncio.get_running_loop().create_future()

    async def resume(self, runner: Mapping[str, object]) -> None:
        """Continue it with its next order. Raises OSError when it has died."""
        assert self.link is not None, "it was parked"
        if self.group is not None:
            await asyncio.to_thread(self.group.thaw)
        await self.link.send(runner)

    def pids(self) -> list[int]:
        """All its processes, as far as gpud can list them."""
        return self.group.pids() if self.group is not None else _tree(self.pid)

    def when_gone(self, act: Callable[[], None]) -> None:
        """Call `act`, in place of an earlier one, once it is gone; soon if it is gone already."""
        self._when_gone = act
        if self.gone.done():
            asyncio.get_running_loop().call_soon(act)

    def end_in(self, cap_s: float) -> None:
        """Nothing: it is frozen, and ends with gpud."""

    def kill(self, why: str = "") -> None:
        """Kill all of it. Idempotent; `gone` is its end. `why`: for people; the first counts."""
        if self.exited.done():
            return
        self.why_killed = self.why_killed or why
        if self._sandbox is not None:
            self._sandbox.kill()
        below = _children(self.pid) if self._namespaced else []
        for pid in below:  # the parent, which waits for it, has not reaped it yet
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not below:
            self._process.kill()
        else:
            asyncio.get_running_loop().call_later(_AGAIN_S, self.kill)

    def ending(self, characters_max: int = TAIL_BYTES) -> str:
        """The manner of its end, for people, with the end of its output."""
        status = self._process.returncode
        how = self.why_killed
        if not how and status is not None:
            how = f"signal {-status}" if status < 0 else f"exit status {status}"
        text = f"its run on the host ended ({how})"
        tail = self.output.tail[-max(0, characters_max - len(text) - 2) :]
        return f"{text}: {tail}" if tail else text

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self.exited.set_result(None)
        for part in (self.link, self.calls):
            if part is not None:
                part.close()
        self._nursery.start_end(self._end, "run")

    async def _end(self) -> None:
        async with self.entering:
            pass  # what it gets, it has now
        if self.container is not None:
            await self.container.end()
        if self._sandbox is not None:
            await self._sandbox.end()
        elif self.group is not None:
            self.group.remove()
        if self._private is not None:
            self._private.close()
        self.output.finish()
        if not self.gone.done():
            self.gone.set_result(None)
            self.leave()
            if self._when_gone is not None:
                asyncio.get_running_loop().call_soon(self._when_gone)
            self._nursery.start_end(self._remove, "run's files")

    async def _remove(self) -> None:
        if self.container is not None:
            await self.container.close()
        if self._sandbox is not None:
            await self._sandbox.close()
        if not self.removed.done():
            self.removed.set_result(None)


def _started(output: int, passed: list[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        guarded([sys.executable, "-P", "-m", "remote_gpu.host.runs.launch"], signal.SIGKILL),
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        env=spawner_variables(os.environ),
        start_new_session=True,
        pass_fds=passed,
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that has no work yet."""
    with process:
        process.kill()


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _tree(pid: int) -> list[int]:
    return [pid, *(below for child in _children(pid) for below in _tree(child))]

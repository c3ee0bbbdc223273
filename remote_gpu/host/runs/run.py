"""One run: the process of a function's runner, from its start to its certain end.

It is watched by its pidfd, as a worker is, and gone when no process of its sandbox is left: that
frees its devices. Its files, of any size, are removed afterwards. Where it
has a process namespace, the process is a parent of the namespace's first one, which is killed: the
kernel then ends all others before that end is reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

from corekit.aio.process import guarded
from corekit.aio.supervise import Nursery
from remote_gpu.host.containers.serving import RunContainer
from remote_gpu.host.environment import spawner_variables
from remote_gpu.host.runs.launch import RunStart
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
        with contextlib.ExitStack() as undo:
            if container is not None:
                undo.callback(container.abandon)
            reading, writing = os.pipe()
            undo.callback(os.close, reading)
            try:
                os.fchmod(writing, 0o200)  # a holder could reopen it, and read
                self._process = _started(writing, container)
            finally:
                os.close(writing)
            undo.callback(_stop, self._process)
            self.pid = self._process.pid
            self._pidfd = os.pidfd_open(self.pid)
            undo.pop_all()
        if container is not None:
            container.inherited()
        self.output = RunOutput(reading)
        loop = asyncio.get_running_loop()
        #: Its first process has ended.
        self.exited: asyncio.Future[None] = loop.create_future()
        #: No process of it is left.
        self.gone: asyncio.Future[None] = loop.create_future()
        #: No file of it is left.
        self.removed: asyncio.Future[None] = loop.create_future()
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
        self.order = order
        if self._private is not None and not self.exited.done():
            self._private.write(order)

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
            self._nursery.start_end(self._remove, "run's files")

    async def _remove(self) -> None:
        if self.container is not None:
            await self.container.close()
        if self._sandbox is not None:
            await self._sandbox.close()
        if not self.removed.done():
            self.removed.set_result(None)


def _started(output: int, container: RunContainer | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        guarded([sys.executable, "-P", "-m", "remote_gpu.host.runs.launch"], signal.SIGKILL),
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        env=spawner_variables(os.environ),
        start_new_session=True,
        pass_fds=() if container is None else (container.descriptor,),
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that has no work yet."""
    with process:
        process.kill()


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []

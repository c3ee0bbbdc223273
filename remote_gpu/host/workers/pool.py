"""Workers: forked ahead of need, bound to a lease at its first lane, ended by SIGKILL.

A worker is watched by its pidfd: readable means the process has ended and its memory is back with
the kernel. What it started for its lease holds its end of the socket to gpud: when that is closed,
too, nobody of it is left. Nothing else counts as gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from remote_gpu.host.gateway.tls import HostTls
from remote_gpu.host.servers.variables import spawner_variables
from remote_gpu.host.workers.cells import HostSandbox, Sandboxes
from remote_gpu.host.workers.stderr_log import StderrLog
from remote_gpu.host.workers.tenant_storage import sweep
from remote_gpu.worker import control
from remote_gpu.worker.isolation.cgroup import Group
from remote_gpu.worker.isolation.policy import Policy
from remote_gpu.worker.operation import BATCH_WAIT_S
from remote_gpu.worker.programs import Program

logger = logging.getLogger(__name__)

#: What a packet raises that no worker of ours sends; an assertion of the slices is one, too.
_NONSENSE = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    asyncio.InvalidStateError,
)
_NO_LINGER = struct.pack("ii", 0, 0)
#: One is taken at each first lane, and forked anew in 3 ms.
IDLE_WORKERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What the spawner found on this host."""

    operations: Mapping[str, Sequence[str]] = field(default_factory=dict)  #: kind → names
    failures: Mapping[str, str] = field(default_factory=dict)  #: operation → why it is not there
    resident: Sequence[str] = ()  #: warm keys
    threads: int = 1


class Worker:
    """One process, from fork to its certain end."""

    def __init__(
        self,
        pid: int,
        pidfd: int,
        stream: socket.socket,
        take_s: float,
        nursery: Nursery | None = None,
    ) -> None:
        """`nursery`: where its sandbox is closed; one that gets none needs none."""
        self.pid = pid
        self._take_s = take_s  # in which it takes a lane
        self._pidfd = pidfd
        self._stream = stream
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: Copies of the sockets of its lanes: what it says is over is cut, so it cannot hold more.
        self._lanes: dict[int, socket.socket] = {}
        self._numbers = itertools.count(1)
        self._refuted = False  #: it broke the protocol, and is killed
        self.bound = False  #: belongs to a lease
        self.on_turn: Callable[[Mapping[str, Any]], None] = _ignore  #: what it says of turns
        #: Lanes that it has not yet taken, by their numbers.
        self._offered: deque[tuple[int, asyncio.Future[bool]]] = deque()
        self._exited = self._hung_up = False
        self._cell: HostSandbox | None = None
        self.group: Group | None = None  #: it is in this one from its beginning
        self._nursery = nursery
        stream.setblocking(False)
        asyncio.get_running_loop().add_reader(pidfd, self._ended)
        asyncio.get_running_loop().add_reader(stream, self._heard)

    @property
    def lanes(self) -> int:
        """Open now."""
        return len(self._lanes)

    def start(self, start: control.Start, sandbox: HostSandbox | None = None) -> None:
        """Bind it to a lease and its sandbox, which it closes. Raises OSError when it has died."""
        if self._exited:
            raise ProcessLookupError("the worker has died")
        if sandbox is not None:
            start = replace(start, sandbox=asdict(sandbox.sandbox))
        control.send(self._stream, {"start": asdict(start)})
        self._cell = sandbox
        self.bound = True

    def end_in(self, cap_s: float) -> None:
        """It ends itself after this, whatever it was told before; a dead one needs no telling."""
        self.tell({"cap_s": cap_s})

    async def lane(self, stream: socket.socket, device: int, kind: str, key: bytes) -> bool:
        """Hand a proven connection over; the caller closes its own copy.

        False: the process died before it took the lane, and nothing of it was served. Raises
        AppError: TIMEOUT when a living worker does not take it, UNAVAILABLE without a descriptor.
        """
        if self._exited:
            await self.gone
            return False
        taken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        number = next(self._numbers)
        try:
            self._lanes[number] = stream.dup()
        except OSError as error:
            raise AppError(ErrorCode.UNAVAILABLE, f"no descriptor for a lane: {error}") from None
        self._offered.append((number, taken))
        try:
            lane = {"number": number, "device": device, "kind": kind, "key": key.hex()}
            control.send(self._stream, {"lane": lane}, stream.fileno())
            return await asyncio.wait_for(asyncio.shield(taken), self._take_s)
        except TimeoutError:
            raise AppError(ErrorCode.TIMEOUT, "the worker does not answer") from None
        except OSError:
            await self.gone
            return False

    def tell(self, meta: Mapping[str, Any]) -> None:
        """Say something; lost when the process has died."""
        with contextlib.suppress(OSError):
            control.send(self._stream, meta)

    def pause(self) -> None:
        """Stop it, whatever it computes."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it now. Safe to repeat; await `gone` for the certainty."""
        self._signal(signal.SIGKILL)
        if self._cell is not None:
            self._cell.kill()

    def _signal(self, number: signal.Signals) -> None:
        if not self.gone.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _heard(self) -> None:
        try:
            received = control.receive(self._stream)
        except ValueError as error:
            self._refute(error)
            return
        except OSError:
            received = None
        if received is None:
            asyncio.get_running_loop().remove_reader(self._stream)
            self._hung_up = True
            self.kill()  # one that lives can be told nothing any more
            self._finish()
            return
        meta, descriptor = received
        if descriptor is not None:  # nobody asked for one
            os.close(descriptor)
        if not self._refuted:
            try:
                self._obey(meta)
            except _NONSENSE as error:
                self._refute(error)

    def _obey(self, meta: Mapping[str, Any]) -> None:
        """One packet of a worker. Raises one of `_NONSENSE` for what none of ours sends."""
        if not isinstance(meta, dict):
            raise TypeError("a packet that is not an object")
        if "lane_taken" in meta:
            self._offered.popleft()[1].set_result(True)
        elif "lane_ended" in meta:
            if any(number == meta["lane_ended"] for number, _ in self._offered):
                raise ValueError("a lane ended that was not taken")
            _cut(self._lanes.pop(meta["lane_ended"]))
        else:
            self.on_turn(meta)

    def _refute(self, error: BaseException) -> None:
        """Kill a worker that broke the protocol, and say so once; what it still says is dropped."""
        if not self._refuted:
            self._refuted = True
            why = f"{type(error).__name__}: {error}"[:200]
            about = {"event": "worker_killed", "pid": self.pid, "why": why}
            logger.error("a worker broke the protocol and is killed", extra=about)
        self.kill()

    def _ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self._exited = True
        if self._cell is None:
            if self.group is not None:
                self.group.remove()
            self._finish()
        else:
            assert self._nursery is not None, "a worker with a sandbox has it"
            self._nursery.start(self._close(self._cell), "cell")

    async def _close(self, sandbox: HostSandbox) -> None:
        await sandbox.close()
        self._cell = None
        if sandbox.holds_all and not self._hung_up:
            # whoever holds the other end is none of it: a client of this machine was sent it
            asyncio.get_running_loop().remove_reader(self._stream)
            self._hung_up = True
        self._finish()

    def _finish(self) -> None:
        if self._cell is not None or not (self._exited and self._hung_up):
            return
        os.close(self._pidfd)
        self._stream.close()
        untaken = list(self._offered)
        self._offered.clear()
        for number, _ in untaken:
            self._lanes.pop(number).close()  # not cut: the lease's next worker gets it
        for lane in self._lanes.values():
            _cut(lane)
        self._lanes.clear()
        self.gone.set_result(None)  # before the lanes: whoever waits for one asks for a new worker
        for _, taken in untaken:
            taken.set_result(False)


def _cut(lane: socket.socket) -> None:
    """End a lane, whoever holds other copies of its socket.

    Options belong to the socket: where its worker set SO_LINGER, the close of the last copy would
    wait for a client that does not read.
    """
    with lane, contextlib.suppress(OSError):
        lane.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        lane.shutdown(socket.SHUT_RDWR)


def _ignore(meta: Mapping[str, Any]) -> None:
    logger.debug("a worker without a lease speaks", extra={"meta": meta})


class WorkerPool:
    """The spawner and the workers that wait for a lease."""

    def __init__(
        self,
        data: Mapping[str, Path],
        kept: Path,
        cpus: Sequence[int],
        operations: Sequence[str],
        budget: Budget,
        nursery: Nursery,
        tls: HostTls | None = None,
        programs: Mapping[str, Program] | None = None,
        batch_wait_s: float = BATCH_WAIT_S,
        cells: Sandboxes | None = None,
        policy: Policy | None = None,
    ) -> None:
        """`cells`, `policy`: what isolates leases; None: nothing."""
        self._settings = {
            "data": {name: str(path) for name, path in data.items()},
            "kept": str(kept),
            "policy": asdict(policy or Policy()),
            "cpus": list(cpus),
            "operations": list(operations),
            "programs": {name: one.command for name, one in (programs or {}).items()},
            "batch_wait_s": batch_wait_s,
            "tls": [] if tls is None else [str(tls.certificate), str(tls.key)],
            "handshake_s": budget.handshake_s,
        }
        self._budget = budget
        self._nursery = nursery
        self._cells = cells
        self._idle: deque[Worker] = deque()
        self._workers: set[Worker] = set()  # all that live, idle or bound
        self._process: subprocess.Popen[bytes] | None = None
        self._stream: socket.socket | None = None
        self._said: StderrLog | None = None
        self._lock = asyncio.Lock()  # one request to the spawner at a time
        self._closing = False
        self._kept = kept
        self._sweeping: asyncio.Task[None] | None = None
        self.ready = Ready()

    async def open(self) -> None:
        """Start the spawner and wait until it has loaded everything. Raises AppError."""
        async with self._lock:  # nobody asks it for a fork before it is ready
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            with theirs:
                self._process = self._spawn(theirs.fileno())
            self._stream = ours
            meta, _ = await self._receive(self._budget.worker_ready_s)
        self.ready = Ready(**meta["ready"])
        for name, why in self.ready.failures.items():
            logger.warning("operation not available", extra={"operation": name, "why": why})
        await self._refill()

    async def watch(self) -> None:
        """Start a new spawner whenever the old one dies; for ever."""
        while True:
            assert self._process is not None, "open() comes first"
            pidfd = os.pidfd_open(self._process.pid)
            ended = asyncio.Event()
            asyncio.get_running_loop().add_reader(pidfd, ended.set)
            try:
                await ended.wait()
            finally:
                asyncio.get_running_loop().remove_reader(pidfd)
                os.close(pidfd)
            if self._closing:
                await asyncio.get_running_loop().create_future()  # until it is cancelled
            logger.error("the spawner died", extra={"code": self._process.wait()})
            await asyncio.sleep(self._budget.spawner_restart_s)
            await self._reopen()

    async def take(self, start: control.Start) -> Worker:
        """A worker bound to a lease. Raises AppError(UNAVAILABLE) when none can be had."""
        for _ in range(IDLE_WORKERS + 1):
            worker = self._idle.popleft() if self._idle else await self._fork()
            sandbox = await self._cell(start, worker)
            try:
                worker.start(start, sandbox)
            except OSError:  # it died while it was idle: take the next
                if sandbox is not None:
                    await sandbox.close()
                continue
            self._nursery.start(self._refill(), "refill")
            worker.gone.add_done_callback(lambda _: self._sweep())
            self._sweep()
            return worker
        raise AppError(ErrorCode.UNAVAILABLE, "workers of this host die before they start")

    async def _cell(self, start: control.Start, worker: Worker) -> HostSandbox | None:
        if self._cells is None:
            return None
        try:
            return await self._cells.make(
                start.tenant, start.memory_bytes, start.kinds, worker.group
            )
        except BaseException as error:
            worker.kill()
            if not isinstance(error, OSError):
                raise
            message = f"this host cannot isolate the lease: {error}"
            raise AppError(ErrorCode.UNAVAILABLE, message) from None

    def _sweep(self) -> None:
        """Keep all tenants' contents within the host's limit; one sweep at a time."""
        if not self._closing and (self._sweeping is None or self._sweeping.done()):
            self._sweeping = self._nursery.start(asyncio.to_thread(sweep, self._kept), "sweep")

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the workers that belong to a lease, for usage figures."""
        return tuple(sorted(worker.pid for worker in self._workers if worker.bound))

    async def close(self) -> None:
        """Kill everything and wait until it is gone, or `worker_cut_s`. Safe to repeat."""
        self._closing = True
        workers = list(self._workers)
        for worker in workers:
            worker.kill()
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self._budget.worker_cut_s)
        if self._stream is not None:
            self._stream.close()
        if workers:  # what sleeps in a driver ends when that lets it go
            gone = {worker.gone for worker in workers}
            await asyncio.wait(gone, timeout=self._budget.worker_cut_s)
        self._idle.clear()
        self._hear_no_more()

    def _spawn(self, descriptor: int) -> subprocess.Popen[bytes]:
        arguments = [str(descriptor), str(os.getpid()), json.dumps(self._settings)]
        self._hear_no_more()
        self._said, stderr = StderrLog.open("workers")
        try:
            return subprocess.Popen(
                # -P: the folder that gpud was started in is no place of libraries
                [sys.executable, "-P", "-m", "remote_gpu.worker.spawner", *arguments],
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=spawner_variables(os.environ),
            )
        finally:
            os.close(stderr)

    def _hear_no_more(self) -> None:
        if self._said is not None:
            self._said.close()
            self._said = None

    async def _reopen(self) -> None:
        async with self._lock:
            if self._stream is not None:
                self._stream.close()
            self._idle.clear()  # they died with the spawner
        try:
            await self.open()
        except (AppError, OSError) as error:
            logger.exception("the spawner does not start", exc_info=error)

    async def _refill(self) -> None:
        try:
            while len(self._idle) < IDLE_WORKERS:
                self._idle.append(await self._fork())
        except AppError as error:  # the next lane says so to its caller
            logger.warning("no worker could be forked", extra={"why": error.message})

    async def _fork(self) -> Worker:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            async with self._lock:
                with theirs:
                    assert self._stream is not None, "open() comes first"
                    control.send(self._stream, {"fork": {}}, theirs.fileno())
                meta, pidfd = await self._receive(self._budget.worker_fork_s)
        except (OSError, AppError) as error:
            ours.close()
            raise AppError(ErrorCode.UNAVAILABLE, f"the spawner does not answer: {error}") from None
        except BaseException:
            ours.close()
            raise
        assert pidfd is not None, "the spawner answers a fork with a pidfd"
        take_s = self._budget.worker_take_s
        worker = Worker(_number(pidfd, meta["forked"]), pidfd, ours, take_s, self._nursery)
        self._workers.add(worker)
        await self._join_group(worker)
        worker.gone.add_done_callback(lambda _: self._workers.discard(worker))
        return worker

    async def _join_group(self, worker: Worker) -> None:
        """Ahead of need: the kernel takes some milliseconds for it."""
        if self._cells is None:
            return
        try:
            worker.group = await asyncio.to_thread(self._cells.group, worker.pid)
        except BaseException as error:
            worker.kill()
            if not isinstance(error, OSError):
                raise
            message = f"a worker cannot be put into a cgroup: {error}"
            raise AppError(ErrorCode.UNAVAILABLE, message) from None

    async def _receive(self, wait_s: float) -> tuple[dict[str, Any], int | None]:
        assert self._stream is not None, "open() comes first"
        loop, stream = asyncio.get_running_loop(), self._stream
        readable = asyncio.Event()
        loop.add_reader(stream, readable.set)
        try:
            await asyncio.wait_for(readable.wait(), wait_s)
        except TimeoutError:
            if self._process is not None:
                self._process.kill()  # a late answer would be taken for the next one's
            raise AppError(ErrorCode.TIMEOUT, f"no answer within {wait_s:g} s") from None
        finally:
            loop.remove_reader(stream)
        received = control.receive(stream, control.READY_BYTES_MAX)
        if received is None:
            raise AppError(ErrorCode.UNAVAILABLE, "the spawner ended")
        return received


def _number(pidfd: int, told: int) -> int:
    """Of a process as gpud sees it; `told`: as the spawner does, maybe in another namespace."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/self/fdinfo/{pidfd}").read_text(encoding="ascii").splitlines()
        return next((int(line[4:]) for line in lines if line.startswith("Pid:")), told)
    return told

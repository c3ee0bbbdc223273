"""The pool of workers: forked ahead of need, bound to a lease at its first lane."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from remote_gpu.host.environment import spawner_variables
from remote_gpu.host.workers.stderr_log import StderrLog
from remote_gpu.host.workers.tenant_storage import evict
from remote_gpu.host.workers.worker import Worker
from remote_gpu.isolation.sandboxes import Sandboxes
from remote_gpu.wire.uses import DATA, PROGRAMS, Uses
from remote_gpu.worker import control
from remote_gpu.worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

#: Workers without a lease; a fork takes 3 ms.
IDLE_WORKERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Operations and data that the spawner found on this host."""

    operations: Mapping[str, Sequence[str]] = field(default_factory=dict)  #: kind → names
    failures: Mapping[str, str] = field(
        default_factory=dict
    )  #: operation → why it cannot be offered
    resident: Sequence[str] = ()  #: warm keys
    threads: int = 1
    #: Kind → versions of the libraries of its operations, by name.
    libraries: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class WorkerPool:
    """The spawner and the workers that wait for a lease."""

    def __init__(
        self,
        settings: WorkerSettings,
        budget: Budget,
        nursery: Nursery,
        sandboxes: Sandboxes,
    ) -> None:
        self.settings = settings
        self._budget = budget
        self._nursery = nursery
        self._sandboxes = sandboxes
        self._idle: deque[Worker] = deque()
        self._workers: set[Worker] = set()  # all that run, idle or bound
        self._process: subprocess.Popen[bytes] | None = None
        self._stream: socket.socket | None = None
        self._stderr: StderrLog | None = None
        self._forks = itertools.count(1)
        self._lock = asyncio.Lock()  # one request to the spawner at a time
        self._closing = False
        self._evicting: asyncio.Task[None] | None = None
        self.ready = Ready()

    async def open(self) -> None:
        """Start the spawner and wait until it has loaded everything. Raises AppError."""
        async with self._lock:  # no fork before it is ready
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            with theirs:
                self._process = self._spawn(theirs.fileno())
            self._stream = ours
            meta, _ = await self._receive(self._budget.worker_ready_s)
            while "indexing" in meta:  # host data of any size: the limit holds between two news
                _log_indexing(**meta["indexing"])
                meta, _ = await self._receive(self._budget.worker_ready_s)
        self.ready = Ready(**meta["ready"])
        for name, why in self.ready.failures.items():
            logger.warning("operation not available", extra={"operation": name, "why": why})
        await self._refill()

    async def watch(self) -> None:
        """Start a new spawner whenever the old one dies; never ends."""
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

    async def take(self, start: control.WorkerStart) -> Worker:
        """A worker bound to a lease. Raises AppError(UNAVAILABLE) when there is none."""
        for _ in range(IDLE_WORKERS + 1):
            worker = self._idle.popleft() if self._idle else await self._fork()
            with _killed_on_error(worker, "this host cannot isolate the lease"):
                sandbox = await self._sandboxes.make(
                    start.tenant, start.host_bytes, start.kinds, worker.group
                )
            try:
                worker.start(start, sandbox)
            except OSError:  # the worker died while it was idle: take the next
                await sandbox.close()
                continue
            self._nursery.start(self._refill(), "refill")
            worker.gone.add_done_callback(lambda _: self._evict())
            self._evict()
            return worker
        raise AppError(
            ErrorCode.UNAVAILABLE, "workers of this host die before they start; see gpud's log"
        )

    def _evict(self) -> None:
        """Keep all tenants' contents within the host's limit; one eviction at a time."""
        if not self._closing and (self._evicting is None or self._evicting.done()):
            self._evicting = self._nursery.start(
                asyncio.to_thread(evict, self.settings.kept), "evict"
            )

    @property
    def offered_digests(self) -> Uses:
        """Data sets, and programs where `exec` is among the operations, by kind and name."""
        runs = any("exec" in names for names in self.ready.operations.values())
        digests = self.settings.digests
        return {kind: digests.get(kind, {}) for kind in ((DATA, PROGRAMS) if runs else (DATA,))}

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers that belong to a lease, for usage figures."""
        return tuple(sorted(worker.pid for worker in self._workers if worker.bound))

    async def close(self) -> None:
        """Kill all processes and wait for their end, or `worker_cut_s`. Idempotent."""
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
        if workers:  # a worker blocked in a driver ends when the driver returns
            gone = {worker.gone for worker in workers}
            await asyncio.wait(gone, timeout=self._budget.worker_cut_s)
        self._idle.clear()
        self._close_stderr()

    def _spawn(self, descriptor: int) -> subprocess.Popen[bytes]:
        arguments = [str(descriptor), str(os.getpid()), self.settings.to_json()]
        self._close_stderr()
        self._stderr, stderr = StderrLog.open("workers")
        try:
            return subprocess.Popen(
                # -P: no imports from the folder in which gpud was started
                [sys.executable, "-P", "-m", "remote_gpu.worker.spawner", *arguments],
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=spawner_variables(os.environ),
            )
        finally:
            os.close(stderr)

    def _close_stderr(self) -> None:
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None

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
        except AppError as error:  # the next lane reports it to its caller
            logger.warning("no worker could be forked", extra={"why": error.message})

    async def _fork(self) -> Worker:
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise AppError(ErrorCode.UNAVAILABLE, f"no descriptor for a worker: {error}") from None
        try:
            meta, pidfd = await self._forked(theirs)
        except (OSError, AppError) as error:
            ours.close()
            raise AppError(ErrorCode.UNAVAILABLE, f"the spawner does not answer: {error}") from None
        except BaseException:
            ours.close()
            raise
        if pidfd is None:  # this process has no descriptor left; the worker ends with its socket
            ours.close()
            why = meta.get("failed", "no descriptor for a worker")
            raise AppError(ErrorCode.UNAVAILABLE, f"no worker can be forked: {why}")
        take_s = self._budget.worker_take_s
        worker = Worker(_process_id(pidfd, meta["forked"]), pidfd, ours, take_s, self._nursery)
        self._workers.add(worker)
        with _killed_on_error(worker, "a worker cannot be moved into a cgroup"):
            worker.group = await asyncio.to_thread(self._sandboxes.group, worker.pid)
        worker.gone.add_done_callback(lambda _: self._workers.discard(worker))
        return worker

    async def _forked(self, theirs: socket.socket) -> tuple[dict[str, Any], int | None]:
        """Have a worker forked; answers to earlier requests, whose waiters failed, are dropped."""
        async with self._lock:
            number = next(self._forks)
            with theirs:
                assert self._stream is not None, "open() comes first"
                control.send(self._stream, {"fork": number}, theirs.fileno())
            while True:
                meta, pidfd = await self._receive(self._budget.worker_fork_s)
                if meta.get("number") == number:
                    return meta, pidfd
                if pidfd is not None:
                    os.close(pidfd)

    async def _receive(self, wait_s: float) -> tuple[dict[str, Any], int | None]:
        assert self._stream is not None, "open() comes first"
        loop, stream = asyncio.get_running_loop(), self._stream
        readable = asyncio.Event()
        loop.add_reader(stream, readable.set)
        try:
            async with asyncio.timeout(wait_s):  # wait_for may swallow a cancellation
                await readable.wait()
        except TimeoutError:
            if self._process is not None:
                # a late answer would be mistaken for the answer to the next request
                self._process.kill()
            raise AppError(ErrorCode.TIMEOUT, f"no answer within {wait_s:g} s") from None
        finally:
            loop.remove_reader(stream)
        received = control.receive(stream, control.READY_BYTES_MAX)
        if received is None:
            raise AppError(ErrorCode.UNAVAILABLE, "the spawner ended")
        return received


def _log_indexing(data: str, sequences: int, part: float) -> None:
    """A line for operators, and for `orchgpu up`, which shows a bar."""
    text = f"indexed {data}" if part >= 1.0 else f"indexing {data}"
    about = {"event": "indexing", "data": data, "sequences": sequences, "part": round(part, 3)}
    logger.info(f"{text}, {sequences:,} sequences", extra=about)


@contextlib.contextmanager
def _killed_on_error(worker: Worker, failure: str) -> Iterator[None]:
    """Kill the worker on any error of the block. Raises AppError(UNAVAILABLE) for an OSError."""
    try:
        yield
    except BaseException as error:
        worker.kill()
        if not isinstance(error, OSError):
            raise
        raise AppError(ErrorCode.UNAVAILABLE, f"{failure}: {error}") from None


def _process_id(pidfd: int, inner: int) -> int:
    """The process id in gpud's namespace; `inner`: in the spawner's, which may be another."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/self/fdinfo/{pidfd}").read_text(encoding="ascii").splitlines()
        return next((int(line[4:]) for line in lines if line.startswith("Pid:")), inner)
    return inner

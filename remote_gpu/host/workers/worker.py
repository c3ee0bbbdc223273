"""One worker: a process, from its fork to its certain end; of one lease, or of several in turn.

A worker is watched by its pidfd: readable means that the process has ended and its memory is back
with the kernel. Processes that it started for its lease inherit its end of the socket to gpud: when
the socket is closed too, none of them is left. Only then is the worker gone.

A worker reports it before it runs a kernel or program of a caller. From then on its reports mean
nothing, and it ends with its lease: packets arrive in the order in which they were sent, so no
later one can hide that.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import logging
import math
import os
import re
import signal
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from corekit.aio.supervise import Nursery
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.model import LENGTH_S_MAX
from remote_gpu.host.warm.table import CardLimits, Used
from remote_gpu.isolation.cgroup import Group
from remote_gpu.isolation.sandboxes import HostSandbox
from remote_gpu.worker import control
from remote_gpu.worker.loading_ahead import USED_BYTES_MAX, USED_MAX

logger = logging.getLogger(__name__)

_NO_LINGER = struct.pack("ii", 0, 0)
_LOWEST = 19  #: of the priorities of processes
_DRAINED_MAX = 64  #: packets at once


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
        """`take_s`: limit for taking a lane; `nursery`: for closing its sandbox, if it gets one."""
        self.pid = pid
        self._take_s = take_s
        self._pidfd = pidfd
        self._stream = stream
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: Copies of the lanes' sockets: a lane that the worker reports as ended is always cut.
        self._lanes: dict[int, socket.socket] = {}
        self._numbers = itertools.count(1)
        self._protocol_broken = False  #: the worker is killed then
        self.bound = False  #: has belonged to a lease
        self.tainted = False  #: ran, or may have run, code of a caller
        self.loading_s = 0.0  #: spent loading for the present lease, as it reports
        self.loaded_bytes = 0  #: of models, for the present lease, as it reports
        self._loaded_before_s = 0.0  #: for earlier leases
        self.used: Used = ()  #: what to load for another lease, as it reported at its release
        self.card_limits: CardLimits = ()  #: of its first lease, for the drivers of cards
        self._on_gone: Callable[[], None] = lambda: None
        self._released: asyncio.Future[int | None] | None = None
        self._busy: asyncio.Future[None] | None = None  #: until it reports a call that runs
        #: Handles its requests for time slices.
        self.on_turn: Callable[[Mapping[str, object]], None] = _ignore
        #: Lanes that it has not taken yet, by their numbers.
        self._offered: deque[tuple[int, asyncio.Future[bool]]] = deque()
        self._exited = self._socket_closed = False
        self._sandbox: HostSandbox | None = None
        self.group: Group | None = None  #: cgroup of the worker, from its start
        self._nursery = nursery
        stream.setblocking(False)
        asyncio.get_running_loop().add_reader(pidfd, self._on_exit)
        asyncio.get_running_loop().add_reader(stream, self._read_packet)

    @property
    def loaded_s(self) -> float:
        """Seconds spent loading what it has, for all its leases."""
        return self._loaded_before_s + self.loading_s

    @property
    def lanes(self) -> int:
        """The number of open lanes."""
        return len(self._lanes)

    def start(self, start: control.WorkerStart, sandbox: HostSandbox) -> None:
        """Bind it to a lease and its sandbox, which it closes. Raises OSError when it has died."""
        if self._exited:
            raise ProcessLookupError("the worker has died")
        start = replace(start, sandbox=asdict(sandbox.sandbox))
        control.send(self._stream, {"start": asdict(start)})
        self._sandbox = sandbox
        self.bound = True

    def when_gone(self, act: Callable[[], None]) -> None:
        """Call `act`, in place of an earlier one, once it is gone; soon if it is gone already."""
        self._on_gone = act
        if self.gone.done():
            asyncio.get_running_loop().call_soon(act)

    async def release(
        self, cap_s: float, wait_s: float, needed: asyncio.Future[None] | None = None
    ) -> int | None:
        """End its lease, but not the process; returns the bytes of the models that it keeps.

        None: it is dead, tainted, or has not released the lease, within `wait_s` or while a call
        runs and its room is `needed`; it must be killed. `cap_s`: time after which it ends itself.
        """
        if self.gone.done() or self._offered or self.tainted or self._protocol_broken:
            return None
        self.on_turn = _ignore
        for lane in self._lanes.values():
            with contextlib.suppress(OSError):
                lane.shutdown(socket.SHUT_RDWR)
        loop = asyncio.get_running_loop()
        self._released, self._busy = loop.create_future(), loop.create_future()
        self.resume()
        self.send({"release": {"cap_s": cap_s}})
        answer: asyncio.Future[Any] = self._released
        ended, until_s = {answer, self.gone}, loop.time() + wait_s
        first = {*ended, self._busy}
        await asyncio.wait(first, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        if not any(one.done() for one in ended):
            last = ended if needed is None else {*ended, needed}
            left_s = until_s - loop.time()
            await asyncio.wait(last, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        self._released = self._busy = None
        kept: int | None = answer.result() if answer.done() else None
        failed = self.tainted or self._protocol_broken or self._exited or bool(self._lanes)
        return None if failed else kept

    async def restart(self, start: control.WorkerStart) -> bool:
        """Bind it, after `release`, to another lease of its tenant. False when it has died."""
        assert not self.tainted, "a tainted worker serves no second lease"
        if self._exited or self._socket_closed:
            return False
        self._loaded_before_s, self.loading_s = self.loaded_s, 0.0
        self.loaded_bytes = 0
        if self._sandbox is not None:
            await self._sandbox.renew(start.host_bytes, start.kinds)
            start = replace(start, sandbox=asdict(self._sandbox.sandbox))
        try:
            control.send(self._stream, {"start": asdict(start)})
        except OSError:
            return False
        return True

    def load(self, device: int, kind: str, used: Used) -> None:
        """Have it load for a coming lease; `release` awaits the end."""
        calls = [[operation, json.loads(args)] for operation, args in used]
        self.send({"load": {"device": device, "kind": kind, "used": calls}})

    async def clear(self) -> None:
        """Remove the temporary files of its last lease."""
        if self._sandbox is not None:
            await self._sandbox.clear()

    def drain(self) -> None:
        """Handle packets that it has sent and that the event loop has not read yet."""
        for _ in range(_DRAINED_MAX):
            if self._socket_closed or not self._read_packet():
                return

    def end_in(self, cap_s: float) -> None:
        """Set the time after which it ends itself, in place of an earlier one."""
        self.send({"cap_s": cap_s})

    async def lane(
        self, stream: socket.socket, device: int, kind: str, key: bytes, lease: str = ""
    ) -> bool:
        """Hand an authenticated connection over; the caller closes its own copy.

        `lease`: of its caller, in a batch process.

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
            if lease:
                lane["lease"] = lease
            control.send(self._stream, {"lane": lane}, stream.fileno())
            async with asyncio.timeout(self._take_s):  # wait_for may swallow a cancellation
                return await asyncio.shield(taken)
        except TimeoutError:
            raise AppError(ErrorCode.TIMEOUT, "the worker did not take the lane in time") from None
        except OSError:
            await self.gone
            return False

    def send(self, meta: Mapping[str, object], descriptor: int | None = None) -> None:
        """Send one packet; lost when the process has died."""
        with contextlib.suppress(OSError):
            control.send(self._stream, meta, descriptor)

    def pause(self) -> None:
        """Stop it (SIGSTOP)."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue it (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it. Idempotent; await `gone` for its end."""
        self._signal(signal.SIGKILL)
        if self._sandbox is not None:
            self._sandbox.kill()

    def _signal(self, number: signal.Signals) -> None:
        if not self.gone.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _read_packet(self) -> bool:
        """Handle one packet, or the end of the socket; False when `drain` has read what came."""
        try:
            received = control.receive(self._stream)
        except ValueError as error:
            self._kill_for(error)
            return True
        except BlockingIOError:
            return False
        except OSError:
            received = None
        if received is None:
            asyncio.get_running_loop().remove_reader(self._stream)
            self._socket_closed = True
            self.kill()  # a living one can receive no packet any more
            self._finish()
            return True
        meta, descriptor = received
        if descriptor is not None:  # none was requested
            os.close(descriptor)
        if not self._protocol_broken:
            try:
                self._handle(meta)
            except Exception as error:
                self._kill_for(error)
        return True

    def _handle(self, meta: dict[str, Any]) -> None:
        """Handle one packet. Raises any error for one that our worker never sends."""
        if not isinstance(meta, dict):
            raise TypeError("the packet is not an object")
        if "lane_taken" in meta:
            self._offered.popleft()[1].set_result(True)
        elif "lane_ended" in meta:
            if any(number == meta["lane_ended"] for number, _ in self._offered):
                raise ValueError("lane_ended for a lane that was not taken")
            _cut(self._lanes.pop(meta["lane_ended"]))
        elif "tainted" in meta:
            self.tainted = True
        elif "loaded" in meta:
            self.loading_s = _seconds(meta["loaded"])
            self.loaded_bytes = _count(meta.get("bytes", 0))
        elif "loading" in meta:
            _set_priority(self.pid, _LOWEST)
        elif "released" in meta:
            assert self._released is not None, "nothing was to be released"
            _set_priority(self.pid, 0)
            self.used = _used(meta["released"].get("used", []))
            self._released.set_result(_count(meta["released"]["memory_bytes"]))
        elif "busy" in meta:
            assert self._busy is not None, "nothing was to be released"
            self._busy.set_result(None)
        else:
            self.on_turn(meta)

    def _answer_failed(self) -> None:
        if self._released is not None and not self._released.done():
            self._released.set_result(None)

    def _kill_for(self, error: BaseException) -> None:
        """Kill a worker that broke the protocol, and log it once; later packets are dropped."""
        if not self._protocol_broken:
            self._protocol_broken = True
            why = f"{type(error).__name__}: {error}"[:200]
            about = {"event": "worker_killed", "pid": self.pid, "why": why}
            logger.error("a worker broke the protocol and is killed", extra=about)
        self._answer_failed()
        self.kill()

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self._exited = True
        self._answer_failed()
        if self._sandbox is None:
            if self.group is not None:
                self.group.remove()
            self._finish()
        else:
            assert self._nursery is not None, "a worker with a sandbox has one"
            self._nursery.start_end(functools.partial(self._close, self._sandbox), "sandbox")

    async def _close(self, sandbox: HostSandbox) -> None:
        await sandbox.close()
        self._sandbox = None
        if sandbox.holds_all and not self._socket_closed:
            # another process holds the other end: it was sent to a client of this machine
            asyncio.get_running_loop().remove_reader(self._stream)
            self._socket_closed = True
        self._finish()

    def _finish(self) -> None:
        if self._sandbox is not None or not (self._exited and self._socket_closed):
            return
        os.close(self._pidfd)
        self._stream.close()
        untaken = list(self._offered)
        self._offered.clear()
        for number, _ in untaken:
            self._lanes.pop(number).close()  # without a shutdown: the next worker gets it
        for lane in self._lanes.values():
            _cut(lane)
        self._lanes.clear()
        self.gone.set_result(None)  # before the lanes: their waiters then start a new worker
        for _, taken in untaken:
            taken.set_result(False)
        asyncio.get_running_loop().call_soon(self._on_gone)


def _cut(lane: socket.socket) -> None:
    """Shut a lane down, whatever other process holds its socket.

    Options belong to the socket: where its worker set SO_LINGER, the close of the last copy would
    wait for a client that does not read.
    """
    with lane, contextlib.suppress(OSError):
        lane.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        lane.shutdown(socket.SHUT_RDWR)


def _seconds(value: object) -> float:
    """A time by the word of a worker, for figures only. Raises ValueError."""
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError("a time is not a number of seconds")
    return min(float(value), LENGTH_S_MAX)


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a number of bytes is not one")
    return value


def _used(value: object) -> Used:
    """Operations with their arguments as JSON. Raises ValueError and the like for others."""
    if not isinstance(value, list) or len(value) > USED_MAX:
        raise ValueError("these are not the calls of a worker")
    found = tuple((str(operation), json.dumps(dict(args))) for operation, args in value)
    if sum(len(args) for _, args in found) > 2 * USED_BYTES_MAX:
        raise ValueError("the arguments of its calls are too long")
    return found


def _set_priority(pid: int, nice: int) -> None:
    """Of all threads of a worker but its first: the lowest while they load for a lease that has no
    device yet, then the usual one, which a gpud without the right to raise it cannot give back.
    Workers cannot change priorities themselves."""
    with contextlib.suppress(OSError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            if int(task.name) != pid:
                with contextlib.suppress(OSError):  # that thread has ended
                    os.setpriority(os.PRIO_PROCESS, int(task.name), nice)


def _ignore(meta: Mapping[str, object]) -> None:
    logger.debug("packet of a worker without a lease", extra={"meta": meta})


def private_bytes(pid: int) -> int:
    """The process's own resident memory, without the spawner's; 0 once the process is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except PermissionError:  # undumpable, and gpud is not root
        return _anonymous_beyond_parent(pid)
    except OSError:
        return 0
    kib = [line.split()[1] for line in text.splitlines() if line.startswith("Private_")]
    return sum(map(int, kib)) << 10


def _anonymous_beyond_parent(pid: int) -> int:
    """An estimate: resident anonymous memory beyond that of its parent process."""
    try:
        own = _status(pid)
        of_parent = _status(own["PPid"])
    except (OSError, KeyError):  # gone
        return 0
    return max(0, own.get("RssAnon", 0) - of_parent.get("RssAnon", 0)) << 10


def _status(pid: int) -> dict[str, int]:
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return {name: int(value) for name, value in re.findall(r"(?m)^(\w+):\s+(\d+)\b", text)}

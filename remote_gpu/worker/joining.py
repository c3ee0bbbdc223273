"""Batches across leases: both ends of the calls that a batch process computes for leases' workers.

A *batch process* is a worker without a lease of its own: one per tenant, workload and device. It
runs trusted operations only, and serves a lane of each lease's worker, which passes on the calls
that may be joined (`BatchLanes`). It reports its time by leases, and takes out the calls of a lease
that ends (`Callers`).
"""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial

from remote_gpu.client.device import Lane, OpResult
from remote_gpu.wire.channel import Channel
from remote_gpu.wire.connection import DeviceInfo
from remote_gpu.wire.errors import OpCode, OpFailed, Refused
from remote_gpu.wire.frames import FrameLimits
from remote_gpu.wire.graphs import CONTENT_PREFIX
from remote_gpu.worker.arguments import Arguments

#: Batch processes of one call, before it is computed by its lease's own worker: one of them may
#: have ended with a lease that left it, by no fault of this call.
_ATTEMPTS = 2
#: For a batch process to start: a fork takes 3 ms.
_CONNECT_S = 10.0
#: Of device time, in one message to gpud: half a time slice.
_CHARGE_S = 0.005
#: Of one lease in a batch process; as many as it may have lanes.
CONNECTIONS_MAX = 16


class BatchLanes:
    """The connections of one lease's worker to the batch process of one device. Thread-safe."""

    def __init__(self, request: Callable[[], None]) -> None:
        """`request`: asks gpud for one connection; `connected` has the answer."""
        self._request = request
        self._idle: queue.LifoQueue[_Connection] = queue.LifoQueue()
        self._answers: queue.SimpleQueue[socket.socket | None] = queue.SimpleQueue()
        self._count = threading.Semaphore(CONNECTIONS_MAX)

    def connected(self, stream: socket.socket | None) -> None:
        """Accept a connection from gpud; None: the batch process did not start."""
        self._answers.put(stream)

    def op(
        self, name: str, args: Arguments, inputs: Sequence[memoryview], model: memoryview | None
    ) -> OpResult | None:
        """The result of a call in the batch process; None: the lease's worker must compute it.

        `model`: the bytes of the registered model that `args` names, if it does. Raises OpFailed.
        """
        with self._count:
            for _ in range(_ATTEMPTS):
                connection = self._connection()
                if connection is None:
                    return None
                try:
                    result = connection.op(name, args, inputs, model)
                except Refused:  # the batch process has ended: repeat the call in the next one
                    connection.close()
                    continue
                except OpFailed as failed:
                    self._idle.put(connection)
                    if failed.code == OpCode.ENOMEM:  # of the batch process, which others fill too
                        return None
                    raise
                self._idle.put(connection)
                return result
        return None

    def close(self) -> None:
        """Close the connections; no call is under way."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    def _connection(self) -> _Connection | None:
        with contextlib.suppress(queue.Empty):
            return self._idle.get_nowait()
        self._request()
        try:
            stream = self._answers.get(timeout=_CONNECT_S)
        except queue.Empty:
            return None
        return None if stream is None else _Connection(stream)


class _Connection:
    """One lane to a batch process, with the models registered on it. For one thread at a time."""

    def __init__(self, stream: socket.socket) -> None:
        stream.setblocking(True)
        info = DeviceInfo(0, "cpu", "a batch process", 0)
        self._lane = Lane(stream, Channel(stream, FrameLimits()), info)
        self._session: object = None
        self._models: set[str] = set()

    def op(
        self, name: str, args: Arguments, inputs: Sequence[memoryview], model: memoryview | None
    ) -> OpResult:
        """The result of one call. Raises OpFailed, Refused."""
        if model is not None and args["model"] not in self._models:
            self._register(args["model"], model)
        return self._lane.op(name, *inputs, **args)

    def close(self) -> None:
        self._lane.close()

    def _register(self, content: str, model: memoryview) -> None:
        if self._session is None:
            self._session = self._lane.op("session.new").values["session"]
        if self._is_missing(content):
            self._lane.op("content.put", model, content=content)
            self._is_missing(content)
        self._models.add(content)

    def _is_missing(self, content: str) -> object:
        """Register a model; returns whether the batch process lacks its bytes."""
        registered = self._lane.op(
            "resource.register", session=self._session, type="model", content=content
        )
        return registered.values["missing"]


def registered_model(args: Arguments) -> str | None:
    """The content of the model that a call names, unless its host has the model."""
    name = args.get("model")
    return name if isinstance(name, str) and name.startswith(CONTENT_PREFIX) else None


class Caller:
    """One lane of a batch process, and the lease whose calls it carries."""

    def __init__(self, lease: str, lane: socket.socket, charge: Callable[[float], None]) -> None:
        """`charge`: charges the lease for seconds of device time."""
        self.lease = lease
        self.charge = charge
        self._lane = lane
        self._look = select.poll()
        self._look.register(lane, select.POLLRDHUP)

    def gone(self) -> bool:
        """Whether the worker of the lease has closed its end, or has died."""
        return bool(self._look.poll(0))

    @contextlib.contextmanager
    def charged(self, turn: AbstractContextManager[None]) -> Iterator[None]:
        """A turn whose whole time is charged to the lease."""
        with turn:
            started_s = time.monotonic()
            try:
                yield
            finally:
                self.charge(time.monotonic() - started_s)

    def cut(self) -> None:
        """End the lane: its thread ends after the run under way."""
        with contextlib.suppress(OSError):  # it has ended
            self._lane.shutdown(socket.SHUT_RDWR)


class Callers:
    """The leases whose calls a batch process computes. Thread-safe."""

    def __init__(self, send: Callable[[Arguments], None]) -> None:
        """`send`: one packet to gpud, from any thread."""
        self._send = send
        self._lock = threading.Lock()
        self._open: dict[str, list[Caller]] = {}
        self._leaving: set[str] = set()
        self._used_s: dict[tuple[int, str], float] = defaultdict(
            float
        )  # by device and lease, not yet sent

    def enter(self, lease: str, device: int, lane: socket.socket) -> Caller:
        """Add a lane of a lease on a device; its thread calls `exit` at its end."""
        caller = Caller(lease, lane, partial(self._charge, device, lease))
        with self._lock:
            self._open.setdefault(lease, []).append(caller)
        return caller

    def exit(self, caller: Caller) -> None:
        """Remove an ended lane."""
        with self._lock:
            self._open[caller.lease].remove(caller)
            self._check(caller.lease)

    def leave(self, lease: str) -> None:
        """End all lanes of a lease; gpud gets `left` when nothing is computed for it any more."""
        with self._lock:
            self._leaving.add(lease)
            for caller in self._open.get(lease, []):
                caller.cut()
            self._check(lease)

    def _charge(self, device: int, lease: str, used_s: float) -> None:
        with self._lock:
            self._used_s[device, lease] += used_s
            if self._used_s[device, lease] < _CHARGE_S:
                return
            used_s = self._used_s.pop((device, lease))
        self._send({"used": [device, lease, used_s]})

    def _check(self, lease: str) -> None:
        if not self._open.get(lease):
            self._open.pop(lease, None)
            if lease in self._leaving:
                self._leaving.discard(lease)
                with contextlib.suppress(OSError):  # gpud has gone; this process ends too
                    self._send({"left": lease})

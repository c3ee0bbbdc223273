"""A worker: the process of one lease, with one thread per lane; ended by SIGKILL.

A worker that ran trusted operations only may serve a later lease of the same tenant and workload:
its lanes end, everything of the lease is freed, and its loaded models stay.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import os
import resource
import signal
import socket
import ssl
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from remote_gpu.client.transport.readiness import readable
from remote_gpu.client.transport.tls import TlsStream, secure
from remote_gpu.isolation.apply import Sandbox, isolate_worker
from remote_gpu.isolation.places import HostFiles
from remote_gpu.isolation.policy import IsolationPolicy
from remote_gpu.isolation.system import libc
from remote_gpu.wire.channel import Channel, Stream
from remote_gpu.wire.errors import Refused, WireError
from remote_gpu.wire.frames import HANDSHAKE, Meta
from remote_gpu.wire.proof import confirm_binding
from remote_gpu.wire.uses import DATA, Uses
from remote_gpu.worker import control, loading_ahead
from remote_gpu.worker.cards.card import Card
from remote_gpu.worker.joining import BatchLanes, Caller, Callers
from remote_gpu.worker.lane import LaneActivity, LaneServer, Runner
from remote_gpu.worker.loading import LoadingTime
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.memory.segments import shared_lane
from remote_gpu.worker.operation import Context
from remote_gpu.worker.registry import Registry
from remote_gpu.worker.store.contents import Contents
from remote_gpu.worker.turns import Gate, Loads

#: Beyond the quota: interpreter, threads, work areas of libraries.
_OVERHEAD_BYTES = 256 << 20
_CONTEXT_BYTES = 2 << 30  #: the host's side of CUDA contexts: driver, pinned pages, code
_STACK_BYTES = 1 << 20  #: per lane
#: Between two looks at lanes that have not ended yet. No limit: gpud has one, and kills.
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnerState:
    """The state that the spawner has ready for every worker."""

    registry: Registry
    context: Context
    policy: IsolationPolicy
    files: HostFiles
    kept: Path  #: the host's folder of contents
    handshake_s: float  #: for the TLS handshake and the second proof
    tls: ssl.SSLContext | None  #: of the host's certificate; None = no lane is in TLS


def run_worker(parent: int, stream: socket.socket, prepared: SpawnerState) -> NoReturn:
    """Run a worker after its fork; never returns."""
    code = 1
    try:
        control.die_with_parent(parent)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _end_at_alarm()
        threading.stack_size(_STACK_BYTES)
        _serve(stream, prepared)
        code = 0
    except BaseException:
        traceback.print_exc(file=sys.stderr)
        sys.stderr.flush()
    os._exit(code)  # not through the interpreter's exit: its handlers belong to the spawner


def _serve(stream: socket.socket, prepared: SpawnerState) -> None:
    received = control.receive(stream)
    if received is None:
        return
    start = control.WorkerStart(**received[0]["start"])
    limit = MemoryLimit()
    limit.set(start)
    os.environ.update({k: v for k, v in start.variables.items() if k in control.VARIABLES})
    contents = Contents.of_tenant(prepared.kept, start.tenant)
    sandbox = Sandbox(**start.sandbox)
    _end_in(start.cap_s)
    isolate_worker(prepared.policy, prepared.files, sandbox, contents.folder)
    options = prepared.context.options
    if start.batch_wait_ms is not None:
        options = dataclasses.replace(options, batch_wait_ms=start.batch_wait_ms)
    context = dataclasses.replace(
        prepared.context,
        tenant=start.tenant,
        quota=Quota(start.memory_bytes),
        contents=contents,
        compiled=Path(sandbox.compiled) if sandbox.compiled else contents.compiled,
        lifeline=stream.fileno(),
        taint=Taint(stream, limit),
        used=loading_ahead.Used(),
        options=options,
        batch_items_max=start.batch_items_max,
        declared={name: Path(sandbox.data, at) for name, (at, _) in start.data.items()},
        digests=_digests(prepared.context.digests, start.data),
    )
    _LeaseProcess(stream, prepared, context, limit, start).serve()


def _digests(of_host: Uses, declared: Mapping[str, tuple[str, str]]) -> Uses:
    """Those of the host's content, with those of the declared data sets in their place."""
    if not declared:
        return of_host
    own = {name: digest for name, (_, digest) in declared.items()}
    return {**of_host, DATA: {**of_host.get(DATA, {}), **own}}


class Taint:
    """A one-way switch: reports to gpud that code of a caller is about to run in this worker.

    The packet is in gpud's queue before the first such instruction, so the code cannot recall it.
    """

    def __init__(self, stream: socket.socket, limit: MemoryLimit) -> None:
        self._stream = stream
        self._limit = limit
        self._lock = threading.Lock()
        self._set = False

    def __call__(self) -> None:
        with self._lock:
            if not self._set:
                self._limit.seal()
                control.send(self._stream, {"tainted": {}})
                self._set = True


class _LeaseProcess:
    """The lease that this worker serves, its lanes, and what stays for the next lease."""

    def __init__(
        self,
        stream: socket.socket,
        prepared: SpawnerState,
        context: Context,
        limit: MemoryLimit,
        start: control.WorkerStart,
    ) -> None:
        self._stream = stream
        self._prepared = prepared
        self._context = context
        self._limit = limit
        self._start = start
        self._gates: dict[int, Gate] = {}
        self._cards: dict[int, Card] = {}  # as long as the process: so do their contexts
        self._lanes: list[tuple[threading.Thread, LaneActivity]] = []
        self._callers = Callers(lambda meta: control.send(stream, meta))
        self._batches = _batches(start, stream)
        self._loads = Loads(lambda meta: control.send(stream, meta))
        self._loading = LoadingTime(self._loaded)
        for loader in (context.warm, context.resources, context.contents):
            loader.loading = self._loading
        context.resources.keeps_loaded = start.warm
        context.quota.add_model_cache(context.resources.evict)

    def serve(self) -> None:
        """Serve gpud's packets until it closes the socket."""
        while (received := _receive(self._stream, self._gates)) is not None:
            meta, descriptor = received
            if (index := meta.get("batch")) is not None:
                lane = None if descriptor is None else socket.socket(fileno=descriptor)
                self._batches[index].connected(lane)
            elif descriptor is not None:
                self._open_lane(socket.socket(fileno=descriptor), meta["lane"])
            elif (cap_s := meta.get("cap_s")) is not None:
                _end_in(cap_s)
            elif (turn := meta.get("turn")) is not None:
                self._gate(turn[0]).granted(*turn[1:])
            elif (due := meta.get("due")) is not None:
                self._gate(due[0]).due(due[1])
            elif (loads := meta.get("loads")) is not None:
                self._loads.answered(*loads)
            elif (lease := meta.get("leave")) is not None:
                self._callers.leave(lease)
            elif (load := meta.get("load")) is not None:
                self._load(**load)
            elif (release := meta.get("release")) is not None:
                self._release(release["cap_s"])
            elif (start := meta.get("start")) is not None:
                self._begin(control.WorkerStart(**start))

    def _gate(self, device: int) -> Gate:
        if device not in self._gates:
            self._gates[device] = Gate(device, lambda meta: control.send(self._stream, meta))
        return self._gates[device]

    def _card(self, device: int) -> Card:
        if device not in self._cards:
            self._cards[device] = Card(
                self._context.options,
                self._start.context_bytes.get(str(device), 0),
                lambda reason: control.send(self._stream, {"fault": [device, reason]}),
            )
        return self._cards[device]

    def _open_lane(self, stream: socket.socket, lane: Meta) -> None:
        control.send(self._stream, {"lane_taken": {}})
        index, lease = lane["device"], lane.get("lease", "")
        context = dataclasses.replace(
            self._context,
            kind=lane["kind"],
            device=self._start.devices.get(str(index), ""),
            gate=self._gate(index),
            loads=self._loads,
            card=self._card(index),
            batches=self._batches.get(index),
            caller=self._callers.enter(lease, index, stream) if lease else None,
        )
        carried = partial(_carrier, self._prepared, stream, bytes.fromhex(lane["key"]))
        ended = partial(_end_lane, self._stream, lane["number"], self._callers, context.caller)
        self._lanes = [lane for lane in self._lanes if lane[0].is_alive()]
        activity = LaneActivity()
        registry = self._prepared.registry
        if thread := _start_lane(ended, stream, registry, context, carried, activity):
            self._lanes.append((thread, activity))

    def _load(self, device: int, kind: str, used: list[list[Any]]) -> None:
        """Load for a coming lease, in a thread whose priority gpud lowers; `_release` awaits it."""
        context = dataclasses.replace(
            self._context,
            kind=kind,
            device=self._start.devices.get(str(device), ""),
            card=self._card(device),
        )
        activity = LaneActivity()
        activity.calling = True

        def load() -> None:
            with contextlib.suppress(Exception):  # what it has loaded until then stays
                loading_ahead.load(self._prepared.registry, context, [tuple(u) for u in used])
            activity.calling = False

        thread = threading.Thread(target=load, name="load", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # out of memory: it loads nothing
            return
        self._lanes.append((thread, activity))
        control.send(self._stream, {"loading": {}})

    def _release(self, cap_s: float) -> None:
        _end_in(cap_s)
        await_lanes(self._lanes, partial(control.send, self._stream, {"busy": {}}))
        self._lanes.clear()
        self._gates.clear()
        for batches in self._batches.values():
            batches.close()
        self._context.quota.evict_caches()
        self._context.contents.keep_only(self._context.resources.unused())
        gc.collect()
        libc.malloc_trim(0)  # so that free memory is the kernel's, and zero when it comes back
        released: dict[str, object] = {"memory_bytes": self._context.quota.used_bytes}
        if self._context.used is not None:
            released["used"] = self._context.used.loaded(self._context.resources)
        control.send(self._stream, {"released": released})

    def _begin(self, start: control.WorkerStart) -> None:
        """Serve the next lease of the same tenant. Raises ValueError for another tenant's."""
        if start.tenant != self._start.tenant:
            raise ValueError("a worker serves leases of one tenant only")
        _end_in(start.cap_s)
        self._start = start
        self._batches = _batches(start, self._stream)
        self._loading.restart()
        quota = self._context.quota
        quota.limit_bytes = start.memory_bytes
        if quota.used_bytes > start.memory_bytes:
            self._context.resources.evict()
        self._limit.set(start)

    def _loaded(self, seconds: float, size: int) -> None:
        with contextlib.suppress(OSError):  # gpud has gone; this process ends too
            control.send(self._stream, {"loaded": round(seconds, 6), "bytes": size})


def await_lanes(
    lanes: Iterable[tuple[threading.Thread, LaneActivity]], report: Callable[[], None]
) -> None:
    """Wait until every lane has ended, as gpud has cut them; report a call that still runs, once.

    A lane without a call ends as soon as the machine runs its thread, however late that is.
    """
    is_reported = False
    for thread, activity in lanes:
        thread.join(_LOOK_S)
        while thread.is_alive():
            if activity.calling and not is_reported:
                report()
                is_reported = True
            thread.join(_LOOK_S)


def _receive(stream: socket.socket, gates: Mapping[int, Gate]) -> tuple[Meta, int | None] | None:
    """The next packet; meanwhile idle tokens are returned in time."""
    while True:
        looks_s = [look_s for gate in gates.values() if (look_s := gate.look()) is not None]
        if not looks_s or readable((stream,), min(looks_s)):
            return control.receive(stream)


def _batches(start: control.WorkerStart, stream: socket.socket) -> dict[int, BatchLanes]:
    indices = map(int, start.devices) if start.joins else ()
    return {index: BatchLanes(partial(control.send, stream, {"join": index})) for index in indices}


def _end_lane(stream: socket.socket, number: int, callers: Callers, caller: Caller | None) -> None:
    if caller is not None:
        callers.exit(caller)
    with contextlib.suppress(OSError):  # gpud has gone; this process ends too
        control.send(stream, {"lane_ended": number})


def _end_at_alarm() -> None:
    """End the process at SIGALRM by a C handler: the first process of a namespace ignores unhandled
    signals, and a Python handler waits for the interpreter."""
    end = ctypes.cast(libc["_exit"], ctypes.c_void_p)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    libc.signal(signal.SIGALRM, end)


def _end_in(cap_s: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, max(0.001, cap_s))


def _start_lane(
    ended: Callable[[], None],
    lane: socket.socket,
    registry: Registry,
    context: Context,
    carried: Callable[[], Stream],
    activity: LaneActivity | None = None,
) -> threading.Thread | None:
    """Serve a lane in a thread of its own; None when memory for one is missing."""
    lane.setblocking(True)  # gpud's event loop left it non-blocking

    def serve() -> None:
        try:
            with (
                lane,
                contextlib.suppress(OSError, WireError, Refused),
            ):  # a failed proof ends the lane
                carrier, runner = carried(), Runner(registry, context)
                shared = shared_lane(lane)
                LaneServer(carrier, runner, context.quota, shared, activity).serve()
        finally:  # gpud counts lanes
            ended()

    thread = threading.Thread(target=serve, name="lane", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # out of memory: the other lanes continue
        lane.close()
        ended()
        return None
    return thread


def _carrier(prepared: SpawnerState, lane: socket.socket, key: bytes) -> Stream:
    """A lane's stream. It blocks for the handshake of TLS, so the lane's own thread calls it."""
    if not key:
        return lane
    assert prepared.tls is not None, "gpud gives keys to hosts with a certificate only"
    lane.settimeout(prepared.handshake_s)
    machine = secure(lane, prepared.tls, server=True)
    carrier = TlsStream(lane, machine)
    channel = Channel(carrier, HANDSHAKE)
    received = channel.receive()
    if received is None or channel.buffered:
        raise WireError("the client did not wait for the second proof")
    channel.send({"welcome": confirm_binding(key, machine.binding, received[1])})
    lane.settimeout(None)
    return carrier


class MemoryLimit:
    """The kernel's limit beyond the quota: the private writable memory of this process."""

    def __init__(self) -> None:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        lines = status.splitlines()
        data_kib = next(int(line.split()[1]) for line in lines if line[:7] == "VmData:")
        self._own_bytes = data_kib << 10  #: before it loads anything for a lease

    def set(self, start: control.WorkerStart) -> None:
        """Set the limit for a lease; it can be raised again if the worker may serve another."""
        limit = self._own_bytes + start.host_bytes + _OVERHEAD_BYTES
        if start.variables.get("CUDA_VISIBLE_DEVICES"):
            limit += _CONTEXT_BYTES
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard if start.warm else limit))

    def seal(self) -> None:
        """Make the present limit final."""
        limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

"""A worker: the process of one lease, with one thread per lane; ended by SIGKILL."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import resource
import select
import signal
import socket
import ssl
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from remote_gpu.client.transport.tls import TlsStream, secure
from remote_gpu.wire.channel import Channel, Stream
from remote_gpu.wire.errors import Refused, WireError
from remote_gpu.wire.frames import HANDSHAKE, Meta
from remote_gpu.wire.proof import confirm_binding
from remote_gpu.worker import control
from remote_gpu.worker.isolation.apply import Sandbox, isolate_worker
from remote_gpu.worker.isolation.places import Host
from remote_gpu.worker.isolation.policy import Policy
from remote_gpu.worker.isolation.system import libc
from remote_gpu.worker.joining import BatchLanes, Caller, Callers
from remote_gpu.worker.lane import LaneServer, Runner
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.memory.segments import shared_lane
from remote_gpu.worker.operation import Context
from remote_gpu.worker.registry import Registry
from remote_gpu.worker.store.contents import Contents
from remote_gpu.worker.turns import Gate

#: Beyond the quota: interpreter, threads, work areas of libraries.
_OVERHEAD_BYTES = 256 << 20
_CONTEXT_BYTES = 2 << 30  #: the host's side of CUDA contexts: driver, pinned pages, code
_STACK_BYTES = 1 << 20  #: per lane


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSettings:
    """The settings of lanes after their handover from gpud."""

    handshake_s: float  #: for the TLS handshake and the second proof
    context: ssl.SSLContext | None  #: of the host's certificate; None = no lane is in TLS


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationSettings:
    """The isolation of a worker, and the files of its host."""

    policy: Policy
    host: Host
    kept: Path  #: the host's folder of contents


def run_worker(
    parent: int,
    stream: socket.socket,
    registry: Registry,
    context: Context,
    isolation: IsolationSettings,
    lanes: LaneSettings,
) -> NoReturn:
    """Run a worker after its fork; never returns."""
    code = 1
    try:
        control.die_with_parent(parent)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _end_at_alarm()
        threading.stack_size(_STACK_BYTES)
        _serve(stream, registry, context, isolation, lanes)
        code = 0
    except BaseException:
        traceback.print_exc(file=sys.stderr)
        sys.stderr.flush()
    os._exit(code)  # not through the interpreter's exit: its handlers belong to the spawner


def _serve(
    stream: socket.socket,
    registry: Registry,
    context: Context,
    isolation: IsolationSettings,
    lanes: LaneSettings,
) -> None:
    received = control.receive(stream)
    if received is None:
        return
    start = control.Start(**received[0]["start"])
    _end_in(start.cap_s)
    _limit_memory(start)
    os.environ.update({k: v for k, v in start.variables.items() if k in control.VARIABLES})
    contents = Contents.of_tenant(isolation.kept, start.tenant)
    sandbox = Sandbox(**start.sandbox)
    isolate_worker(isolation.policy, isolation.host, sandbox, contents.folder)
    context = dataclasses.replace(
        context,
        tenant=start.tenant,
        quota=Quota(start.memory_bytes),
        contents=contents,
        compiled=Path(sandbox.compiled) if sandbox.compiled else contents.compiled,
        lifeline=stream.fileno(),
        batch_items_max=start.batch_items_max,
    )
    if start.batch_wait_s is not None:
        context = dataclasses.replace(context, batch_wait_s=start.batch_wait_s)
    gates: dict[int, Gate] = {}
    callers, batches = Callers(lambda meta: control.send(stream, meta)), _batches(start, stream)
    while (received := _receive(stream, gates)) is not None:
        meta, descriptor = received
        if (index := meta.get("batch")) is not None:
            lane = None if descriptor is None else socket.socket(fileno=descriptor)
            batches[index].connected(lane)
        elif descriptor is not None:
            lane = socket.socket(fileno=descriptor)
            control.send(stream, {"lane_taken": {}})
            described = meta["lane"]
            index, lease = described["device"], described.get("lease", "")
            of_device = dataclasses.replace(
                context,
                kind=described["kind"],
                device=start.devices.get(str(index), ""),
                gate=_gate(gates, index, stream),
                batches=batches.get(index),
                caller=callers.enter(lease, index, lane) if lease else None,
            )
            ended = _ended(stream, described["number"], callers, of_device.caller)
            carrier = _carrier(lanes, lane, bytes.fromhex(described["key"]))
            _start_lane(ended, lane, registry, of_device, carrier)
        elif (lease := meta.get("leave")) is not None:
            callers.leave(lease)
        elif (cap_s := meta.get("cap_s")) is not None:
            _end_in(cap_s)
        elif (turn := meta.get("turn")) is not None:
            _gate(gates, turn[0], stream).granted(*turn[1:])
        elif (due := meta.get("due")) is not None:
            _gate(gates, due[0], stream).due(due[1])


def _receive(stream: socket.socket, gates: Mapping[int, Gate]) -> tuple[Meta, int | None] | None:
    """The next packet; meanwhile idle tokens are returned in time."""
    while True:
        looks_s = [look_s for gate in gates.values() if (look_s := gate.look()) is not None]
        if not looks_s or select.select([stream], [], [], min(looks_s))[0]:
            return control.receive(stream)


def _gate(gates: dict[int, Gate], device: int, stream: socket.socket) -> Gate:
    if device not in gates:
        gates[device] = Gate(device, lambda meta: control.send(stream, meta))
    return gates[device]


def _batches(start: control.Start, stream: socket.socket) -> dict[int, BatchLanes]:
    """The connections to the batch process of each device of a lease that joins."""
    indices = map(int, start.devices) if start.joins else ()
    return {index: BatchLanes(partial(control.send, stream, {"join": index})) for index in indices}


def _ended(
    stream: socket.socket, number: int, callers: Callers, caller: Caller | None
) -> Callable[[], None]:
    """The function that reports the end of a lane."""

    def ended() -> None:
        if caller is not None:
            callers.exit(caller)
        with contextlib.suppress(OSError):  # gpud has gone; this process ends too
            control.send(stream, {"lane_ended": number})

    return ended


def _end_at_alarm() -> None:
    """End the process at SIGALRM by a C handler: the first process of a namespace ignores unhandled
    signals, and a Python handler waits for the interpreter."""
    end = ctypes.cast(libc["_exit"], ctypes.c_void_p)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    libc.signal(signal.SIGALRM, end)


def _end_in(cap_s: float) -> None:
    """End the process after this time, even without gpud."""
    signal.setitimer(signal.ITIMER_REAL, max(0.001, cap_s))


def _start_lane(
    ended: Callable[[], None],
    lane: socket.socket,
    registry: Registry,
    context: Context,
    carried: Callable[[], Stream],
) -> None:
    lane.setblocking(True)  # gpud's event loop left it non-blocking

    def serve() -> None:
        try:
            with (
                lane,
                contextlib.suppress(OSError, WireError, Refused),
            ):  # a failed proof ends the lane
                carrier, runner = carried(), Runner(registry, context)
                LaneServer(carrier, runner, context.quota, shared_lane(lane)).serve()
        finally:  # gpud counts lanes
            ended()

    try:
        threading.Thread(target=serve, name="lane", daemon=True).start()
    except RuntimeError:  # out of memory: the other lanes continue
        lane.close()
        ended()


def _carrier(lanes: LaneSettings, lane: socket.socket, key: bytes) -> Callable[[], Stream]:
    """The function that opens a lane's stream; it blocks, so the lane's own thread calls it."""

    def carried() -> Stream:
        if not key:
            return lane
        assert lanes.context is not None, "gpud gives keys to hosts with a certificate only"
        lane.settimeout(lanes.handshake_s)
        machine = secure(lane, lanes.context, server=True)
        carrier = TlsStream(lane, machine)
        channel = Channel(carrier, HANDSHAKE)
        received = channel.receive()
        if received is None or channel.buffered:
            raise WireError("the client did not wait for the second proof")
        channel.send({"welcome": confirm_binding(key, machine.binding, received[1])})
        lane.settimeout(None)
        return carrier

    return carried


def _limit_memory(start: control.Start) -> None:
    """Set the kernel's limit beyond the quota: the private writable memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    data_kib = next(int(line.split()[1]) for line in status.splitlines() if line[:7] == "VmData:")
    limit = (data_kib << 10) + start.memory_bytes + _OVERHEAD_BYTES
    if start.variables.get("CUDA_VISIBLE_DEVICES"):
        limit += _CONTEXT_BYTES
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

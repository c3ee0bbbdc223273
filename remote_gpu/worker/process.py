"""A worker: the process of one lease. One thread per lane; ended by SIGKILL, never asked to go."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import NoReturn

from remote_gpu.worker import control
from remote_gpu.worker.contents import Contents
from remote_gpu.worker.lane import LaneServer, Runner
from remote_gpu.worker.operation import Context, Registry
from remote_gpu.worker.quota import Quota
from remote_gpu.worker.turns import Gate

#: Above the quota, for what is not counted in it: interpreter, threads, work areas of libraries.
_OVERHEAD_BYTES = 256 << 20
_STACK_BYTES = 1 << 20  #: per lane


def run_worker(
    parent: int, stream: socket.socket, registry: Registry, context: Context, kept: Path
) -> NoReturn:
    """The life of a freshly forked worker; never returns. `kept`: the host's folder of contents."""
    code = 1
    try:
        control.die_with_parent(parent)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        threading.stack_size(_STACK_BYTES)
        _serve(stream, registry, context, kept)
        code = 0
    except BaseException:
        traceback.print_exc(file=sys.stderr)
        sys.stderr.flush()
    os._exit(code)  # not through the interpreter's exit: its handlers belong to the spawner


def _serve(stream: socket.socket, registry: Registry, context: Context, kept: Path) -> None:
    received = control.receive(stream)
    if received is None:
        return
    start = control.Start(**received[0]["start"])
    _end_in(start.cap_s)
    _limit_memory(start.memory_bytes)
    contents = Contents.of_tenant(kept, start.tenant)
    context = dataclasses.replace(
        context,
        tenant=start.tenant,
        quota=Quota(start.memory_bytes),
        contents=contents,
        compiled=contents.compiled,
    )
    gates: dict[int, Gate] = {}
    while (received := control.receive(stream)) is not None:
        meta, descriptor = received
        if descriptor is not None:
            lane = socket.socket(fileno=descriptor)
            control.send(stream, {"lane_taken": {}})
            gate = _gate(gates, meta["lane"]["device"], stream)
            of_device = dataclasses.replace(context, kind=meta["lane"]["kind"], gate=gate)
            _start_lane(stream, lane, registry, of_device)
        elif (cap_s := meta.get("cap_s")) is not None:
            _end_in(cap_s)
        elif (turn := meta.get("turn")) is not None:
            _gate(gates, turn[0], stream).granted(turn[1])
        elif (gate_open := meta.get("gate_open")) is not None:
            _gate(gates, gate_open[0], stream).set_open(gate_open[1])


def _gate(gates: dict[int, Gate], device: int, stream: socket.socket) -> Gate:
    if device not in gates:
        gates[device] = Gate(device, lambda meta: control.send(stream, meta))
    return gates[device]


def _end_in(cap_s: float) -> None:
    """Whatever becomes of gpud: SIGALRM's default is to end the process."""
    signal.setitimer(signal.ITIMER_REAL, max(0.001, cap_s))


def _start_lane(
    stream: socket.socket, lane: socket.socket, registry: Registry, context: Context
) -> None:
    lane.setblocking(True)  # gpud's event loop had it non-blocking; the flag is the socket's
    server = LaneServer(lane, Runner(registry, context), context.quota)

    def serve() -> None:
        with lane:
            server.serve()
        with contextlib.suppress(OSError):  # gpud is gone, and this process with it in a moment
            control.send(stream, {"lane_ended": {}})

    threading.Thread(target=serve, name="lane", daemon=True).start()


def _limit_memory(quota_bytes: int) -> None:
    """The kernel's own limit behind the quota: private writable memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    data_kib = next(int(line.split()[1]) for line in status.splitlines() if line[:7] == "VmData:")
    limit = (data_kib << 10) + quota_bytes + _OVERHEAD_BYTES
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

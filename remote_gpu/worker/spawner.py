"""The spawner: one process per host that has everything loaded and forks a worker in 3 ms.

It loads libraries, host models and data once, before any lease. A worker is a fork of it, so every
lease starts warm but shares no writable memory with another; data of a tenant stays in its own
worker. The spawner runs no request and stays single-threaded (the thread pools of numpy and ONNX
Runtime have one thread), so that forking is safe.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

from remote_gpu.client.transport.tls import server_context
from remote_gpu.isolation.apply import isolate_spawner
from remote_gpu.isolation.places import HostFiles
from remote_gpu.worker import control
from remote_gpu.worker.backends.choice import KINDS
from remote_gpu.worker.backends.drivers import working_kinds
from remote_gpu.worker.emulation.operation import emulate
from remote_gpu.worker.operation import Context
from remote_gpu.worker.process import SpawnerState, run_worker
from remote_gpu.worker.registry import Registry, load_registry
from remote_gpu.worker.settings import WorkerSettings

#: Seconds between two news of the indexing of one file.
_INDEXING_EVERY_S = 2.0


def main() -> None:
    """`python -m remote_gpu.worker.spawner FD PARENT SETTINGS-JSON`; started by gpud only."""
    descriptor, parent, settings = (
        int(sys.argv[1]),
        int(sys.argv[2]),
        WorkerSettings.from_json(sys.argv[3]),
    )
    control.die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # gpud handles a terminal's Ctrl-C
    if settings.cpus:
        os.sched_setaffinity(0, settings.cpus)
    stream = socket.socket(fileno=descriptor)
    tls = server_context(*settings.tls) if settings.tls else None  # workers may not read the key
    files = _files(settings)
    fork = isolate_spawner(settings.policy, files, settings.kept)
    if settings.policy.pid_namespace:  # another process: its parent waits for it
        control.die_with_parent(0)
    registry = load_registry(settings.operations)
    context = Context(
        data=settings.data,
        programs=settings.programs,
        digests=settings.digests,
        indexing=_Indexing(stream).show,
        options=settings.options,
        kernels_refused=settings.policy.kernels_refused,
        emulated=frozenset(settings.emulated),
    )
    if context.programs and settings.policy.programs_refused:
        registry.refuse("exec", settings.policy.programs_refused)
    for kind in KINDS:
        registry.prepare(dataclasses.replace(context, kind=kind))
    emulate(registry, settings.emulation, settings.emulated)
    gc.collect()
    gc.freeze()  # collections in workers do not touch loaded objects: pages stay shared
    _announce(
        stream, registry, context, {device.kind.value for device in settings.emulation.devices}
    )
    prepared = SpawnerState(
        registry=registry,
        context=context,
        policy=settings.policy,
        files=files,
        kept=settings.kept,
        handshake_s=settings.handshake_s,
        tls=tls,
    )
    _serve(stream, prepared, fork)


class _Indexing:
    """Reports the indexing of host data to gpud: its begin, its end, now and then between."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._next_s = 0.0

    def show(self, name: str, sequences: int, part: float) -> None:
        now_s = time.monotonic()
        if 0.0 < part < 1.0 and now_s < self._next_s:
            return
        self._next_s = now_s + _INDEXING_EVERY_S
        message = {"data": name, "sequences": sequences, "part": part}
        control.send(self._stream, {"indexing": message})


def _files(settings: WorkerSettings) -> HostFiles:
    pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
    return HostFiles(
        data=tuple(settings.data.values()),
        programs=tuple(Path(program.command[0]) for program in settings.programs.values()),
        pipes=(Path(pipes),) if pipes else (),
    )


def _announce(
    stream: socket.socket, registry: Registry, context: Context, emulated: Collection[str]
) -> None:
    control.send(
        stream,
        {
            "ready": {
                "operations": _offered(registry, context.kernels_refused, emulated),
                "failures": registry.failures,
                "libraries": {kind: registry.libraries(kind) for kind in KINDS},
                "resident": context.warm.keys(),
                "threads": len(list(Path("/proc/self/task").iterdir())),
            }
        },
    )


def _offered(
    registry: Registry, refused: str, emulated: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """Operations by kind of device, with `graph` where kernels run.

    An OpenCL device without a working driver has none; a CPU or NVIDIA device without one still has
    those that need no kernels. Emulated kinds have their named operations only.
    """
    offered = {kind: registry.names(kind) for kind in (*KINDS, *sorted(emulated))}
    for kind in sorted(working_kinds().difference(emulated)):
        if kind == "cpu" and refused:
            continue
        offered[kind] = tuple(sorted((*offered[kind], "graph")))
    if "opencl" not in working_kinds().union(emulated):
        del offered["opencl"]
    return {kind: names for kind, names in offered.items() if names}


def _serve(stream: socket.socket, prepared: SpawnerState, fork: Callable[[], int]) -> None:
    # only now: drivers that are tried before start programs and wait for them
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended workers are reaped by the kernel
    while (received := control.receive(stream)) is not None:
        meta, descriptor = received
        if descriptor is None:
            continue
        me = 0 if prepared.policy.pid_namespace else os.getpid()
        answer: dict[str, object] = {"number": meta["fork"]}
        try:
            pid = fork()
            if pid == 0:
                stream.close()
                worker = socket.socket(fileno=descriptor)
                run_worker(me, worker, prepared)
            pidfd = os.pidfd_open(pid)  # it may have ended by now
        except OSError as error:
            control.send(stream, {**answer, "failed": str(error)})
        else:
            control.send(stream, {**answer, "forked": pid}, pidfd)
            os.close(pidfd)
        os.close(descriptor)


if __name__ == "__main__":
    main()

"""Pinned payloads, a process that takes too much memory, and errors of ONNX Runtime on a card."""

from __future__ import annotations

import asyncio
import importlib
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.report import Figure
from corekit.ids import DeviceId, HostId, LeaseId
from gpu_scheduler.model import DeviceKind, Door, LeaseLifetime, LeaseState, Share
from gpu_scheduler.monitor.probes import probe_of
from gpu_scheduler.protocol.host import Install
from remote_gpu.client.device import Lane
from remote_gpu.host.devices.excess import MemoryExcess
from remote_gpu.host.devices.excess_table import OnExcess
from remote_gpu.host.devices.probe import HostProbe
from remote_gpu.host.leases.table import LeaseTable
from remote_gpu.wire.channel import Channel
from remote_gpu.wire.connection import DeviceInfo
from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.wire.frames import FrameLimits
from remote_gpu.worker.backends.base import Backend
from remote_gpu.worker.backends.calls import calls_of
from remote_gpu.worker.cards.card import Card
from remote_gpu.worker.lane import LaneServer, Runner
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context
from remote_gpu.worker.registry import load_registry
from tools.gpu_check.part import Answer, Part, Target

PART = Part(
    title="Payloads in pinned memory, memory beyond a share by NVML, errors of ONNX Runtime",
    order=80,
    limit_s=60,
    kinds=("cuda",),
    modules=("numpy", "msgspec", "aiohttp", "click", "rich", "cuda.bindings", "pynvml"),
)
_LEASE = LeaseId("check")
_REPEATS = 5
_READINGS_MAX = 10
#: Takes memory of the first card, prints a line, and waits for the end of its input.
_ALLOCATION = """
import sys
from cuda.bindings import driver
def call(function, *args):
    result, *values = function(*args)
    assert result == driver.CUresult.CUDA_SUCCESS, (function.__name__, result)
    return values[0] if values else None
call(driver.cuInit, 0)
context = call(driver.cuDevicePrimaryCtxRetain, call(driver.cuDeviceGet, 0))
call(driver.cuCtxSetCurrent, context)
call(driver.cuMemAlloc, int(sys.argv[1]) << 20)
print("taken", flush=True)
sys.stdin.read()
"""
#: Writes far outside of its buffer; trusted kernels have no checks.
_WILD = "__kernel void wild(__global char *x) { x[1L << 46] = 1; }"


def run(target: Target) -> Answer:
    answer = Answer()
    _payloads(answer, target)
    asyncio.run(_excess(answer, target))
    model = _model(answer)
    _lost_context(answer, model)  # the last one: this process cannot use the card afterwards
    return answer


def _payloads(answer: Answer, target: Target) -> None:
    """Copies of pinned and of ordinary memory; the input of an operation must be pinned."""
    size = (16 if target.quick else 256) << 20
    card = Card()
    context = Context(kind="cuda", card=card)
    side = size // 16 // 4
    data = np.arange(side, dtype=np.float32)
    found, pinned_bytes = _mapped(context, data)
    if not np.allclose(found, data * data):
        raise RuntimeError("the operation's result is wrong")
    if pinned_bytes < data.nbytes:
        raise RuntimeError("the payload of an operation was not in pinned memory")
    backend = calls_of(context).backend
    block = backend.host_memory(size)
    if block is None:
        answer.notes.append(f"The machine pins no {size >> 20} MiB.")
        return
    memory, ordinary = backend.allocate(Quota(), size), memoryview(bytearray(size))
    for name, copy in (
        ("pinned_h2d_gib_s", lambda: memory.write(block.view)),
        ("staged_h2d_gib_s", lambda: memory.write(ordinary)),
    ):
        answer.figures.append(_rate(name, size, backend, copy))
    memory.close()


def _mapped(
    context: Context, data: np.ndarray[tuple[int], np.dtype[np.float32]]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float32]], int]:
    """The squares of an array by the operation `map` of a lane, and its pinned memory meanwhile."""
    ours, theirs = socket.socketpair()
    server = LaneServer(theirs, Runner(load_registry(["arrays"]), context), context.quota)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    lane = Lane(ours, Channel(ours, FrameLimits()), DeviceInfo(0, "cuda", "", 0))
    result = lane.op("map", data.tobytes(), function="square", shapes=[[len(data)]])
    pinned_bytes = context.card.pinned.used_bytes
    found = np.frombuffer(result.buffers[0], np.float32)
    lane.close()
    thread.join()
    theirs.close()
    return found, pinned_bytes


def _rate(name: str, size: int, backend: Backend, copy: Callable[[], None]) -> Figure:
    best_s = float("inf")
    for _ in range(_REPEATS):
        began_s = time.perf_counter()
        copy()
        backend.finish()
        best_s = min(best_s, time.perf_counter() - began_s)
    return Figure(metric=name, value=size / best_s / 2**30, unit="GiB/s")


async def _excess(answer: Answer, target: Target) -> None:
    """The driver's figure of a process that takes more than a share ends its lease."""
    share_mib, taken_mib = (64, 300) if target.quick else (256, 2048)
    probe = HostProbe([probe_of("nvml", "check", 30.0)], 30.0)
    first = (await probe.devices())[0]
    table = LeaseTable({first.id: first.memory_mib}, 60.0)
    table.install(_install(first.id, first.index, first.model, share_mib), 0.0)
    excess = MemoryExcess(table, probe, lambda _: 0, OnExcess.END)
    other = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _ALLOCATION,
        str(taken_mib),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert other.stdout is not None, "a pipe"
        if not await other.stdout.readline():
            raise RuntimeError("the process took no memory")
        await probe.devices()
        listed = {one.pid: one.memory_used_mib for one in probe.processes()}
        used_mib = listed.get(other.pid)
        if used_mib is None:
            what = "has no figure for" if other.pid in listed else "does not list"
            answer.notes.append(f"NVML {what} this machine's processes: no lease is ended.")
            return
        readings = 1
        while not excess.steps({other.pid: _LEASE}):
            if readings == _READINGS_MAX:
                raise RuntimeError(f"{used_mib} MiB of a process end no lease of {share_mib}")
            readings += 1
            await probe.devices()
    finally:
        other.kill()
        await other.communicate()
        await probe.close()
    answer.figures += [
        Figure(metric="excess_used_mib", value=used_mib, unit="MiB"),
        Figure(metric="excess_readings", value=readings, unit="readings"),
    ]


def _install(device: DeviceId, index: int, model: str, memory_mib: int) -> Install:
    share = Share(
        host=HostId("check"),
        device=device,
        index=index,
        kind=DeviceKind.CUDA,
        model=model,
        memory_mib=memory_mib,
        compute_guarantee_pct=0,
        compute_limit_pct=100,
        exclusive=False,
    )
    return Install(
        lease=_LEASE,
        fence=1,
        secret="00" * 32,
        state=LeaseState.RESERVED,
        shares=(share,),
        tenant="check",
        hold=LeaseLifetime.SESSION,
        door=Door.GATEWAY,
        cap_s=None,
        connect_by_s=None,
    )


def _model(answer: Answer) -> tuple[Callable[[], object], Card] | None:
    """A run of a small model and its card, after one that had too little memory; None: this ONNX
    Runtime serves no cards."""
    try:
        models = importlib.import_module("operations.inference.model")
        models.check_cuda()
        path: Path = importlib.import_module("operations.recognition.engine").model_paths()["Cls"]
    except (ImportError, OSError, OpFailed) as error:
        answer.notes.append(f"ONNX Runtime is not looked at: {error}.")
        return None
    providers = (
        ("CUDAExecutionProvider", {"gpu_mem_limit": str(64 << 10)}),
        "CPUExecutionProvider",
    )
    try:
        models.Model(path, models.Processor(providers, Card()))
    except OpFailed as error:
        if error.code is not OpCode.ENOMEM:
            raise RuntimeError(f"a model without memory fails with {error}") from None
        answer.notes.append(f"A model without memory: {error}.")
    else:
        answer.notes.append("A model was loaded with 64 KiB of the card.")
    context = Context(kind="cuda")
    model = models.Model(path, models.processor_of(context))
    name, tensor = next(iter(model.inputs.items()))
    feed = np.zeros([side or 48 for side in tensor.shape], tensor.dtype)
    model.run({name: feed}, list(model.outputs))
    return lambda: model.run({name: feed}, list(model.outputs)), context.card


def _lost_context(answer: Answer, model: tuple[Callable[[], object], Card] | None) -> None:
    """After an invalid address the driver's error and ONNX Runtime's have the same effect."""
    card = Card(on_lost=lambda: None)
    backend = calls_of(Context(kind="cuda", card=card)).backend
    memory = backend.allocate(Quota(), 16)
    backend.build(_WILD).kernel("wild", [memory]).enqueue((1,), (1,))
    try:
        backend.finish()
    except OpFailed as error:
        answer.notes.append(f"An invalid address: {error}.")
    if not card.is_lost:
        raise RuntimeError("a kernel with an invalid address does not end its context")
    if model is None:
        return
    compute, card = model
    try:
        compute()
    except OpFailed as error:
        if not card.is_lost:
            raise RuntimeError(f"ONNX Runtime's text of a lost context: {error}") from None
        answer.notes.append(f"ONNX Runtime in a lost context: {error}.")
    else:
        raise RuntimeError("a model runs in a lost context")

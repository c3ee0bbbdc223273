"""The first device: time to open it, time to build a kernel, memory that a context holds."""

from __future__ import annotations

import time

from benchmarks.report import Figure
from remote_gpu.worker.memory.quota import Quota
from tools.gpu_check.first_device import card_used_mib, first_backend
from tools.gpu_check.part import Answer, Part, Target

PART = Part(
    title="The first device answers: times to open it and to build a kernel, memory of a context",
    order=10,
    limit_s=60,
    modules=("numpy", "msgspec"),
)
_KERNEL = "__kernel void answer(__global int *x) { x[get_global_id(0)] = 42; }"
_BYTES = b"\x2a\0\0\0"


def run(target: Target) -> Answer:
    used_mib = card_used_mib if target.kind == "cuda" else lambda: 0.0
    before_mib = used_mib()
    began_s = time.perf_counter()
    backend = first_backend(target.kind)
    opened_s = time.perf_counter()
    held_mib = used_mib() - before_mib
    memory = backend.allocate(Quota(), 4)
    backend.build(_KERNEL).kernel("answer", [memory]).enqueue((1,), (1,))
    backend.finish()
    built_s = time.perf_counter()
    result = bytes(memory.view if memory.view is not None else memory.read())
    memory.close()
    if result != _BYTES:
        raise RuntimeError(f"the kernel stored {result!r}")
    answer = Answer(notes=[f"Implementation: {backend.implementation}."])
    answer.figures = [
        Figure(metric="open_ms", value=1e3 * (opened_s - began_s), unit="ms"),
        Figure(metric="first_kernel_ms", value=1e3 * (built_s - opened_s), unit="ms"),
    ]
    if target.kind == "cuda":
        answer.figures.append(Figure(metric="context_mib", value=held_mib, unit="MiB"))
    return answer

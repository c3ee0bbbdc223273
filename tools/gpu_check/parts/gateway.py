"""Products and copies through the gateway, against the same in place and against loopback."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import numpy as np

from benchmarks.remote_gpu.card import Resident, best_s
from benchmarks.remote_gpu.host import from_elsewhere
from benchmarks.remote_gpu.transport import Floor
from operations.matrix.cublas import Cublas
from operations.matrix.product import BLOCKED, Method
from remote_gpu.client import Lane
from remote_gpu.worker.memory.quota import Quota
from tools.gpu_check.first_device import first_backend
from tools.gpu_check.part import Answer, Part, Target, bounded
from tools.gpu_check.system import session, system

PART = Part(
    title="Products and copies through the gateway, against the same in place",
    order=75,
    limit_s=90,
    modules=("numpy", "msgspec", "aiohttp", "click", "rich", "PIL", "cryptography", "pyopal"),
)


def run(target: Target) -> Answer:
    card = target.kind == "cuda"
    side = 256 if target.quick else 4096 if card else 512
    size = (8 if target.quick else 256 if card else 64) << 20
    backend = first_backend(target.kind)
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((side, side), np.float32) for _ in range(2))
    method: Method = Cublas() if card else BLOCKED
    core = min(os.sched_getaffinity(0))
    with system(target) as host, contextlib.ExitStack() as stack:
        alone = Resident(backend, method, side, a, b)
        alone_s = best_s(alone.compute)
        alone.close()
        memory = backend.allocate(Quota(), size)
        data, room = np.ones(size, np.uint8), np.empty(size, np.uint8)
        floor = Floor(stack, target.folder, core)
        limits_s = [floor.seconds(way, size, 3) for way in ("send", "receive")]
        if memory.view is None:  # else host and device share their memory
            local_s = [best_s(lambda: memory.write(data.data)), best_s(memory.read)]
            limits_s = [max(both) for both in zip(limits_s, local_s, strict=True)]
        memory.close()
        lease = session(host, target, 256 + (2 * size >> 20) + (12 * side * side >> 20))
        with Lane.open(from_elsewhere(lease)) as lane:
            left, right, product = (lane.buffer(4 * side * side) for _ in range(3))
            left.write(a)
            right.write(b)
            whole_s = best_s(
                lambda: lane.op("sgemm", left, right, out=[product], m=side, n=side, k=side)
            )
            buffer = lane.buffer(size)

            def upload() -> None:
                buffer.write(data)
                lane.sync()

            ours_s = [best_s(upload), best_s(lambda: buffer.read(out=room))]
        lease.close()
    overhead = 100 * (whole_s / alone_s - 1)
    overhead_max, ratio_min = ("<= 2", ">= 0.9") if card else (None, None)
    compared: dict[str, Any] = {"baseline": f"{method.name} in place, s", "baseline_value": alone_s}
    metric = f"gateway_sgemm_overhead_pct_{side}"
    figures = [bounded(metric, overhead, "%", overhead_max, **compared)]
    for name, took_s, limit_s in zip(("h2d", "d2h"), ours_s, limits_s, strict=True):
        ratio = limit_s / took_s
        compared = {"ratio": ratio, "baseline_value": limit_s}
        compared["baseline"] = "slower one of local copy and loopback, s"
        figures.append(bounded(f"gateway_{name}_ratio", ratio, "ratio", ratio_min, **compared))
    return Answer(figures, [f"Matrices stay on the device; copies of {size >> 20} MiB over TCP."])

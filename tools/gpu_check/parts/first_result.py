"""The first result of a cold worker, against a bare process that does the same on the device."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from benchmarks.report import ROOT
from remote_gpu.client import Graph, connect
from tools.gpu_check import bare
from tools.gpu_check.part import Answer, Part, Target, bounded
from tools.gpu_check.system import session, system

PART = Part(
    title="From a request to the first result of a cold worker, against a bare process",
    order=40,
    limit_s=60,
    modules=("numpy", "msgspec", "aiohttp", "click", "rich"),
)
_TARGET = "<= 1.5"


def run(target: Target) -> Answer:
    rounds = 1 if target.quick else 5
    command = [sys.executable, "-m", "tools.gpu_check.bare", target.kind]
    alone, leased = [], []
    with system(target, "--no-warm-workers") as host:
        for number in range(rounds + 1):  # the first one fills the caches of both
            began_s = time.perf_counter()
            subprocess.run(command, cwd=ROOT, check=True)
            alone.append(time.perf_counter() - began_s)
            began_s = time.perf_counter()
            with (
                session(host, target, 256, workload=f"cold-{number}") as lease,
                connect(lease.environment()) as device,
            ):
                graph = Graph(bare.SOURCE)
                graph.launch(bare.KERNEL, (1,), (1,), graph.output("x", 4))
                result = bytes(device.run(graph).outputs["x"])
                leased.append(time.perf_counter() - began_s)
            if result != bare.RESULT:
                raise RuntimeError(f"the kernel stored {result!r}")
    ours_s, bare_s = (statistics.median(times[1:]) for times in (leased, alone))
    ratio = ours_s / bare_s
    compared = {"ratio": ratio, "baseline": "a bare process, s", "baseline_value": bare_s}
    figure = bounded("first_result_ratio", ratio, "ratio", _TARGET, **compared)
    of_kind = "Python, ctypes and the driver alone, machine code by the driver from PTX"
    note = of_kind if target.kind == "cuda" else "Python and the backend alone"
    return Answer([figure], [f"The bare process is {note}; every time is a median of {rounds}."])

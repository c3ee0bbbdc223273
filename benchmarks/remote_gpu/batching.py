"""Results per second of concurrent functions of one tenant and workload, joined and not.

    results_N           of N functions, each with a lease and a worker of its own
    results_N_joined    of N functions whose calls are joined across leases, beside the in-process
                        batch of N items as the limit: the same library, model and core
    joined_gain_16      joined over not joined

Each function sends one item at a time and waits for its result. The model has dense layers of equal
width; it is limited by reading its weights, so a batch costs little more than one item. The device
is the first core, the functions are threads on the last one.

    python -m benchmarks.remote_gpu.batching [--json] [--seconds S]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import report
from benchmarks.processes import workspace
from benchmarks.remote_gpu.host import Host
from benchmarks.remote_gpu.resnet import write_dense
from gpu_scheduler.model import Batch
from remote_gpu.client import Session, connect

FUNCTIONS = (1, 2, 4, 8, 16)
WIDTH, LAYERS = 2048, 3  #: 50 MB
RULES = Batch(joins=True, wait_ms=2.0, size_max=16)
_MEMORY_MIB = 48
_IN_PROCESS = """
import json, os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
import numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[2], options, providers=["CPUExecutionProvider"])
rates = {}
for count in json.loads(sys.argv[3]):
    feeds = {"image": np.ones((count, int(sys.argv[4])), np.float32)}
    session.run(None, feeds)
    start_s, done = time.perf_counter(), 0
    while (used_s := time.perf_counter() - start_s) < float(sys.argv[5]):
        session.run(None, feeds)
        done += count
    rates[count] = done / used_s
print(json.dumps(rates))
"""


def in_process(core: int, model: Path, seconds: float) -> dict[int, float]:
    """Items per second of batches of each size, in a process of its own on that core."""
    arguments = [str(core), str(model), json.dumps(FUNCTIONS), str(WIDTH), str(seconds)]
    command = [sys.executable, "-c", _IN_PROCESS, *arguments]
    output = subprocess.run(command, check=True, capture_output=True).stdout
    return {int(count): rate for count, rate in json.loads(output).items()}


class Functions:
    """Threads with a lease each, which call the model until they are stopped."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self._go, self._stop = threading.Event(), threading.Event()
        self._ready = threading.Barrier(len(sessions) + 1)
        self._done = [0] * len(sessions)
        self._threads = [
            threading.Thread(target=self._call, args=(number, session))
            for number, session in enumerate(sessions)
        ]

    def _call(self, number: int, session: Session) -> None:
        item, result = bytes(4 * WIDTH), bytearray(4 * WIDTH)
        described = [{"name": "image", "shape": [1, WIDTH]}]
        with connect(session.environment()) as device:
            for loop in (self._go, self._stop):
                while not loop.is_set():
                    device.op(
                        "onnx",
                        item,
                        out=[result],
                        model="data:dense",
                        inputs=described,
                        batch=True,
                    )
                    self._done[number] += 1
                    if self._done[number] == 1:
                        self._ready.wait()

    def results_per_s(self, seconds: float) -> float:
        """Their rate together, once all of them have had a result."""
        for thread in self._threads:
            thread.start()
        self._ready.wait()
        self._go.set()
        before, start_s = sum(self._done), time.perf_counter()
        time.sleep(seconds)
        done, used_s = sum(self._done) - before, time.perf_counter() - start_s
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return done / used_s


def measured(host: Host, count: int, seconds: float, *, joined: bool) -> float:
    """Results per second of `count` functions."""
    rules = {"workload": "dense", "batch": RULES} if joined else {}
    sessions = [host.session(100 // count, _MEMORY_MIB, **rules) for _ in range(count)]
    try:
        return Functions(sessions).results_per_s(seconds)
    finally:
        for session in sessions:
            session.give_back()
            session.close()


def figures(host: Host, limits: dict[int, float], seconds: float) -> list[report.Figure]:
    found: list[report.Figure] = []
    apart = joined = 0.0
    for count in FUNCTIONS:
        apart = measured(host, count, seconds, joined=False)
        joined = measured(host, count, seconds, joined=True)
        found.append(report.Figure(f"results_{count}", apart, "1/s"))
        found.append(
            report.compared(
                f"results_{count}_joined",
                joined,
                "1/s",
                f"in-process batch of {count}, 1/s",
                limits[count],
            )
        )
    gain = joined / apart
    return [
        report.Figure("joined_gain_16", gain, "x", target=">= 1.5"),
        *found,
    ]


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with workspace("batching") as (stack, folder):
        model = folder / "dense.onnx"
        write_dense(model, LAYERS, WIDTH, seed=51)
        limits = in_process(cores[0], model, min(1.0, options.seconds))
        host = Host(stack, folder / "host", cores[0], "--data", f"dense={model}")
        os.sched_setaffinity(0, {cores[-1]})
        found = figures(host, limits, options.seconds)
    report.show("remote_gpu.batching", found, as_json=options.json)


if __name__ == "__main__":
    main()

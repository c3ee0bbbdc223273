"""The lifetimes of workers that ADR 9 weighs: time to the next lease's first result, and memory.

    FORM_first_ms     from the request of the next lease of a workload to its first result
    FORM_idle_mib     private memory that is held for the workload while it has no lease
    FORM_second_mib   private memory of a second lease beside a first one

    process   a fresh process for each lease: interpreter, libraries, model (no lease, no network)
    empty     a worker that was forked ahead of need, with libraries and no model of the tenant's
    warm      the worker of the last lease of the workload
    shared    one process for all leases of a tenant and device: the batch process of another lease

The model has random weights, 210 MB in 50 dense layers; the host has its bytes. Everything runs on
one machine, the host on one core; times are medians of the rounds.

    python -m benchmarks.remote_gpu.lifetimes [--json] [--rounds N]
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import report
from benchmarks.processes import workspace
from benchmarks.remote_gpu.host import Host, computed
from benchmarks.remote_gpu.resnet import write_dense
from corekit.cli.progress import Bar
from gpu_scheduler.model import Batch
from remote_gpu.host.workers.worker import private_bytes

_LAYERS, _SIDE = 50, 1024
_JOB_MIB = 2048  #: the loaded model must fit half of it, where calls join
_DEVICE_MIB = 8192
_SETTLED_S = 1.0  #: for the end of a lease, and the memory that it frees
_JOINS = Batch(joins=True, wait_ms=0.0, size_max=16)
_PROCESS = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
import numpy as np
from remote_gpu.client import Local, Operations
with Local() as device, Operations(device) as operations:
    model = operations.resource("model", sys.argv[2])
    item = np.ones((1, int(sys.argv[3])), np.float32)
    described = [{"name": "image", "shape": list(item.shape)}]
    operations.run("onnx", item, model=model, inputs=described)
    print("done", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def in_process(core: int, model: Path) -> Iterator[int]:
    """A process of its own that has computed one item; its pid."""
    command = [sys.executable, "-c", _PROCESS, str(core), str(model), str(_SIDE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None, "it is a pipe"
        if process.stdout.readline() != b"done\n":
            raise RuntimeError("the process did not compute")
        yield process.pid


@contextlib.contextmanager
def lease(host: Host, model: Path, batch: Batch | None = None) -> Iterator[None]:
    """A lease that has computed one item."""
    with (
        host.session(0, _JOB_MIB, workload="dense", batch=batch) as session,
        computed(session, model, _SIDE),
    ):
        yield


def timed_ms(opened: contextlib.AbstractContextManager[object]) -> float:
    """Milliseconds until it is open."""
    began_s = time.perf_counter()
    with opened:
        return 1e3 * (time.perf_counter() - began_s)


def _figures(name: str, first_ms: list[float], idle: float, second: float) -> list[report.Figure]:
    return [
        report.Figure(f"{name}_first_ms", statistics.median(first_ms), "ms"),
        report.Figure(f"{name}_idle_mib", idle, "MiB"),
        report.Figure(f"{name}_second_mib", second, "MiB"),
    ]


def of_processes(core: int, model: Path, rounds: int) -> list[report.Figure]:
    """Fresh processes."""
    first_ms = [timed_ms(in_process(core, model)) for _ in range(rounds)]
    with in_process(core, model), in_process(core, model) as second:
        return _figures("process", first_ms, 0.0, private_bytes(second) / 2**20)


def of_leases(
    name: str, core: int, model: Path, rounds: int, *options: str, batch: Batch | None = None
) -> list[report.Figure]:
    """Leases of a host; with `batch` another one of the workload stays open meanwhile."""
    with workspace("lifetimes") as (stack, folder):
        limits = ("--memory-mib", str(_DEVICE_MIB), "--operation", "onnx")
        host = Host(stack, folder, core, *limits, *options)
        time.sleep(_SETTLED_S)
        empty_mib = host.private_mib()
        with lease(host, model, batch):  # the bytes reach the host
            pass
        time.sleep(_SETTLED_S)
        idle_mib = host.private_mib() - empty_mib
        with contextlib.ExitStack() as beside:
            if batch is not None:
                beside.enter_context(lease(host, model, batch))
            first_ms = []
            for _ in range(rounds):
                first_ms.append(timed_ms(lease(host, model, batch)))
                time.sleep(_SETTLED_S)
        with lease(host, model, batch):
            one_mib = host.private_mib()
            with lease(host, model, batch):
                second_mib = host.private_mib() - one_mib
        return _figures(name, first_ms, idle_mib, second_mib)


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    core, rounds = min(os.sched_getaffinity(0)), options.rounds
    found: list[report.Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model.onnx")
        write_dense(model, _LAYERS, _SIDE, 1)
        forms: list[Callable[[], list[report.Figure]]] = [
            lambda: of_processes(core, model, rounds),
            lambda: of_leases("empty", core, model, rounds, "--no-warm-workers"),
            lambda: of_leases("warm", core, model, rounds),
            lambda: of_leases("shared", core, model, rounds, batch=_JOINS),
        ]
        bar = Bar(len(forms), quiet=options.json)
        for number, measure in enumerate(forms, 1):
            found += measure()
            bar.draw(number, found[-1].metric)
        bar.clear()
    report.show("remote_gpu.lifetimes", found, as_json=options.json)


if __name__ == "__main__":
    main()

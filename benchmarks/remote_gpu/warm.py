"""The time to the first result of a job whose workload is warm, against that of its first job.

    warm_speedup       seconds of the first job of a workload / of the second, which gets its worker
    warm_speedup_kept  of a job in a new worker on a host that has the bytes of the model / as above
    evict_extra_ms     a grant that evicts a warm worker with the model / one that evicts none

A job runs from its request to the scheduler to its first result: grant, session, lane, model and
one item. The model has random weights, 210 MB in 50 dense layers: its computing takes milliseconds.
Every round has another model and other workloads. A grant runs from its request to an open session;
it needs the memory of the whole device. Host, scheduler and client share one machine; figures are
medians of the rounds.

    python -m benchmarks.remote_gpu.warm [--json] [--rounds N]
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

from benchmarks import report
from benchmarks.processes import workspace
from benchmarks.remote_gpu.host import Host, computed
from benchmarks.remote_gpu.resnet import write_dense

_LAYERS, _SIDE = 50, 1024
_JOB_MIB = 1024  #: a model is held as sent, and as loaded up to three times
_DEVICE_MIB = 3000
_SPEEDUP_MIN = 5.0
_EXTRA_MS_MAX = 100.0
_SETTLED_S = 0.5  #: for the report of a warm worker, which the next grant then evicts


def job_s(host: Host, model: Path, workload: str) -> float:
    """Seconds from the request of a job to its first result."""
    began_s = time.perf_counter()
    with (
        host.session(0, _JOB_MIB, workload=workload) as session,
        computed(session, model, _SIDE),
    ):
        return time.perf_counter() - began_s


def grant_s(host: Host) -> float:
    """Seconds from a request for the whole device to an open session."""
    began_s = time.perf_counter()
    with host.session(0, _DEVICE_MIB):
        return time.perf_counter() - began_s


def measure(host: Host, folder: Path, rounds: int) -> list[report.Figure]:
    """All figures."""
    first: list[float] = []
    warm: list[float] = []
    kept: list[float] = []
    evicting: list[float] = []
    plain: list[float] = []
    model = folder / "model.onnx"
    for number in range(rounds):
        write_dense(model, _LAYERS, _SIDE, number)
        first.append(job_s(host, model, f"first-{number}"))
        warm.append(job_s(host, model, f"first-{number}"))
        time.sleep(_SETTLED_S)
        evicting.append(grant_s(host))
        time.sleep(_SETTLED_S)
        plain.append(grant_s(host))
        kept.append(job_s(host, model, f"other-{number}"))
        time.sleep(_SETTLED_S)
        grant_s(host)  # evicts the worker of that job
    median = statistics.median
    speedup, extra_ms = median(first) / median(warm), 1e3 * (median(evicting) - median(plain))
    return [
        report.Figure(
            "warm_speedup",
            speedup,
            "x",
            "first job, s",
            median(first),
            target=f">= {_SPEEDUP_MIN:g}",
        ),
        report.Figure(
            "warm_speedup_kept",
            median(kept) / median(warm),
            "x",
            "new worker, model kept by the host, s",
            median(kept),
        ),
        report.Figure(
            "evict_extra_ms",
            extra_ms,
            "ms",
            "grant that evicts nothing, ms",
            1e3 * median(plain),
            target=f"<= {_EXTRA_MS_MAX:g}",
        ),
    ]


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    core = min(os.sched_getaffinity(0))
    with workspace("warm") as (stack, folder):
        host = Host(stack, folder, core, "--memory-mib", str(_DEVICE_MIB), "--operation", "onnx")
        figures = measure(host, folder, options.rounds)
        report.show("remote_gpu.warm", figures, as_json=options.json)


if __name__ == "__main__":
    main()

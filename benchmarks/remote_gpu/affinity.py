"""Graph runs that name no device, on a lease with two devices.

    runs_first     per second, of two threads on the first device
    runs_chosen    the same with the device of each run chosen by affinity
    gain           chosen / first; limit: 2
    runs_beside    per second, of one thread, chosen, while another lease computes on one device
    gain_beside    beside / the same thread on that device; limit: 2, turns there are shared

The devices are emulated: a run takes 50 ms of one, and no processor.

    python -m benchmarks.remote_gpu.affinity [--json] [--seconds S]
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from benchmarks import report
from benchmarks.processes import workspace
from benchmarks.remote_gpu.host import Host
from corekit.cli.progress import Bar
from gpu_scheduler.model import DeviceKind
from remote_gpu.client import Device, Devices, Graph, connect

RUN_MS = 50
GAIN_MIN = 1.9
_DEVICES = f"""
devices:
- kind: vpu
  model: of the benchmark
  count: 2
  memory_mib: 512
  operations:
    noop: {{warm_ms: {RUN_MS}, cold_ms: 1}}
"""


def rate(device: Device, threads: int, seconds: float) -> float:
    """Graph runs per second of as many threads."""
    graph = Graph()
    graph.op("noop", graph.input("x", 4), out=[graph.output("y", 4)])
    device.run(graph, x=bytes(4))
    until_s = time.monotonic() + seconds

    def work(_: int) -> int:
        count = 0
        while time.monotonic() < until_s:
            device.run(graph, x=bytes(4))
            count += 1
        return count

    began_s = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(work, range(threads))) / (time.monotonic() - began_s)


@contextlib.contextmanager
def busy(device: Device) -> Iterator[None]:
    """Another lease's calls, one after another."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            device.op("noop", b"x")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def figures(seconds: float, done: Callable[[str], None]) -> list[report.Figure]:
    """`done` is called after each of four runs."""
    with workspace("affinity") as (stack, folder):
        (folder / "devices.yaml").write_text(_DEVICES)
        options = ("--operation", "noop", "--emulate", str(folder / "devices.yaml"))
        host = Host(stack, folder / "system", 0, *options)
        kinds = (DeviceKind.VPU,)
        own = host.session(50, count=2, kinds=kinds)
        devices = stack.enter_context(connect(own.environment()))
        found: dict[str, float] = {}

        def measure(name: str, device: Device, threads: int) -> None:
            found[name] = rate(device, threads, seconds)
            done(f"runs_{name}")

        measure("first", devices[0], 2)
        measure("chosen", devices, 2)
        other = host.session(50, kinds=kinds)
        calls: Devices = stack.enter_context(connect(other.environment()))
        there = devices.infos.index(calls.info)
        with busy(calls):
            measure("with_it", devices[there], 1)
            measure("beside", devices, 1)
    return [
        report.Figure("runs_first", found["first"], "1/s"),
        report.Figure("runs_chosen", found["chosen"], "1/s"),
        _gain("gain", found["chosen"] / found["first"]),
        report.Figure("runs_beside", found["beside"], "1/s"),
        _gain("gain_beside", found["beside"] / found["with_it"]),
    ]


def _gain(metric: str, gain: float) -> report.Figure:
    return report.Figure(metric, gain, "x", target=f">= {GAIN_MIN:g}")


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run")
    options = parser.parse_args()
    bar, done = Bar(4, quiet=options.json), itertools.count(1)
    found = figures(options.seconds, lambda name: bar.draw(next(done), name))
    bar.clear()
    report.show("affinity", found, as_json=options.json)


if __name__ == "__main__":
    main()

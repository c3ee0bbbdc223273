"""A call of an endpoint over HTTP, beside the operation that it makes on its device.

    endpoint_ratio     median of a warm call / of its operation, as the function times that itself
    endpoint_own_ms    median of a call without its operation
    endpoint_calls     calls a second of eight callers, one function at a time

The operation draws the edges of an image with two kernels on a CPU of this machine, over the
function's lane to its device, which `load` opens once. Console, host, scheduler and callers share
the machine.

    python -m benchmarks.endpoint [--json] [--calls N] [--side PIXELS]
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from benchmarks.report import ROOT, Figure, arguments, show
from benchmarks.system import System, local_system

NAME = "edges"
CALLERS = 8
_RATIO_MAX, _CALLS_PER_S_MIN = 2.0, 50.0
DEFINITION = f"""
functions:
  aws:
  - lambda: {{name: {NAME}, handler: called.work, memory: 512, timeout: 1200,
             output: [{{path: {NAME}-out}}]}}
    job: {{input: [{{path: {NAME}-in}}]}}
    gpu: {{memory: 256, kinds: [cpu]}}
    execution: host
    endpoint: {{idle_s: 120}}
"""
#: Follows the example's own code. The answer is the operation's own seconds.
CALLED = """
import time
import orchgpu

@orchgpu.function(input="in/a", load=gpu.connect)
def work(work, device):
    width, height, pixels = read_pgm(work.input.read_bytes())
    graph = edge_graph(width, height)
    began_s = time.perf_counter()
    found = device.run(graph, image=pixels)
    ran_s = time.perf_counter() - began_s
    (work.output_folder / "seconds.txt").write_text(f"{ran_s} {len(found['edges'])}")
"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--side", type=int, default=1024, help="of the image, in pixels")
    options = parser.parse_args()
    with local_system() as system:
        _deploy(system)
        figures = asyncio.run(_measured(system, options.calls, options.side))
    show("endpoint", figures, as_json=options.json)


def _deploy(system: System) -> None:
    folder = system.home / "called"
    folder.mkdir()
    edges = ROOT / "fdl" / "examples" / "edge-detection" / "edges.py"
    (folder / "called.py").write_text(edges.read_text() + CALLED)
    (folder / "fdl.yaml").write_text(DEFINITION)
    system.orchgpu("deploy", str(folder / "fdl.yaml"))


async def _measured(system: System, count: int, side: int) -> list[Figure]:
    console = json.loads((system.home / "system.json").read_text())["console"]
    image = b"P5\n%d %d\n255\n" % (side, side) + bytes(side * side)
    async with _caller(console, image) as call:
        while await call() is None:
            pass  # it opens
        calls, operations = [], []
        for _ in range(count):
            began_s = time.perf_counter()
            operation_s = await call()
            assert operation_s is not None, "it is open"
            calls.append(time.perf_counter() - began_s)
            operations.append(operation_s)
        began_s = time.perf_counter()
        await asyncio.gather(*(_several(call, count // CALLERS) for _ in range(CALLERS)))
        rate = count // CALLERS * CALLERS / (time.perf_counter() - began_s)
    median_s, operation_s = statistics.median(calls), statistics.median(operations)
    return [
        Figure(
            "endpoint_ratio",
            median_s / operation_s,
            "ratio",
            "operation, ms",
            operation_s * 1e3,
            target=f"<= {_RATIO_MAX:g}",
        ),
        Figure("endpoint_own_ms", (median_s - operation_s) * 1e3, "ms"),
        Figure("endpoint_calls", rate, "1/s", target=f">= {_CALLS_PER_S_MIN:g}"),
    ]


async def _several(call: _Call, count: int) -> None:
    for _ in range(count):
        assert await call() is not None, "it is open"


class _Call:
    """Makes one call: seconds of its operation, or None while the endpoint opens."""

    def __init__(self, http: aiohttp.ClientSession, url: str, image: bytes) -> None:
        self._http, self._url, self._image = http, url, image

    async def __call__(self) -> float | None:
        async with self._http.post(self._url, data=self._image) as answer:
            text = await answer.text()
            if answer.status == 503:
                return None
            if answer.status != 200:
                raise RuntimeError(f"{answer.status}: {text}")
            return float(text.split()[0])


@asynccontextmanager
async def _caller(console: str, image: bytes) -> AsyncIterator[_Call]:
    async with aiohttp.ClientSession() as http:
        yield _Call(http, f"{console.rstrip('/')}/v1/functions/{NAME}/calls?name=in.pgm", image)


if __name__ == "__main__":
    main()

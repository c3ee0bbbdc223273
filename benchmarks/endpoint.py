"""Calls of endpoints over HTTP, beside the operations that they make on their device.

    endpoint_ratio     median of a warm call / of its operation, as the function times that itself
    endpoint_own_ms    median of a call without its operation
    endpoint_calls     calls a second of eight callers, one call at a time
    batch_calls        calls a second of eight callers, side by side, of a model that joins them
    batch_operation_ms median of its operation meanwhile, as the function times that itself
    batch_joined       calls computed in one run, mean

The first function draws the edges of an image with two kernels on a CPU of this machine, over the
function's lane to its device, which `load` opens once. The second one passes an item through the
model of `remote_gpu.batching` (`gpu: {batch: …}`). Console, host, scheduler and callers share the
machine.

    python -m benchmarks.endpoint [--json] [--calls N] [--side PIXELS]
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from benchmarks.remote_gpu.batching import LAYERS, WIDTH
from benchmarks.remote_gpu.resnet import write_dense
from benchmarks.report import ROOT, Figure, arguments, show
from benchmarks.system import System, local_system

CALLERS = 8
_RATIO_MAX, _CALLS_PER_S_MIN = 2.0, 50.0
DEFINITION = """
functions:
  aws:
  - lambda: {name: edges, handler: called.work, memory: 512, timeout: 1200,
             output: [{path: edges-out}]}
    job: {input: [{path: edges-in}]}
    gpu: {memory: 256, kinds: [cpu]}
    execution: host
    endpoint: {idle_s: 120}
  - lambda: {name: dense, handler: joined.work, memory: 1024, timeout: 1200,
             output: [{path: dense-out}]}
    job: {input: [{path: dense-in}]}
    gpu: {memory: 256, kinds: [cpu], data: [dense], batch: {wait_ms: 2, size_max: 16}}
    execution: host
    endpoint: {idle_s: 120}
"""
#: Follows the first example's own code. The answer is the operation's own seconds.
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
#: The answer is the operation's own seconds, and the calls that its run joined.
JOINED = """
import time
import remote_gpu.client as gpu
import orchgpu

INPUTS = [{"name": "image", "shape": [1, WIDTH]}]

@orchgpu.function(input="in/a", load=gpu.connect)
def work(work, device):
    item, began_s = work.input.read_bytes(), time.perf_counter()
    found = device.op("onnx", item, model="data:dense", inputs=INPUTS, batch=True)
    ran_s = time.perf_counter() - began_s
    (work.output_folder / "seconds.txt").write_text(f"{ran_s} {found.values.get('joined', 1)}")
"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--side", type=int, default=1024, help="of the image, in pixels")
    options = parser.parse_args()
    with TemporaryDirectory(prefix="orchgpu-bench-") as folder:
        write_dense(Path(folder) / "dense.onnx", LAYERS, WIDTH, seed=51)
        with local_system("--data", f"dense={folder}/dense.onnx") as system:
            _deploy(system)
            figures = asyncio.run(_measured(system, options.calls, options.side))
    show("endpoint", figures, as_json=options.json)


def _deploy(system: System) -> None:
    folder = system.home / "called"
    folder.mkdir()
    edges = ROOT / "fdl" / "examples" / "edge-detection" / "edges.py"
    (folder / "called.py").write_text(edges.read_text() + CALLED)
    (folder / "joined.py").write_text(f"WIDTH = {WIDTH}\n{JOINED}")
    (folder / "fdl.yaml").write_text(DEFINITION)
    system.orchgpu("deploy", str(folder / "fdl.yaml"))


async def _measured(system: System, count: int, side: int) -> list[Figure]:
    console = json.loads((system.home / "system.json").read_text())["console"]
    image = b"P5\n%d %d\n255\n" % (side, side) + bytes(side * side)
    async with aiohttp.ClientSession(console) as http:
        call = _Call(http, "edges", image)
        await call.opened()
        calls, operations = [], []
        for _ in range(count):
            began_s = time.perf_counter()
            operation_s, _ = await call()
            calls.append(time.perf_counter() - began_s)
            operations.append(operation_s)
        _, rate = await _together(call, count)
        call = _Call(http, "dense", bytes(4 * WIDTH))
        await call.opened()
        await _together(call, 10 * CALLERS)  # its processes load
        answers, joined_rate = await _together(call, 5 * count)
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
        Figure("endpoint_calls", rate, "1/s"),
        Figure("batch_calls", joined_rate, "1/s", target=f">= {_CALLS_PER_S_MIN:g}"),
        Figure("batch_operation_ms", statistics.median(s for s, _ in answers) * 1e3, "ms"),
        Figure("batch_joined", statistics.fmean(joined for _, joined in answers), "calls"),
    ]


async def _together(call: _Call, count: int) -> tuple[list[tuple[float, float]], float]:
    """Answers of eight callers, and calls a second."""
    began_s = time.perf_counter()
    each = await asyncio.gather(*(_several(call, count // CALLERS) for _ in range(CALLERS)))
    answers = [answer for one in each for answer in one]
    return answers, len(answers) / (time.perf_counter() - began_s)


async def _several(call: _Call, count: int) -> list[tuple[float, float]]:
    return [await call() for _ in range(count)]


class _Call:
    """Calls of one function."""

    def __init__(self, http: aiohttp.ClientSession, function: str, content: bytes) -> None:
        self._http, self._content = http, content
        self._url = f"/v1/functions/{function}/calls?name=in.pgm"

    async def opened(self) -> None:
        """Call until the endpoint has opened."""
        while (await self._answer())[0] == 503:
            pass

    async def __call__(self) -> tuple[float, float]:
        """The two numbers of the answer, seconds of the operation first."""
        status, text = await self._answer()
        if status != 200:
            raise RuntimeError(f"{status}: {text}")
        first, second = text.split()
        return float(first), float(second)

    async def _answer(self) -> tuple[int, str]:
        async with self._http.post(self._url, data=self._content) as answer:
            return answer.status, await answer.text()


if __name__ == "__main__":
    main()

"""A call on a leased device beside the same call in place, over its size (vAccel's figures).

    aes_mb_s_N, aes_in_place_mb_s_N    AES-128-CBC of a chunk of N bytes: leased, and in place
    sgemm_mflops_N, …_in_place_…       a product of N×N matrices: leased, and in place
    sgemm_overhead_pct_N               of the leased one
    burn_extra_us_N                    a call that computes for N ms: the time beyond that in place
    classify_overhead_pct_N            an image of N×N pixels, classified by a ResNet-50

As in `benchmarks.remote_gpu.operations`: TCP, the host on the first core, this client on the last,
both sides in turns, medians. Nothing here is a GPU, an FPGA or a crypto card.

    python -m benchmarks.remote_gpu.sizes [--json] [--rounds N]
"""

from __future__ import annotations

import io
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import report
from benchmarks.measure import median_s
from benchmarks.processes import workspace
from benchmarks.remote_gpu.alone import inputs, matrices
from benchmarks.remote_gpu.host import Host, from_elsewhere
from benchmarks.remote_gpu.operations import Alone
from benchmarks.remote_gpu.resnet import write_resnet50
from remote_gpu.client import Lane, Operations

CHUNKS = tuple(16 * 4**power for power in range(9))  #: 16 B … 1 MiB
SIDES = (16, 32, 64, 128, 256, 512, 1024, 2048)
BURNS_MS = (1, 10, 100)
IMAGES = (224, 448, 896, 1792, 3584)
_TURN_S, _COUNT_MAX = 0.1, 200
_MEMORY_MIB = 512


class Pair:
    """The same call on both sides, in turns."""

    def __init__(self, device: Lane, alone: Alone, rounds: int) -> None:
        self.device = device
        self._alone = alone
        self._rounds = rounds

    def seconds(self, lent: Callable[[], object], **asked: Any) -> tuple[float, float]:
        """Medians of the rounds' medians: leased, and in place."""
        first_s = self._alone.seconds(**asked, count=3)
        count = max(3, min(_COUNT_MAX, int(_TURN_S / max(first_s, 1e-6))))
        lent_s, in_place_s = [], []
        for _ in range(self._rounds):
            in_place_s.append(self._alone.seconds(**asked, count=count))
            lent_s.append(median_s(lent, count))
        return statistics.median(lent_s), statistics.median(in_place_s)

    def operation(
        self, name: str, args: Mapping[str, Any], sizes: Sequence[int], out_bytes: int
    ) -> tuple[float, float]:
        """An operation on seeded bytes of these lengths."""
        given, result = inputs(sizes), bytearray(out_bytes)
        out = [result] if out_bytes else []

        def lent() -> None:
            self.device.op(name, *given, out=out, **args)

        return self.seconds(lent, operation=name, args=dict(args), bytes=list(sizes))


def aes(pair: Pair) -> Iterator[report.Figure]:
    for size in CHUNKS:
        lent_s, in_place_s = pair.operation(
            "aes_cbc", {"direction": "encrypt"}, (16, 16, size), size
        )
        yield report.Figure(f"aes_mb_s_{size}", size / lent_s / 1e6, "MB/s")
        yield report.Figure(f"aes_in_place_mb_s_{size}", size / in_place_s / 1e6, "MB/s")


def sgemm(pair: Pair) -> Iterator[report.Figure]:
    for n in SIDES:
        a, b = matrices(n)
        c = bytearray(4 * n * n)
        args = {"m": n, "n": n, "k": n, "implementation": "numpy"}

        def lent(
            a: memoryview = a, b: memoryview = b, c: bytearray = c, args: Mapping[str, Any] = args
        ) -> None:
            pair.device.op("sgemm", a, b, out=[c], **args)

        lent_s, in_place_s = pair.seconds(lent, n=n, implementation="numpy")
        yield report.Figure(f"sgemm_mflops_{n}", 2 * n**3 / lent_s / 1e6, "MFlop/s")
        yield report.Figure(f"sgemm_in_place_mflops_{n}", 2 * n**3 / in_place_s / 1e6, "MFlop/s")
        yield report.Figure(f"sgemm_in_place_ms_{n}", in_place_s * 1e3, "ms")
        yield report.Figure(f"sgemm_overhead_pct_{n}", 100 * (lent_s / in_place_s - 1), "%")


def burn(pair: Pair) -> Iterator[report.Figure]:
    for wanted_ms in BURNS_MS:
        lent_s, in_place_s = pair.operation("burn", {"ms": wanted_ms}, (), 0)
        yield report.Figure(f"burn_extra_us_{wanted_ms}", (lent_s - in_place_s) * 1e6, "µs")


def classify(pair: Pair, folder: Path) -> Iterator[report.Figure]:
    model, image = folder / "resnet50.onnx", folder / "image.jpeg"
    write_resnet50(model)
    with Operations(pair.device) as operations:
        known = operations.resource("model", model)
        for side in IMAGES:
            image.write_bytes(_picture(side))
            data = image.read_bytes()

            def lent(data: bytes = data) -> None:
                operations.run("image_classification", data, model=known)

            lent_s, in_place_s = pair.seconds(lent, model=str(model), image=str(image))
            yield report.Figure(
                f"classify_overhead_pct_{side}",
                100 * (lent_s / in_place_s - 1),
                "%",
                "in place, ms",
                in_place_s * 1e3,
            )


def _picture(side: int) -> bytes:
    coarse = np.random.default_rng(7).integers(0, 256, (24, 24, 3), np.uint8)
    target = io.BytesIO()
    Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC).save(target, "JPEG")
    return target.getvalue()


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with workspace("sizes") as (stack, folder):
        host = Host(stack, folder / "system", cores[0])
        alone = Alone(stack, cores[0])
        os.sched_setaffinity(0, {cores[-1]})
        with (
            host.session(0, _MEMORY_MIB) as session,
            Lane.open(from_elsewhere(session)) as device,
        ):
            pair = Pair(device, alone, options.rounds)
            figures = [*aes(pair), *sgemm(pair), *burn(pair), *classify(pair, folder)]
        os.sched_setaffinity(0, cores)  # the report describes the whole machine
    report.show("remote_gpu.sizes", figures, as_json=options.json)


if __name__ == "__main__":
    main()

"""The extra time of an operation on a leased device over a call in place, on the same core.

    extra_time_ratio           the worst of sgemm by all implementations and sizes: the extra time
                               / (100 µs + all bytes at 0.75 of the C program's speed)
    sgemm_overhead_pct_N       by the tiled kernel: the extra time / the time in place
    sgemm_floor_pct_N          the same bytes there and back by the C program / the time in place:
                               the overhead of a program that does nothing else
    classify_overhead_pct      an image file (JPEG, 500×375) classified by a ResNet-50
    classify_tls_overhead_pct  the same in TLS 1.3
    warm_ratio                 the first call of a lease, which loads the model / a later one

ResNet-50 has its true topology and seeded weights: right for timing, but not trained. Lanes use TCP
although both ends are on one machine. Host and C server are on the first core we may use, this
client on the last; the same operations run in place on the first core, in turns with the lent
ones, on the same numbers. Extra times are medians over all turns, several in a round, for a core's
speed changes within seconds. Overheads are the lowest of the rounds' for sgemm, else the median.

    python -m benchmarks.remote_gpu.operations [--json] [--rounds N]
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import report
from benchmarks.measure import median_s, seconds
from benchmarks.processes import workspace
from benchmarks.remote_gpu.alone import matrices
from benchmarks.remote_gpu.host import Host, from_elsewhere, tls_options
from benchmarks.remote_gpu.resnet import write_resnet50
from benchmarks.remote_gpu.sgemm_kernels import register
from benchmarks.remote_gpu.transport import BULK_BYTES, Floor
from remote_gpu.client import Lane, Operations, OpFailed

#: Sides of the matrices, with vAccel's overhead in percent: the limit for the tiled kernel.
SIDES = {128: 16.0, 256: 8.0, 512: 4.0}
IMPLEMENTATIONS = ("numpy", "opencl-tiled", "opencl-blocked")
_TURNS = 3  #: of one round, of each side
_SPENT_S = 0.05  #: on one turn, of calls with their median
_COUNT_MIN, _COUNT_MAX = 3, 100
_IMAGES = 5  #: of one side of one round
_COLD = 3
_MEMORY_MIB = 512  #: of a lease: a model of 102 MB is held as sent and as loaded


class Alone:
    """The same operations in place, by a process on one core."""

    def __init__(self, stack: contextlib.ExitStack, core: int) -> None:
        command = [sys.executable, "-m", "benchmarks.remote_gpu.alone", str(core)]
        self._process = stack.enter_context(
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
        )
        stack.callback(self._process.kill)
        self.implementations = json.loads(self._line())

    def seconds(self, **asked: Any) -> float:
        """Median of `count` calls."""
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.write(json.dumps(asked) + "\n")
        return float(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None, "it is a pipe"
        return self._process.stdout.readline()


@dataclasses.dataclass(slots=True)
class Case:
    """One implementation of sgemm at one size, over all turns of all rounds."""

    implementation: str
    n: int
    count: int  #: of calls in one turn
    lent_s: list[float] = dataclasses.field(default_factory=list)
    in_place_s: list[float] = dataclasses.field(default_factory=list)
    floor_s: list[float] = dataclasses.field(default_factory=list)  #: of the bare exchange

    @property
    def floor_pct(self) -> float:
        """The overhead of the bare exchange; the lowest of the rounds, as of the operation."""
        pairs = zip(self.floor_s, self.in_place_s[::_TURNS], strict=True)
        return min(100 * floor / in_place for floor, in_place in pairs)

    @property
    def extra_s(self) -> float:
        pairs = zip(self.lent_s, self.in_place_s, strict=True)
        return statistics.median(lent - in_place for lent, in_place in pairs)

    @property
    def overhead_pct(self) -> float:
        pairs = zip(self.lent_s, self.in_place_s, strict=True)
        turns = [100 * (lent / in_place - 1) for lent, in_place in pairs]
        rounds = range(0, len(turns), _TURNS)
        return min(statistics.median(turns[at : at + _TURNS]) for at in rounds)

    def extra_ratio(self, speed: float) -> float:
        """The extra time / the allowed cost of the wire; `speed`: of the C program, bytes/s."""
        return self.extra_s / (100e-6 + 3 * 4 * self.n**2 / (0.75 * speed))


def measure_sgemm(device: Lane, alone: Alone, floor: Floor, rounds: int) -> list[report.Figure]:
    cases = []
    for implementation in _present(device, alone):
        for n in SIDES:
            took_s = alone.seconds(implementation=implementation, n=n, count=3)
            count = max(_COUNT_MIN, min(_COUNT_MAX, int(_SPENT_S / took_s)))
            cases.append(Case(implementation, n, count))
    speeds = []
    for _ in range(rounds):
        both_s = floor.seconds("send", BULK_BYTES, 4) + floor.seconds("receive", BULK_BYTES, 4)
        speeds.append(2 * BULK_BYTES / both_s)
        for case in cases:
            _one_round(device, alone, case)
            bytes_ = 4 * case.n**2
            case.floor_s.append(floor.exchange_s(2 * bytes_, bytes_, case.count))
    speed = statistics.median(speeds)
    return [*_extra(cases, speed, floor.name), *_overheads(cases)]


def _one_round(device: Lane, alone: Alone, case: Case) -> None:
    n = case.n
    a, b = matrices(n)
    c = bytearray(4 * n * n)

    def lent() -> None:
        device.op("sgemm", a, b, out=[c], m=n, n=n, k=n, implementation=case.implementation)

    asked = {"implementation": case.implementation, "n": n, "count": case.count}
    for _ in range(_TURNS):
        case.in_place_s.append(alone.seconds(**asked))
        case.lent_s.append(median_s(lent, case.count))


def _present(device: Lane, alone: Alone) -> Iterator[str]:
    one = np.ones(1, np.float32)
    for name in IMPLEMENTATIONS:
        try:
            device.op("sgemm", one, one, m=1, n=1, k=1, implementation=name)
        except OpFailed as error:
            _skipped(f"sgemm by {name}", error.message)
            continue
        if name in alone.implementations:
            yield name


def _extra(cases: list[Case], speed: float, baseline: str) -> Iterator[report.Figure]:
    worst = max(case.extra_ratio(speed) for case in cases)
    yield report.Figure(
        "extra_time_ratio", worst, "ratio", f"64 MiB, {baseline}, GB/s", speed / 1e9, target="<= 1"
    )
    for case in cases:
        name = f"{case.implementation.removeprefix('opencl-')}_{case.n}"
        yield report.Figure(
            f"extra_time_{name}",
            case.extra_s * 1e6,
            "µs",
            "in place, µs",
            statistics.median(case.in_place_s) * 1e6,
            ratio=case.extra_ratio(speed),
        )


def _overheads(cases: list[Case]) -> Iterator[report.Figure]:
    for case in cases:
        if case.implementation == "opencl-tiled":
            allowed = SIDES[case.n]
            yield report.Figure(
                f"sgemm_overhead_pct_{case.n}",
                case.overhead_pct,
                "%",
                "in place, ms",
                min(case.in_place_s) * 1e3,
                target=f"<= {allowed:g}",
            )
            yield report.Figure(
                f"sgemm_floor_pct_{case.n}",
                case.floor_pct,
                "%",
                "bytes there and back, µs",
                min(case.floor_s) * 1e6,
            )


class Classification:
    """One image and one model, on both sides."""

    def __init__(self, folder: Path, alone: Alone) -> None:
        self.model = folder / "resnet50.onnx"
        self.image = folder / "image.jpeg"
        self._alone = alone
        write_resnet50(self.model)
        self.image.write_bytes(_photograph())

    def overhead_pct(self, device: Lane, rounds: int) -> tuple[float, float]:
        """The median of the rounds, and the median seconds in place."""
        image, found, in_place = self.image.read_bytes(), [], []
        with Operations(device) as operations:
            model = operations.resource("model", self.model)

            def lent() -> None:
                operations.run("image_classification", image, model=model)

            for _ in range(rounds):
                asked = {"model": str(self.model), "image": str(self.image), "count": _IMAGES}
                in_place.append(self._alone.seconds(**asked))
                found.append(100 * (median_s(lent, _IMAGES) / in_place[-1] - 1))
        return statistics.median(found), statistics.median(in_place)

    def first_and_later_s(self, host: Host) -> tuple[float, float]:
        """Seconds of a lease's first call and of a later one; its host keeps the model's bytes."""
        first, later = [], []
        image = self.image.read_bytes()
        for number in range(_COLD + 1):
            with (
                host.session(0, _MEMORY_MIB) as session,
                Lane.open(from_elsewhere(session)) as device,
            ):
                operations = Operations(device)
                model = operations.resource("model", self.model)

                def call(session: Operations = operations, known: Any = model) -> None:
                    session.run("image_classification", image, model=known)

                took_s = seconds(call, 1)
                if number:  # not the first one, which sends the model
                    first.append(took_s)
                    later.append(median_s(call, _IMAGES))
        return statistics.median(first), statistics.median(later)


def _photograph() -> bytes:
    """A smooth image like a photograph; 500×375, ImageNet's usual size."""
    coarse = np.random.default_rng(7).integers(0, 256, (24, 32, 3), np.uint8)
    target = io.BytesIO()
    Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC).save(target, "JPEG")
    return target.getvalue()


def measure_classification(
    hosts: tuple[Host, Host | None], alone: Alone, folder: Path, rounds: int
) -> Iterator[report.Figure]:
    """`hosts`: one without TLS, one with."""
    host, secured = hosts
    classification = Classification(folder, alone)
    with host.session(0, _MEMORY_MIB) as session, Lane.open(from_elsewhere(session)) as device:
        yield _percent("classify_overhead_pct", 2, *classification.overhead_pct(device, rounds))
    first_s, later_s = classification.first_and_later_s(host)
    yield report.Figure(
        "warm_ratio", first_s / later_s, "ratio", "a later call, ms", later_s * 1e3, target=">= 5"
    )
    if secured is None:
        _skipped("classify_tls_overhead_pct", "openssl is not installed")
        return
    with secured.session(0, _MEMORY_MIB) as session, Lane.open(from_elsewhere(session)) as device:
        found = classification.overhead_pct(device, rounds)
        yield _percent("classify_tls_overhead_pct", 4, *found)


def _percent(metric: str, allowed: float, value: float, in_place_s: float) -> report.Figure:
    return report.Figure(
        metric, value, "%", "in place, ms", in_place_s * 1e3, target=f"<= {allowed:g}"
    )


def _skipped(what: str, why: str) -> None:
    print(f"skipped: {what}: {why}", file=sys.stderr)


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with workspace("operations") as (stack, folder):
        register(folder / "kernels", os.environ)
        host = Host(stack, folder / "plain", cores[0])
        options = tls_options(folder)
        secured = Host(stack, folder / "tls", cores[0], *options) if options else None
        floor, alone = Floor(stack, folder, cores[0]), Alone(stack, cores[0])
        os.sched_setaffinity(0, {cores[-1]})
        with host.session(guarantee_pct=0) as session, Lane.open(from_elsewhere(session)) as device:
            figures = measure_sgemm(device, alone, floor, arguments.rounds)
        figures += measure_classification((host, secured), alone, folder, arguments.rounds)
        os.sched_setaffinity(0, cores)  # the report describes the whole machine
    report.show("remote_gpu.operations", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()

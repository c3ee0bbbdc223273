"""The data plane against a C program on a bare TCP connection, in turns, on the same cores.

    empty_batch_ratio   an empty operation, p50        / a 64-byte round trip of the C program
    h2d_ratio           64 MiB into a device buffer    / 64 MiB through the C program, as speeds
    d2h_ratio           64 MiB out of a device buffer  / the same

Everything is real: ssgmd grants a lease, gpud proves the secret, a worker process holds the buffer.
Host and C server are on the first core we may use, both clients on the last. Without a compiler
the floor is the same exchange by Python's sockets, and says so.

    python -m benchmarks.remote_gpu.transport [--json] [--rounds N]
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import report
from benchmarks.remote_gpu.host import Host
from remote_gpu.client import Device, connect

BULK_BYTES = 64 << 20
PING_BYTES = 64
PINGS = 2000
BULKS = 8
_CALL = struct.Struct("=QQ")


class Floor:
    """The bare exchange: `there` bytes one way, `back` bytes the other."""

    name = "C on a bare TCP connection"

    def __init__(self, stack: contextlib.ExitStack, folder: Path, core: int) -> None:
        source, self._program = Path(__file__).parent / "echo.c", folder / "echo"
        compiler = shutil.which("cc") or shutil.which("gcc")
        self._python = compiler is None
        if compiler is None:
            self.name = "Python on a bare TCP connection (no C compiler here)"
            command = [sys.executable, str(Path(__file__).parent / "echo.py")]
        else:
            subprocess.run([compiler, "-O2", "-o", str(self._program), str(source)], check=True)
            command = [str(self._program), "serve"]
        server = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(server.terminate)
        os.sched_setaffinity(server.pid, {core})
        assert server.stdout is not None
        self._port = int(server.stdout.readline())

    def seconds(self, kind: str, size: int, count: int) -> float:
        """Median of `count` exchanges: `ping`, `send` or `receive` of `size` bytes."""
        if self._python:
            return self._by_python(kind, size, count)
        command = [str(self._program), kind, str(self._port), str(size), str(count)]
        done = subprocess.run(command, capture_output=True, check=True, text=True)
        return float(done.stdout)

    def _by_python(self, kind: str, size: int, count: int) -> float:
        there, back = (size if kind != "receive" else 1), (size if kind != "send" else 1)
        memory = memoryview(bytearray(max(there, back)))
        with socket.create_connection(("127.0.0.1", self._port)) as stream:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def exchange() -> None:
                sent = stream.sendmsg([_CALL.pack(there, back), memory[:there]]) - _CALL.size
                stream.sendall(memory[sent:there])
                done = 0
                while done < back:
                    done += stream.recv_into(memory[done:back])

            return median_s(exchange, count)


def median_s(call: Callable[[], object], count: int) -> float:
    """Median seconds of `count` calls, after a few to warm up."""
    for _ in range(min(3, count)):
        call()
    took = []
    for _ in range(count):
        started_s = time.perf_counter()
        call()
        took.append(time.perf_counter() - started_s)
    return statistics.median(took)


def measure(device: Device, floor: Floor, rounds: int) -> list[report.Figure]:
    """Both sides in turns; the median over the rounds of each side's median."""
    buffer = device.buffer(BULK_BYTES)
    source, target = bytearray(os.urandom(1 << 20)) * (BULK_BYTES >> 20), bytearray(BULK_BYTES)
    sides: dict[str, tuple[list[float], list[float]]] = {}
    for _ in range(rounds):
        for kind, size, count, ours in (
            ("ping", PING_BYTES, PINGS, lambda: device.op("noop")),
            ("send", BULK_BYTES, BULKS, lambda: buffer.write(source)),
            ("receive", BULK_BYTES, BULKS, lambda: buffer.read(out=target)),
        ):
            mine, bare = sides.setdefault(kind, ([], []))
            bare.append(floor.seconds(kind, size, count))
            mine.append(median_s(ours, count))
    if target != source:
        raise RuntimeError("what came back is not what was sent")
    medians = {k: (statistics.median(m), statistics.median(b)) for k, (m, b) in sides.items()}
    return [
        _round_trip(*medians["ping"], floor.name),
        *_speeds("h2d", *medians["send"], floor.name),
        *_speeds("d2h", *medians["receive"], floor.name),
    ]


def _round_trip(ours_s: float, bare_s: float, baseline: str) -> report.Figure:
    ratio = ours_s / bare_s
    return report.Figure(
        metric="empty_batch_ratio", value=ratio, unit="ratio", ratio=ratio,
        baseline=f"64-byte round trip, {baseline}, µs", baseline_value=bare_s * 1e6,
        target="<= 2.0", met=ratio <= 2.0,
    )  # fmt: skip


def _speeds(name: str, ours_s: float, bare_s: float, baseline: str) -> list[report.Figure]:
    ratio = bare_s / ours_s
    speed, bare_speed = (BULK_BYTES / s / 1e9 for s in (ours_s, bare_s))
    return [
        report.Figure(
            metric=f"{name}_ratio", value=ratio, unit="ratio", ratio=ratio,
            baseline=f"64 MiB, {baseline}, GB/s", baseline_value=bare_speed,
            target=">= 0.75", met=ratio >= 0.75,
        ),
        report.Figure(metric=f"{name}_speed", value=speed, unit="GB/s"),
    ]  # fmt: skip


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="transport-")))
        host = Host(stack, folder, cores[0])
        device = stack.enter_context(connect(host.session(guarantee_pct=0).environment()))
        floor = Floor(stack, folder, cores[0])
        os.sched_setaffinity(0, {cores[-1]})
        figures = measure(device, floor, arguments.rounds)
        os.sched_setaffinity(0, cores)  # the report describes the whole machine
    report.show("remote_gpu.transport", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()

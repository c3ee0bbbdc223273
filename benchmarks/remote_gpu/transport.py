"""The data plane against a C program on a bare TCP connection, in turns, on the same cores.

    empty_batch_ratio    an empty operation, p50        / a 64-byte round trip of the C program
    h2d_ratio            64 MiB into a device buffer    / 64 MiB through the C program, as speeds
    d2h_ratio            64 MiB out of a device buffer  / the same
    shared_memory_ratio  64 MiB into a device buffer from the host's own machine / the same
    tls_ratio            64 MiB into a device buffer in TLS 1.3 / without, as speeds
    graph_batch_ratio    100 empty operations, each called / the same 100 as one graph, as times

Everything is real: ssgmd grants a lease, gpud proves the secret, a worker process holds the buffer.
Hosts and C server are on the first core we may use, all clients on the last. Without a compiler the
floor is the same exchange by Python's sockets, and says so; without `openssl` there is no TLS.

    python -m benchmarks.remote_gpu.transport [--json] [--rounds N]
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import report
from benchmarks.measure import median_s
from benchmarks.processes import workspace
from benchmarks.remote_gpu.host import Host, from_elsewhere, tls_options
from remote_gpu.client import Graph, Lane
from remote_gpu.wire.connection import Access

BULK_BYTES = 64 << 20
PING_BYTES = 64
PINGS = 2000
BULKS = 8
LAUNCHES = 100
BATCHES = 20
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
            subprocess.run(
                [compiler, "-O2", "-pthread", "-o", str(self._program), str(source)], check=True
            )
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
        return self._by_c(kind, size, count)

    def exchange_s(self, there: int, back: int, count: int) -> float:
        """Median of `count` exchanges of these bytes."""
        if self._python:
            return self._exchange_by_python(there, back, count)
        return self._by_c(str(there), back, count)

    def _by_c(self, kind: str, size: int, count: int) -> float:
        command = [str(self._program), kind, str(self._port), str(size), str(count)]
        done = subprocess.run(command, capture_output=True, check=True, text=True)
        return float(done.stdout)

    def _by_python(self, kind: str, size: int, count: int) -> float:
        there, back = (size if kind != "receive" else 1), (size if kind != "send" else 1)
        return self._exchange_by_python(there, back, count)

    def _exchange_by_python(self, there: int, back: int, count: int) -> float:
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


class Side:
    """One way to a device, and its buffer."""

    def __init__(self, stack: contextlib.ExitStack, access: Access) -> None:
        self.device = stack.enter_context(Lane.open(access))
        self.buffer = self.device.buffer(BULK_BYTES)


def measure(ways: dict[str, Side], floor: Floor, rounds: int) -> dict[str, float]:
    """Measure all sides in turns; the median over rounds of each side's median, in seconds."""
    source, target = bytearray(os.urandom(1 << 20)) * (BULK_BYTES >> 20), bytearray(BULK_BYTES)
    plain, graph = ways["plain"], _graph_of_launches()
    took: dict[str, list[float]] = {}

    def one_by_one() -> None:
        for _ in range(LAUNCHES):
            plain.device.op("noop")

    def note(name: str, seconds: float) -> None:
        took.setdefault(name, []).append(seconds)

    for _ in range(rounds):
        note("C ping", floor.seconds("ping", PING_BYTES, PINGS))
        note("plain ping", median_s(lambda: plain.device.op("noop"), PINGS))
        for kind in ("send", "receive"):
            note(f"C {kind}", floor.seconds(kind, BULK_BYTES, BULKS))
            for name, side in ways.items():
                whole: Callable[[Side], object] = (
                    (lambda side: side.buffer.write(source))
                    if kind == "send"
                    else (lambda side: side.buffer.read(out=target))
                )
                note(f"{name} {kind}", median_s(functools.partial(whole, side), BULKS))
        note("launches", median_s(one_by_one, BATCHES))
        note("graph", median_s(lambda: plain.device.run(graph), BATCHES))
    if target != source:
        raise RuntimeError("the returned bytes differ from those sent")
    return {name: statistics.median(values) for name, values in took.items()}


def _graph_of_launches() -> Graph:
    graph = Graph()
    for _ in range(LAUNCHES):
        graph.op("noop")
    return graph


def figures_of(took: dict[str, float], floor: str) -> list[report.Figure]:
    """The ratios and their speeds."""
    found = [_round_trip(took["plain ping"], took["C ping"], floor)]
    for metric, name, kind, base, target in (
        ("h2d", "plain", "send", "C", 0.75),
        ("d2h", "plain", "receive", "C", 0.75),
        ("shared_memory", "shared", "send", "C", 1.8),
        ("shared_memory_d2h", "shared", "receive", "C", 1.8),
        ("tls", "tls", "send", "plain", 0.35),
        ("tls_d2h", "tls", "receive", "plain", 0.35),
    ):
        if f"{name} {kind}" in took:
            baseline = floor if base == "C" else "the same without TLS"
            found += _speeds(
                metric, took[f"{name} {kind}"], took[f"{base} {kind}"], baseline, target
            )
    ratio = took["launches"] / took["graph"]
    found.append(
        report.Figure(
            "graph_batch_ratio",
            ratio,
            "ratio",
            f"{LAUNCHES} calls, µs each",
            took["launches"] * 1e6 / LAUNCHES,
            target=">= 15",
        )
    )
    return found


def _round_trip(ours_s: float, bare_s: float, baseline: str) -> report.Figure:
    ratio = ours_s / bare_s
    return report.Figure(
        "empty_batch_ratio",
        ratio,
        "ratio",
        f"64-byte round trip, {baseline}, µs",
        bare_s * 1e6,
        target="<= 2.0",
    )


def _speeds(
    name: str, ours_s: float, bare_s: float, baseline: str, target: float
) -> list[report.Figure]:
    ratio = bare_s / ours_s
    speed, bare_speed = (BULK_BYTES / s / 1e9 for s in (ours_s, bare_s))
    return [
        report.Figure(
            f"{name}_ratio",
            ratio,
            "ratio",
            f"64 MiB, {baseline}, GB/s",
            bare_speed,
            target=f">= {target}",
        ),
        report.Figure(f"{name}_speed", speed, "GB/s"),
    ]


def _ways(stack: contextlib.ExitStack, folder: Path, core: int) -> dict[str, Side]:
    """From another machine, from this one, and from another one in TLS."""
    session = Host(stack, folder / "plain", core).session(guarantee_pct=0)
    ways = {
        "plain": Side(stack, from_elsewhere(session)),
        "shared": Side(stack, session.view()),
    }
    if options := tls_options(folder):
        secure = Host(stack, folder / "tls", core, *options).session(guarantee_pct=0)
        ways["tls"] = Side(stack, from_elsewhere(secure))
    return ways


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with workspace("transport") as (stack, folder):
        ways = _ways(stack, folder, cores[0])
        floor = Floor(stack, folder, cores[0])
        os.sched_setaffinity(0, {cores[-1]})
        took = measure(ways, floor, arguments.rounds)
        os.sched_setaffinity(0, cores)  # the report describes the whole machine
    figures = figures_of(took, floor.name)
    report.show("remote_gpu.transport", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()

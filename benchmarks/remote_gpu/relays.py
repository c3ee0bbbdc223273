"""Gateway and forwarder in front of a foreign middleware's server, beside the bare connection.

    gateway_*    the client proves its connection itself; gpud relays it to the lease's server
    forwarder_*  an unmodified client: the forwarder on its side, then the gateway
    tls_*        the same in TLS 1.3
    *_16_b_ratio, *_1_kib_ratio, *_64_kib_ratio   a round trip / without anything between, as times
    *_there_ratio, *_back_ratio                   64 MiB / without anything between, as speeds
    *_c_ratio    the same / through as many relays in C that only splice
    *_cpu_ratio  processor time of gpud for 64 MiB / of such a relay

The server is `echo.c`, started by a real gpud as its middleware `cricket` (which chooses its port
itself); the client is the same program. Client, forwarder and the first relay in C are on the last
core we may use, as in a function; gateway, server and the second relay on the first one, as on a
host. All ways are measured in turns; a figure is that of the best round, itself a median: other
load only adds. Needs a C compiler; without `openssl` there is no TLS.

    python -m benchmarks.remote_gpu.relays [--json] [--rounds N]
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import report
from benchmarks.processes import workspace
from benchmarks.remote_gpu.host import Host, from_elsewhere, processor_s, tls_options
from remote_gpu.client import Session
from remote_gpu.client.transport.handshake import RELAY_S, open_connection
from remote_gpu.forwarder import Forwarder
from remote_gpu.wire.connection import Access
from remote_gpu.wire.proof import ConnectionRole

MIDDLEWARE = "cricket"
SIZES = {"16_b": 16, "1_kib": 1 << 10, "64_kib": 64 << 10}
DIRECTIONS = {"there": "send", "back": "receive"}
PINGS, BULKS = 500, 2
BULK_BYTES = 64 << 20
#: Processes between client and server, by way of ours.
BETWEEN = {"gateway": 1, "forwarder": 2, "tls": 2}
GOAL = "<= 1.5"
NOTE = (
    "A process between client and server receives and sends each message once more, and has to be"
    " woken up for it. A relay in C that only splices is the floor for any relay outside of the"
    " kernel: with one such relay 16 bytes take {one:.2f} times the bare round trip, with two"
    " {two:.2f} times. The gateway adds {gateway:.0f} µs to a small call, forwarder and gateway"
    " {both:.0f} µs: calls that take {gateway_call:.0f} µs and {both_call:.0f} µs without them stay"
    " within 1.5."
)


class Program:
    """`echo.c`, and the connections that it measures."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path) -> None:
        """Raises RuntimeError without a compiler."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise RuntimeError("this benchmark needs a C compiler")
        self._stack, self.path = stack, folder / "echo"
        source = str(Path(__file__).parent / "echo.c")
        subprocess.run([compiler, "-O2", "-pthread", "-o", str(self.path), source], check=True)
        self.server = folder / "server"
        self.server.write_text(f"#!/bin/sh\nexec {self.path} serve\n")
        self.server.chmod(0o755)

    def started(self, core: int, *arguments: str) -> tuple[int, int]:
        """Start it as a server on a core; its process id and port."""
        command = [str(self.path), *arguments]
        process = self._stack.enter_context(
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=arguments[0] == "serve",  # gpud's too: the kernel's autogroups
            )
        )
        self._stack.callback(process.terminate)
        os.sched_setaffinity(process.pid, {core})
        assert process.stdout is not None
        return process.pid, int(process.stdout.readline())

    def seconds(self, connected: socket.socket, kind: str, size: int, count: int) -> float:
        """Median of `count` exchanges over a connection: `ping`, `send` or `receive`."""
        descriptor = connected.fileno()
        command = [str(self.path), kind, f"-{descriptor}", str(size), str(count)]
        done = subprocess.run(
            command, capture_output=True, check=True, text=True, pass_fds=(descriptor,)
        )
        return float(done.stdout)


class Way:
    """One way to the server."""

    def __init__(self, connect: Callable[[], socket.socket], pid: int = 0) -> None:
        """`pid`: of the relay beside the server; 0 = there is none."""
        self._connect = connect
        self._pid = pid

    @contextlib.contextmanager
    def connection(self) -> Iterator[socket.socket]:
        """A connection of its own."""
        with self._connect() as found:
            found.setblocking(True)
            yield found

    def relayed_s(self) -> float:
        """Processor time of the relay beside the server so far."""
        return processor_s(self._pid) if self._pid else 0.0


def to_port(port: int, address: str = "127.0.0.1") -> Callable[[], socket.socket]:
    """Connections of an unmodified client."""
    return lambda: socket.create_connection((address, port))


def proven(access: Access) -> Callable[[], socket.socket]:
    """Connections that the client itself has proven."""

    def connect() -> socket.socket:
        found, _, _ = open_connection(
            access.hosts[0],
            role=ConnectionRole.RELAY,
            lease=access.lease,
            fence=access.fence,
            session=access.session,
            timeout_s=RELAY_S,
            middleware=MIDDLEWARE,
        )
        assert isinstance(found, socket.socket), "this host has no TLS"
        return found

    return connect


def forwarded(stack: contextlib.ExitStack, session: Session) -> Callable[[], socket.socket]:
    """Connections of an unmodified client, by a forwarder in this process."""
    forwarder = stack.enter_context(Forwarder(from_elsewhere(session), MIDDLEWARE))
    return to_port(forwarder.ports[0], "127.0.0.2")


def ways_of(
    stack: contextlib.ExitStack, folder: Path, program: Program, core: int, other: int
) -> dict[str, Way]:
    """All ways; `core` is the host's, `other` the function's, as is this process from now on."""
    _, bare = program.started(core, "serve")
    relay, beside = program.started(core, "relay", str(bare))
    _, first = program.started(other, "relay", str(beside))
    options = ("--middleware", f"{MIDDLEWARE}={program.server}")
    os.sched_setaffinity(0, {core})  # gpud and its servers inherit it
    plain = Host(stack, folder / "plain", core, *options)
    secure = None
    if tls := tls_options(folder):
        secure = Host(stack, folder / "tls", core, *options, *tls)
    os.sched_setaffinity(0, {other})
    session = plain.session(guarantee_pct=0)
    ways = {
        "bare": Way(to_port(bare)),
        "c_1": Way(to_port(beside), relay),
        "c_2": Way(to_port(first), relay),
        "gateway": Way(proven(from_elsewhere(session)), plain.pid),
        "forwarder": Way(forwarded(stack, session), plain.pid),
    }
    if secure is not None:
        ways["tls"] = Way(forwarded(stack, secure.session(guarantee_pct=0)), secure.pid)
    return ways


Least = dict[tuple[str, str], float]  #: of all rounds, by way and kind of exchange


def measure(program: Program, ways: dict[str, Way], rounds: int) -> tuple[Least, Least]:
    """Seconds of one exchange, and of the processor for the relay beside the server."""
    took: dict[tuple[str, str], list[float]] = {}
    used: dict[tuple[str, str], list[float]] = {}
    kinds = [(name, "ping", size, PINGS) for name, size in SIZES.items()]
    kinds += [(name, kind, BULK_BYTES, BULKS) for name, kind in DIRECTIONS.items()]
    for _ in range(rounds):
        for label, kind, size, count in kinds:
            for name, way in ways.items():
                with way.connection() as connected:
                    before_s = way.relayed_s()
                    seconds = program.seconds(connected, kind, size, count)
                    used_s = (way.relayed_s() - before_s) / count
                took.setdefault((name, label), []).append(seconds)
                used.setdefault((name, label), []).append(used_s)
    return _least(took), _least(used)


def _least(found: dict[tuple[str, str], list[float]]) -> Least:
    return {key: min(values) for key, values in found.items()}


def figures_of(took: Least, used: Least) -> list[report.Figure]:
    """Every way of ours beside the bare connection and beside relays in C."""
    found = []
    for name, count in BETWEEN.items():
        if (name, "16_b") not in took:
            continue
        for size in SIZES:
            ours_s, bare_s, floor_s = (took[way, size] for way in (name, "bare", f"c_{count}"))
            goal = GOAL if name == "gateway" else None
            found += [
                _ratio(f"{name}_{size}_ratio", ours_s, bare_s, "µs bare", 1e6, goal),
                _ratio(f"{name}_{size}_c_ratio", ours_s, floor_s, f"µs by {count} in C", 1e6),
            ]
        for way in DIRECTIONS:
            speed, bare = (BULK_BYTES / took[one, way] / 1e9 for one in (name, "bare"))
            floor = BULK_BYTES / took[f"c_{count}", way] / 1e9
            found += [
                _ratio(f"{name}_{way}_ratio", speed, bare, "GB/s bare"),
                _ratio(f"{name}_{way}_c_ratio", speed, floor, f"GB/s by {count} in C"),
            ]
    for way in DIRECTIONS:
        ours_s, floor_s = used["gateway", way], used["c_1", way]
        found.append(
            _ratio(f"gateway_{way}_cpu_ratio", ours_s, floor_s, "ms of C's processor", 1e3)
        )
    return found


def _ratio(
    name: str, ours: float, other: float, unit: str, scale: float = 1.0, target: str | None = None
) -> report.Figure:
    return report.Figure(name, ours / other, "ratio", unit, other * scale, target=target)


def note_of(took: Least) -> str:
    """What the goal would need, by this run."""
    bare_s, one_s, two_s = (took[way, "16_b"] for way in ("bare", "c_1", "c_2"))
    gateway, both = ((took[way, "16_b"] - bare_s) * 1e6 for way in ("gateway", "forwarder"))
    return NOTE.format(
        one=one_s / bare_s,
        two=two_s / bare_s,
        gateway=gateway,
        both=both,
        gateway_call=2 * gateway,
        both_call=2 * both,
    )


def main() -> None:
    """Measure and print all figures."""
    parser = report.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with workspace("relays") as (stack, folder):
        program = Program(stack, folder)
        ways = ways_of(stack, folder, program, cores[0], cores[-1])
        took, used = measure(program, ways, options.rounds)
        os.sched_setaffinity(0, cores)  # the report describes the whole machine
    figures, notes = figures_of(took, used), [note_of(took)]
    report.show("remote_gpu.relays", figures, as_json=options.json, notes=notes)


if __name__ == "__main__":
    main()

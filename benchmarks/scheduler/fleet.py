"""What 1,000 monitors that report every 2 s cost ssgmd, and whether a grant feels them.

    daemon_cores      CPU seconds of ssgmd in a second of nothing but reports
    grant_p99_ratio   p99 of a grant with the fleet / without; median of the rounds

The fleet is one process with 1,000 `HostLink`s of four devices each, whose figures all change with
every report. A second ssgmd knows one host only. A client asks each in turns for a share, 200 times
a second, and gives it back; while it asks the lone one, the fleet's process is stopped, so that it
takes no processor from it. Any device will do, so that with the fleet 4,016 of them are judged.

    python -m benchmarks.scheduler.fleet [--json] [--rounds N] [--seconds S] [--monitors N]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import random
import signal
import statistics
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import report
from benchmarks.measure import cpu_s
from benchmarks.processes import program, workspace
from benchmarks.scheduler.cycles import DEVICE_MIB, REQUEST, LineClient, scheduler
from corekit.aio.process import write_ready
from corekit.budget import Budget
from corekit.ids import DeviceId
from gpu_scheduler.model import Device, DeviceKind, Usage
from gpu_scheduler.monitor.link import HostLink
from gpu_scheduler.monitor.watched import WatchedHost

MONITORS, DEVICES_EACH = 1_000, 4
GRANTS_PER_S = 200  #: far below what ssgmd can do: the daemon is not to be busy with the client
SETTLE_S = 2.5  #: after the fleet was stopped every monitor reports once
CORES_TARGET, RATIO_TARGET = 0.2, 1.5
_REPORTS = 'ssgmd_requests_total{op="report"}'
#: Connects that wait for their welcome at once; the fleet arrives within seconds.
ARRIVE_AT_ONCE = 50


class Moving:
    """Four devices whose figures are other ones at every look."""

    def __init__(self, host: str) -> None:
        self._devices = tuple(
            Device(
                id=DeviceId(f"{host}/{index}"),
                index=index,
                kind=DeviceKind.CUDA,
                model="fleet",
                memory_mib=DEVICE_MIB,
                driver="550.54.15",
                runtime="12.4",
            )
            for index in range(DEVICES_EACH)
        )
        self._looks = itertools.count(random.randrange(100))

    async def devices(self) -> tuple[Device, ...]:
        return self._devices

    async def usage(self) -> tuple[Usage, ...]:
        look = next(self._looks)
        return tuple(
            Usage(
                device=device.id,
                memory_used_mib=1000 + look % 1000,
                utilisation_pct=look % 100,
                processes=1,
            )
            for device in self._devices
        )

    async def close(self) -> None:
        """Do nothing: no resource is held."""


async def fleet(address: str, monitors: int, ready: Path) -> None:
    """Connect all monitors and report until killed.

    They stand for 1,000 other machines: whatever else runs on this one goes first.
    """
    os.nice(10)
    arriving = asyncio.Semaphore(ARRIVE_AT_ONCE)
    async with contextlib.AsyncExitStack() as stack:

        async def arrive(number: int) -> None:
            host = f"fleet-{number}"
            # started anywhere in the interval of reports, as a real fleet is
            await asyncio.sleep(random.uniform(0, Budget().host_report_s))
            async with arriving:
                link = HostLink(
                    address,
                    host=host,
                    control=WatchedHost(),
                    probe=Moving(host),
                    gateway=None,
                    budget=Budget(),
                )
                await stack.enter_async_context(link)
                await link.registered()

        await asyncio.gather(*(arrive(number) for number in range(monitors)))
        write_ready(ready, {"monitors": monitors})
        await asyncio.Event().wait()


@dataclass
class Measured:
    """Grants of one kind of round, and the daemon's CPU."""

    p99_ms: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)


async def grants(address: str, seconds: float, into: Measured) -> None:
    """Reserve and release at a steady rate; only the reserve is timed."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(LineClient, host, int(port))
    await client.ask("hello", role="requester", session=f"bench-{time.monotonic_ns()}", version=1)
    times_ms: list[float] = []
    begin_s = time.perf_counter()
    for number in range(int(seconds * GRANTS_PER_S)):
        await asyncio.sleep(max(0.0, begin_s + number / GRANTS_PER_S - time.perf_counter()))
        asked_s = time.perf_counter()
        name = f"{time.monotonic_ns()}"
        answer = await client.ask("reserve", attempt=name, request=REQUEST, wait=False)
        times_ms.append((time.perf_counter() - asked_s) * 1000)
        await client.ask("release", lease=answer["ok"]["granted"]["lease"]["id"], reason="RELEASED")
    client.transport.close()
    times_ms.sort()
    into.p50_ms.append(times_ms[len(times_ms) // 2])
    into.p99_ms.append(times_ms[int(len(times_ms) * 0.99)])


def reports(daemon: dict[str, str]) -> int:
    """How many ssgmd has heard."""
    address = f"http://{daemon['http']}/metrics"  # the daemon that we started
    with urllib.request.urlopen(address, timeout=10) as answer:  # nosec B310
        text = answer.read().decode()
    [line] = [one for one in text.splitlines() if one.startswith(_REPORTS)]
    return int(float(line.rpartition(" ")[2]))


@dataclass
class Answer:
    """All rounds."""

    alone: Measured = field(default_factory=Measured)
    with_fleet: Measured = field(default_factory=Measured)
    cores: list[float] = field(default_factory=list)
    reports_per_s: list[float] = field(default_factory=list)  #: as ssgmd counted them


def run(rounds: int, seconds: float, monitors: int) -> Answer:
    """Start two daemons and a fleet, measure in turns, stop everything."""
    with workspace("fleet") as (stack, folder):
        daemons = {
            which: stack.enter_context(scheduler(folder / which)) for which in ("lone", "crowded")
        }
        crowd = ("--fleet-of", daemons["crowded"]["socket"], "--monitors", str(monitors))
        started = program("benchmarks.scheduler.fleet", folder / "fleet", *crowd)
        return _rounds(daemons, int(stack.enter_context(started)["pid"]), rounds, seconds)


def _rounds(
    daemons: dict[str, dict[str, str]], fleet_pid: int, rounds: int, seconds: float
) -> Answer:
    answer = Answer()
    crowded = daemons["crowded"]
    crowded_pid = int(crowded["pid"])
    for _ in range(rounds):
        os.kill(fleet_pid, signal.SIGSTOP)
        asyncio.run(grants(daemons["lone"]["socket"], seconds, answer.alone))
        os.kill(fleet_pid, signal.SIGCONT)
        time.sleep(SETTLE_S)
        counted, begin_s, spent_s = reports(crowded), time.monotonic(), cpu_s(crowded_pid)
        time.sleep(2 * Budget().host_report_s)
        lasted_s = time.monotonic() - begin_s
        answer.cores.append((cpu_s(crowded_pid) - spent_s) / lasted_s)
        answer.reports_per_s.append((reports(crowded) - counted) / lasted_s)
        asyncio.run(grants(crowded["socket"], seconds, answer.with_fleet))
    return answer


def figures(answer: Answer) -> list[report.Figure]:
    """The two figures, and the times they come from."""
    pairs = zip(answer.with_fleet.p99_ms, answer.alone.p99_ms, strict=True)
    ratio = statistics.median(crowded / alone for crowded, alone in pairs)
    cores = statistics.median(answer.cores)
    alone_ms = statistics.median(answer.alone.p99_ms)
    crowded_ms = statistics.median(answer.with_fleet.p99_ms)
    shown = [
        report.Figure("daemon_cores", cores, "cores", target=f"<= {CORES_TARGET}"),
        report.Figure(
            "grant_p99_ratio",
            ratio,
            "ratio",
            "p99 of a grant without the fleet, ms",
            alone_ms,
            target=f"<= {RATIO_TARGET}",
        ),
        report.Figure("grant_p99_ms", crowded_ms, "ms"),
        report.Figure("reports_per_s", statistics.median(answer.reports_per_s), "1/s"),
    ]
    for name, measured in (("alone", answer.alone), ("fleet", answer.with_fleet)):
        p50_ms = statistics.median(measured.p50_ms)
        shown.append(report.Figure(f"grant_p50_ms_{name}", p50_ms, "ms"))
    return shown


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one round")
    parser.add_argument("--monitors", type=int, default=MONITORS)
    parser.add_argument("--fleet-of", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--ready-file", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.fleet_of is not None:
        asyncio.run(fleet(asked.fleet_of, asked.monitors, asked.ready_file))
        return
    answer = run(asked.rounds, asked.seconds, asked.monitors)
    report.show("scheduler.fleet", figures(answer), as_json=asked.json)


if __name__ == "__main__":
    main()

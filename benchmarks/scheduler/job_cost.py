"""Processor time that each program of a local system spends on one small job, with all its calls.

    orchestrator_cpu_ms_per_job                    target <= 4
    scheduler_cpu_ms_per_job                       target <= 1
    collector_cpu_ms_per_job, console_…            programs that only watch; target <= 0.5
    gpud_cpu_ms_per_job                            of both hosts, without their workers
    cloud_cpu_ms_per_job                           the embedded cloud, without the functions
    floor_cpu_ms_per_job                           of a Python server that decides nothing
    calls_floor_cpu_ms_per_job                     of a Python client that only makes the calls

Jobs come one after another. What the system spends while it is idle, measured before for as long,
is subtracted. The floor is that of the scheduler: `SYNCED` lines of a job, each parsed, appended
with fdatasync, answered, and sent to a watcher, at the pace of the jobs (`benchmarks.scheduler.
bare`). It has no grant, no record, and neither hosts nor an event stream to serve. That of the
orchestrator is `CALLS` unsigned calls of a job by aiohttp (`benchmarks.scheduler.bare_calls`),
without a scheduler, decisions or a log.

    python -m benchmarks.scheduler.job_cost [--json] [--jobs N]
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.dispatch import NAME, SCRIPT
from benchmarks.measure import cpu_s
from benchmarks.processes import program, workspace
from benchmarks.report import Figure, arguments, show
from benchmarks.scheduler.cycles import LineClient
from benchmarks.system import System, local_system

WARM_UP = 20
LIMIT_S = 60.0
LOOK_EVERY_S = 0.01
TARGETS = {"orchestrator": 4.0, "scheduler": 1.0, "collector": 0.5, "console": 0.5}
#: What the scheduler journals of one such job: grant, staged, opened, freed, closed, finish.
SYNCED = 6
#: What the orchestrator calls for one such job: two receives, input, absent result, envelope,
#: invocation, result; deletions of envelope, message and notice.
CALLS = 10
#: Programs that have several processes, by the beginning of their names.
_HOSTS = "gpu-"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    options = parser.parse_args()
    with local_system() as system:
        system.deploy(NAME, SCRIPT, memory_mib=64)
        _jobs(system, WARM_UP, "warm")
        began_s, before = time.monotonic(), _spent_s(system)
        took_s = _jobs(system, options.jobs, "job")
        busy = _since(system, before)
        busy_s, before = time.monotonic() - began_s, _spent_s(system)
        time.sleep(busy_s)
        idle = _since(system, before)
        calls_ms = _calls_ms(system, options.jobs, took_s / options.jobs)
    floor_ms = _floor_ms(options.jobs, took_s / options.jobs)
    figures = [_figure(name, busy[name], idle[name], options.jobs) for name in busy]
    figures.append(Figure("floor_cpu_ms_per_job", floor_ms, "ms"))
    figures.append(Figure("calls_floor_cpu_ms_per_job", calls_ms, "ms"))
    figures.append(Figure("job_ms_mean", took_s * 1000 / options.jobs, "ms"))
    show("scheduler.job_cost", figures, as_json=options.json)


def _jobs(system: System, count: int, prefix: str) -> float:
    """Run jobs, each after the one before has finished; the seconds that they took."""
    s3, began_s = system.client("s3"), time.monotonic()
    for number in range(count):
        mark = system.orchestrator_log.stat().st_size
        s3.put_object(Bucket=f"{NAME}-in", Key=f"{prefix}-{number}", Body=b"x" * 1024)
        _until_finished(system, mark)
    return time.monotonic() - began_s


def _until_finished(system: System, mark: int) -> None:
    """Wait for a line of the orchestrator's log, which costs no program anything."""
    end_s = time.monotonic() + LIMIT_S
    while not any('"job_finished"' in line for line in _lines(system, mark)):
        if time.monotonic() > end_s:
            raise TimeoutError(f"a job is not finished after {LIMIT_S:g} s")
        time.sleep(LOOK_EVERY_S)


def _lines(system: System, mark: int) -> Iterator[str]:
    with system.orchestrator_log.open() as log:
        log.seek(mark)
        yield from log


def _calls_ms(system: System, jobs: int, job_s: float) -> float:
    """Processor time of the bare client for the calls of one job, at the pace of the jobs."""
    words = (system.endpoint, "--calls", str(jobs * CALLS), "--pause", str(job_s / CALLS))
    command = [sys.executable, "-m", "benchmarks.scheduler.bare_calls", *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout) * CALLS


def _floor_ms(jobs: int, job_s: float) -> float:
    """Processor time of the bare server for the lines of one job."""
    with workspace("job-cost") as (stack, folder):
        bare = stack.enter_context(program("benchmarks.scheduler.bare", folder / "bare"))
        pid = int(bare["pid"])
        asyncio.run(_notes(bare["socket"], WARM_UP, 0.0))
        before_s = cpu_s(pid)
        asyncio.run(_notes(bare["socket"], jobs, job_s / SYNCED))
        return (cpu_s(pid) - before_s) * 1000 / jobs


async def _notes(address: str, jobs: int, pause_s: float) -> None:
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    ways = [await loop.create_connection(LineClient, host, int(port)) for _ in range(2)]
    (_, client), (_, watcher) = ways
    try:
        await watcher.ask("watch")
        for _ in range(jobs * SYNCED):
            await client.ask("note", of=NAME * 64)
            await asyncio.sleep(pause_s)
    finally:
        for transport, _ in ways:
            transport.close()


def _spent_s(system: System) -> dict[str, float]:
    """Processor seconds of each program until now, without its children."""
    spent: dict[str, float] = {}
    for one in json.loads((system.home / "system.json").read_text())["processes"]:
        name = "gpud" if one["name"].startswith(_HOSTS) else one["name"]
        spent[name] = spent.get(name, 0.0) + _processor_s(one["pid"])
    return spent


def _processor_s(pid: int) -> float:
    """User and system time of a process, by proc_pid_stat(5), fields 14 and 15."""
    text = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(text[11]) + int(text[12])) / os.sysconf("SC_CLK_TCK")


def _since(system: System, before: Mapping[str, float]) -> dict[str, float]:
    return {name: now_s - before[name] for name, now_s in _spent_s(system).items()}


def _figure(name: str, busy_s: float, idle_s: float, jobs: int) -> Figure:
    cost_ms = max(0.0, busy_s - idle_s) * 1000 / jobs
    target = f"<= {TARGETS[name]:g}" if name in TARGETS else None
    idle_ms = idle_s * 1000 / jobs
    return Figure(
        f"{name}_cpu_ms_per_job", cost_ms, "ms", "idle in that time", idle_ms, target=target
    )


if __name__ == "__main__":
    main()

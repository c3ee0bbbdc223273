"""Processor time that each program of a local system spends on one small job, with all its calls.

    orchestrator_cpu_ms_per_job                    target <= 4
    scheduler_cpu_ms_per_job                       target <= 1
    collector_cpu_ms_per_job, console_…            programs that only watch; target <= 0.5
    gpud_cpu_ms_per_job                            of both hosts, without their workers
    cloud_cpu_ms_per_job                           the embedded cloud, without the functions

Jobs come one after another. What the system spends while it is idle, measured before for as long,
is subtracted.

    python -m benchmarks.scheduler.job_cost [--json] [--jobs N]
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.dispatch import NAME, SCRIPT
from benchmarks.report import Figure, arguments, show
from benchmarks.system import System, local_system

WARM_UP = 20
LIMIT_S = 60.0
LOOK_EVERY_S = 0.01
TARGETS = {"orchestrator": 4.0, "scheduler": 1.0, "collector": 0.5, "console": 0.5}
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
    figures = [_figure(name, busy[name], idle[name], options.jobs) for name in busy]
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

"""Starts of environments: turns, INIT's clock, and what the log has of those that fail."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from local_cloud.model.functions.function import Outcome
from local_cloud.sandbox import environment
from local_cloud.sandbox.process_tree import processes_in, processor_wait_s
from tests.integration.sandbox_runs import (
    PID,
    fail,
    idle,
    lines,
    run,
    sandbox,
    spec,
    still_up,
    until,
)


@pytest.mark.asyncio
async def test_starts_take_turns_and_an_idle_environment_is_not_waited_past(tmp_path: Path) -> None:
    """Each INIT notes how many were under way; the first environments serve most of the runs."""
    source = """
import os, time
open(f"starting-{os.getpid()}", "w").close()
together = sum(name.startswith("starting-") for name in os.listdir("."))
time.sleep(0.2)
os.remove(f"starting-{os.getpid()}")
def handle(event, context):
    return [together, os.getpid()]
"""
    async with sandbox(tmp_path, concurrency_max=30, starts_max=2) as box:
        what = spec(tmp_path, source)
        freed: list[int] = []
        box.on_free = lambda: freed.append(len(box.pool))
        found = await asyncio.gather(*(run(box, what) for _ in range(30)))
        await idle(box)
        assert max(together for together, _ in found) <= 2
        assert len({pid for _, pid in found}) < 15
        assert len(box.pool) == len({pid for _, pid in found})
        assert freed
        assert await still_up(box)


@pytest.mark.asyncio
async def test_a_sandbox_that_ends_starts_nothing_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first start fails by the end; it passes its turn on to nobody."""
    async with sandbox(tmp_path, starts_max=1) as box:
        what = spec(tmp_path, "import time\ntime.sleep(60)")
        runs = [asyncio.create_task(box.invoke(what, "request", "{}")) for _ in range(3)]
        await until(lambda: processes_in(tmp_path))
    done, pending = await asyncio.wait(runs, timeout=10)
    assert (len(done), pending) == (3, set())
    assert [run.cancelled() for run in runs] == [False, True, True]
    assert await asyncio.to_thread(processes_in, tmp_path) == []
    late = asyncio.create_task(box.invoke(what, "request", "{}"))
    await asyncio.wait({late}, timeout=10)
    assert late.cancelled()
    assert not any(record.levelname == "ERROR" for record in caplog.records)


@pytest.mark.asyncio
async def test_init_counts_no_time_without_a_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the kernel says that it waits for a processor, INIT goes on; but not for ever."""
    monkeypatch.setattr(environment, "INIT_S_MAX", 0.2)
    slow = spec(tmp_path, "import time\ntime.sleep(0.6)\n" + PID)
    async with sandbox(tmp_path) as box:
        error = await fail(box, slow)
        assert error["errorMessage"] == "INIT timed out after 0.20 seconds"
        (report,) = lines(box)
        assert report.startswith("INIT_REPORT Init Duration: ")
        assert report.endswith("ms\tPhase: init\tStatus: timeout")
        monkeypatch.setattr(environment, "processor_wait_s", lambda _pid: time.monotonic())
        assert await run(box, slow)
        monkeypatch.setattr(environment, "INIT_WALL_S_MAX", 0.3)
        await box.sweep()
        outcome, _ = await box.invoke(spec(tmp_path, "import time\ntime.sleep(9)"), "r", "{}")
        assert outcome == Outcome(payload="", throttled=True)  # it is not an attempt
        assert lines(box)[-1].endswith("Status: repeated, the machine is too busy")


def test_the_kernel_counts_the_time_without_a_processor() -> None:
    """More endless loops than processors: each waits for one, and a sleeper does not."""
    loop, sleep = [sys.executable, "-c", "while True: pass"], ["sleep", "60"]
    cores = len(os.sched_getaffinity(0))
    processes = [subprocess.Popen(command) for command in [sleep] + [loop] * (2 * cores)]
    try:
        ends_s = time.monotonic() + 30
        while max(processor_wait_s(p.pid) for p in processes) < 0.5:
            assert time.monotonic() < ends_s
            time.sleep(0.05)
        assert processor_wait_s(processes[0].pid) < 0.5
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert processor_wait_s(processes[0].pid) == 0.0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("import os\nos._exit(3)", "Runtime.ExitError"),
        ("import nothing_like_it", "Runtime.ImportModuleError"),
    ],
)
async def test_a_failed_start_is_a_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, source: str, kind: str
) -> None:
    async with sandbox(tmp_path) as box:
        await fail(box, spec(tmp_path, source))
        report = next(line for line in lines(box) if line.startswith("INIT_REPORT"))
        assert report.endswith(f"\tPhase: init\tStatus: error\tError Type: {kind}")
    assert any(report in record.getMessage() for record in caplog.records)


@pytest.mark.asyncio
async def test_a_run_that_is_killed_or_too_slow_is_reported_with_its_status(
    tmp_path: Path,
) -> None:
    async with sandbox(tmp_path) as box:
        await fail(box, spec(tmp_path, "import os\ndef handle(e, c): os.kill(os.getpid(), 9)"))
        slow = "import time\ndef handle(e, c): time.sleep(60)"
        other = tmp_path / "other"
        other.mkdir()
        await fail(box, spec(other, slow, timeout_s=0.5))
        ends = [line.rpartition("\tStatus: ")[2] for line in lines(box) if "REPORT" in line]
        assert ends == ["error\tError Type: Runtime.ExitError", "timeout"]
        assert "RequestId: request Error: Runtime exited with error: signal: killed" in lines(box)


@pytest.mark.asyncio
async def test_an_environment_may_end_right_after_its_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with sandbox(tmp_path) as box:
        await run(box, spec(tmp_path, PID))
        (number,) = box._live
        await box._end(number)  # the cloud stops; the environment was not at rest yet
        await idle(box)
        assert await still_up(box)
    assert [record.getMessage() for record in caplog.records] == []

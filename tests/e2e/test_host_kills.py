"""`kill -9` of hosts, runs, orchestrator and scheduler under functions that run on hosts."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from pathlib import Path

import pytest

from orchgpu.local.programs import HOSTS
from tests.e2e.host_remains import remains, run_processes
from tests.e2e.live import FunctionSpec, Live, live_system, until
from tests.e2e.storms import restart, storm

SLOW = """#!/bin/sh
sleep 4
cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/"
"""
#: An attempt counts for each kill that it meets; eight run at a time.
COPY = FunctionSpec(
    SLOW, timeout=120, gpu={"memory": 512}, job={"attempts": 10}, more={"execution": "host"}
)
RUN = "a process of a run"
FAULTS = ("gpu-a", RUN, "orchestrator", RUN, "scheduler", RUN, "gpu-b", RUN)
#: A run starts in a second, and in many on a machine with other work.
SCALE, FILES = "0.5", 40


def kill_of_a_run(live: Live, chance: random.Random) -> None:
    """SIGKILL to a runner or to the user's code, of any run that is there."""
    found = [pid for host in HOSTS for pid in run_processes(live, host)]
    with contextlib.suppress(IndexError, ProcessLookupError):
        os.kill(chance.choice(found), signal.SIGKILL)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_no_file_is_lost_and_nothing_is_left_on_the_hosts(tmp_path: Path) -> None:
    with live_system(tmp_path, scale=SCALE) as live:
        live.start_all()
        live.deploy({"copy": COPY})
        gpuds = {live.children[host].pid for host in HOSTS}

        def kill(number: int, chance: random.Random) -> None:
            name = FAULTS[number % len(FAULTS)]
            if name == RUN:
                kill_of_a_run(live, chance)
                return
            restart(live, name, chance)
            gpuds.update(live.children[host].pid for host in HOSTS)

        assert storm(live, FILES, 25, 3.0, kill, job_s=60.0) >= len(FAULTS)
        with contextlib.suppress(AssertionError):
            until("nothing left", lambda: not remains(live, gpuds))
        assert remains(live, gpuds) == []

"""A benchmark that gets SIGTERM stops the local system that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 240.0


def users_of(folder: Path) -> list[str]:
    """The commands of all processes whose environment names the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(folder) in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it has ended, or it is another user's
            continue
    return found


def await_true(condition: Callable[[], object], what: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, what()
        time.sleep(0.05)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("module", "sign"),
    [
        pytest.param(["benchmarks.dispatch"], "*/logs", marks=pytest.mark.soak),  # while it starts
        (["benchmarks", "dispatch", "--output", "page.md"], "*/system.json"),
    ],
)
def test_a_benchmark_that_ends_early_leaves_nothing_running(
    tmp_path: Path, module: list[str], sign: str
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    arguments = [one.replace("page.md", str(tmp_path / "page.md")) for one in module]
    command = [sys.executable, "-m", *arguments]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE) as process:
        await_true(lambda: list(tmp_path.glob(f"orchgpu-bench-{sign}")), lambda: "no system")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + signal.SIGTERM, said.decode()
    await_true(lambda: not users_of(tmp_path), lambda: users_of(tmp_path))
    assert not list(tmp_path.glob("orchgpu-bench-*"))

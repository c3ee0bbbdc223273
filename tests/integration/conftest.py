"""Scheduler programs as real processes, each ended by its own id."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchgpu.local.ports import fixed_address

#: Production timings divided by this; the fixtures hand it to every program they start.
TIME_SCALE = 0.05


def until(what: str, holds: Callable[[], Any], within_s: float = 60.0) -> Any:
    """Poll real processes; the value that held."""
    end_s = time.monotonic() + within_s
    while time.monotonic() < end_s:
        if value := holds():
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {within_s:g} s: {what}")


@dataclass
class Program:
    """One process with its ready file."""

    process: subprocess.Popen[str]
    ready: Path
    log: Path

    def wait_ready(self) -> dict[str, Any]:
        def written() -> Any:
            alive = self.process.poll() is None
            assert alive or self.ready.exists(), self.log.read_text()
            return self.ready.exists()

        until(f"{self.ready} (log: {self.log})", written)
        value: dict[str, Any] = json.loads(self.ready.read_text())
        return value

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=20)


@dataclass
class Programs:
    """Starts programs below one folder and ends them all."""

    folder: Path
    time_scale: float = TIME_SCALE  #: 1 where a loaded machine must not pass for a silent host
    variables: dict[str, str] = field(default_factory=dict)  #: of the environment
    started: list[Program] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        scale = {"ORCHGPU_TIME_SCALE": str(self.time_scale)}
        return {**os.environ, **scale, **self.variables}

    def start(self, module: str, *arguments: str, file_size_kib_max: int | None = None) -> Program:
        number = len(self.started)
        ready, log = self.folder / f"{number}.ready", self.folder / f"{number}.log"
        command = [sys.executable, "-m", module, *arguments, "--ready-file", str(ready)]
        if file_size_kib_max is not None:
            limit = f'ulimit -f {file_size_kib_max}; exec "$@"'
            command = ["bash", "-c", limit, "bash", *command]
        with log.open("w") as errors:
            process = subprocess.Popen(
                command,
                env=self.environment,
                stdout=errors,
                stderr=errors,
                text=True,
            )
        program = Program(process, ready, log)
        self.started.append(program)
        return program

    def ssgmd(self, *, listen: str | None = None, state: str = "state") -> Program:
        command = ("gpu_scheduler.daemon", "--state", str(self.folder / state))
        return self.start(*command, "--listen", listen or fixed_address())

    def monitor(self, scheduler: str, host: str, inventory: Path, *more: str) -> Program:
        return self.start(
            "gpu_scheduler.monitor",
            "--scheduler",
            scheduler,
            "--host-id",
            host,
            "--inventory",
            str(inventory),
            *more,
        )

    def ssgm(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gpu_scheduler.client", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def inventory(self, name: str, *lines: str) -> Path:
        path = self.folder / name
        path.write_text("devices:\n" + "".join(f"  - {{{line}}}\n" for line in lines))
        return path


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    started = Programs(tmp_path)
    yield started
    for program in started.started:
        if program.process.poll() is None:
            program.process.send_signal(signal.SIGCONT)
            program.kill()

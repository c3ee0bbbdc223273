"""The supervisor with small real programs: order, readiness, death, stop, nothing left."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from orchgpu.local.child import Child, Died, Program, birth_of
from orchgpu.local.home import Home
from orchgpu.local.supervisor import Supervisor

pytestmark = pytest.mark.usefixtures("nothing_left")

SERVES = """
import json, os, signal, sys, time
ready = sys.argv[sys.argv.index("--ready-file") + 1]
print("hello from", ready, flush=True)
open(ready + ".new", "w").write(json.dumps({"pid": os.getpid(), "endpoint": "http://127.0.0.1:9"}))
os.replace(ready + ".new", ready)
signal.sigwait({signal.SIGTERM})
"""
CRASHES = "import sys; print('no such device', file=sys.stderr); sys.exit(3)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVES.replace(
    "signal.sigwait({signal.SIGTERM})", "time.sleep(600)"
)
MUTE = "import time; time.sleep(600)"


def wait_gone(pid: int) -> None:
    """Real processes take their moment to end."""
    deadline_s = time.monotonic() + 60
    while birth_of(pid):
        assert time.monotonic() < deadline_s, f"{pid} still lives"
        time.sleep(0.01)


class Plan:
    """Stages of programs that are given as Python source."""

    def __init__(self, home: Home, *stages: Mapping[str, str]) -> None:
        home.create()
        self._home = home
        self._stages = stages

    def stages(self) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(stage) for stage in self._stages)

    def program(self, name: str, ready: Mapping[str, Any]) -> Program:
        assert set(ready) >= {n for s in self._before(name) for n in s}
        source = next(stage[name] for stage in self._stages if name in stage)
        ready_file = self._home.ready / f"{name}.json"
        # signals are blocked before Python starts, so that none comes too early for sigwait
        blocked = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
        return Program(
            name=name,
            command=(
                sys.executable, "-c", (blocked if "sigwait" in source else "") + source,
                "--ready-file", str(ready_file),
            ),
            ready_file=ready_file,
            log=self._home.logs / f"{name}.log",
            environment={"PATH": os.environ["PATH"]},
            address_key="endpoint" if name == "cloud" else None,
        )  # fmt: skip

    def _before(self, name: str) -> list[Mapping[str, str]]:
        index = next(i for i, stage in enumerate(self._stages) if name in stage)
        return list(self._stages[:index])


class System:
    """A supervisor with everything it told."""

    def __init__(
        self, folder: Path, *stages: Mapping[str, str], budget: Budget | None = None
    ) -> None:
        self.home = Home(folder / "home")
        self.told: list[dict[str, Any]] = []
        self.supervisor = Supervisor(
            Plan(self.home, *stages), self.home, self.told.append, budget or Budget()
        )

    def names(self, event: str) -> list[str]:
        return [told["program"] for told in self.told if told["event"] == event]

    def pids(self) -> list[int]:
        return [child.pid for child in self.supervisor._children]


@pytest.mark.asyncio
async def test_programs_start_in_order_and_stop_in_reverse(tmp_path: Path) -> None:
    system = System(tmp_path, {"cloud": SERVES}, {"a": SERVES, "b": SERVES}, {"last": SERVES})
    await system.supervisor.start()
    pids = system.pids()
    assert all(birth_of(pid) for pid in pids)
    assert len({os.getpgid(pid) for pid in pids} - {os.getpgid(0)}) == len(pids)
    await system.supervisor.stop()
    await system.supervisor.stop()
    assert system.names("starting") == ["cloud", "a", "b", "last"]
    stopped = system.names("stopped")
    assert (stopped[0], set(stopped[1:3]), stopped[3]) == ("last", {"a", "b"}, "cloud")
    assert all(told["status"] == 0 for told in system.told if told["event"] == "stopped")
    assert not any(birth_of(pid) for pid in pids)
    assert not list(system.home.ready.iterdir())


@pytest.mark.asyncio
async def test_a_crash_at_start_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    system = System(tmp_path, {"cloud": SERVES}, {"bad": CRASHES, "good": SERVES}, {"z": SERVES})
    with pytest.raises(Died) as failure:
        await system.supervisor.start()
    pids = system.pids()
    await system.supervisor.stop()
    assert failure.value.code is ErrorCode.UNAVAILABLE
    assert "bad ended with status 3" in failure.value.message
    assert failure.value.details["log_tail"] == ["no such device"]
    assert "z" not in system.names("starting")
    assert not any(birth_of(pid) for pid in pids)


@pytest.mark.asyncio
async def test_a_death_later_is_told_once_and_the_rest_goes_on(tmp_path: Path) -> None:
    system = System(tmp_path, {"cloud": SERVES}, {"a": SERVES, "b": SERVES})
    await system.supervisor.start()
    try:
        assert system.supervisor.deaths() == []
        victim = system.pids()[1]
        os.kill(victim, signal.SIGKILL)
        wait_gone(victim)
        deaths = system.supervisor.deaths()
        assert ["a ended by signal SIGKILL" in death.message for death in deaths] == [True]
        assert deaths[0].details["log_tail"] == [f"hello from {system.home.ready / 'a.json'}"]
        assert system.supervisor.deaths() == []
        assert birth_of(system.pids()[2])
    finally:
        await system.supervisor.stop()


@pytest.mark.asyncio
async def test_who_does_not_stop_is_killed(tmp_path: Path) -> None:
    budget = dataclasses.replace(Budget(), drain_s=0.1, program_stop_s=0.1)
    system = System(tmp_path, {"cloud": SERVES}, {"deaf": DEAF}, budget=budget)
    await system.supervisor.start()
    pids = system.pids()
    await system.supervisor.stop()
    stopped = {t["program"]: t["in_time"] for t in system.told if t["event"] == "stopped"}
    assert stopped == {"deaf": False, "cloud": True}
    assert not any(birth_of(pid) for pid in pids)


@pytest.mark.asyncio
async def test_who_never_gets_ready_is_given_up(tmp_path: Path) -> None:
    budget = dataclasses.replace(Budget(), program_ready_s=0.2)
    system = System(tmp_path, {"mute": MUTE}, budget=budget)
    with pytest.raises(AppError, match="mute was not ready") as failure:
        await system.supervisor.start()
    await system.supervisor.stop()
    assert failure.value.code is ErrorCode.TIMEOUT


@pytest.mark.asyncio
@pytest.mark.parametrize("content", ["", "[]", "nonsense", "{}"])
async def test_a_wrong_ready_file_is_an_error_not_a_crash(tmp_path: Path, content: str) -> None:
    source = SERVES.replace('json.dumps({"pid": os.getpid(), "endpoint": "http://127.0.0.1:9"})',
                            repr(content))  # fmt: skip
    system = System(tmp_path, {"cloud": source})
    with pytest.raises(AppError, match="ready file is wrong"):
        await system.supervisor.start()
    await system.supervisor.stop()


def test_nothing_outlives_a_killed_parent(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    program = Plan(home, {"cloud": SERVES}).program("cloud", {})
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *map(str, (program.ready_file, program.log)),
         *program.command],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert birth_of(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_gone(pid)


PARENT = """
import asyncio, os, sys, time
from pathlib import Path
from orchgpu.local.child import Child, Program
child = Child(Program(name="cloud", command=tuple(sys.argv[3:]), ready_file=Path(sys.argv[1]),
                      log=Path(sys.argv[2]), environment=os.environ, address_key=None))
asyncio.run(child.wait_ready(20))
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_program_that_does_not_exist_is_told(tmp_path: Path) -> None:
    async def started() -> None:
        child = Child(
            Program(
                name="ghost", command=("/no/such/program",), ready_file=tmp_path / "r",
                log=tmp_path / "logs" / "l", environment={},
            )
        )  # fmt: skip
        await child.wait_ready(20)

    (tmp_path / "logs").mkdir()
    with pytest.raises(Died, match="ghost ended with status 1") as failure:
        asyncio.run(started())
    assert any("/no/such/program" in line or "FileNotFoundError" in line
               for line in failure.value.details["log_tail"])  # fmt: skip

"""The supervisor with small real programs: order, readiness, death, stop, nothing left."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
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
#: What `system.json` tells of.
SYSTEM = {
    "cloud": SERVES,
    "scheduler": SERVES.replace(
        '"endpoint": "http://127.0.0.1:9"', '"socket": "127.0.0.1:7", "http": "127.0.0.1:8"'
    ),
}
CRASHES = "import sys; print('no such device', file=sys.stderr); sys.exit(3)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVES.replace(
    "signal.sigwait({signal.SIGTERM})", "time.sleep(600)"
)
INDEXES = (
    """
import json, sys, time
for part in (0.1, 0.4, 1.0):
    about = {"event": "indexing", "data": "p", "sequences": 7, "part": part}
    print(json.dumps({"message": "indexing p", **about}), flush=True)
    time.sleep(0.7)  # longer than the limit without news
"""
    + SERVES
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
        self.asked: list[Mapping[str, Any]] = []  #: what each program was told of all others

    def stages(self) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(stage) for stage in self._stages)

    def program(self, name: str, ready: Mapping[str, Any]) -> Program:
        assert set(ready) >= {n for s in self._before(name) for n in s}
        self.asked.append(dict(ready))
        source = next(stage[name] for stage in self._stages if name in stage)
        ready_file = self._home.ready / f"{name}.json"
        # signals are blocked before Python starts, so that none comes too early for sigwait
        blocked = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
        return Program(
            name=name,
            command=(
                sys.executable,
                "-c",
                (blocked if "sigwait" in source else "") + source,
                "--ready-file",
                str(ready_file),
            ),
            ready_file=ready_file,
            log=self._home.logs / f"{name}.log",
            environment={"PATH": os.environ["PATH"]},
            address_key="endpoint" if name == "cloud" else None,
        )

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
        self.changes: list[dict[str, tuple[str, int]]] = []  #: state and restarts by name
        self.all_pids: set[int] = set()
        self.plan = Plan(self.home, *stages)
        self.supervisor = Supervisor(
            self.plan, self.home, self.told.append, budget or Budget().scaled(0.05)
        )

    def changed(self) -> None:
        record = self.supervisor.record("embedded", os.getpid())
        self.changes.append({p.name: (p.state, p.restarts) for p in record.processes})
        self.all_pids.update(p.pid for p in record.processes)

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
async def test_a_program_that_indexes_data_has_time_and_tells_so(tmp_path: Path) -> None:
    budget = dataclasses.replace(Budget().scaled(0.05), program_ready_s=1.5)
    system = System(tmp_path, {"cloud": SERVES}, {"a": INDEXES}, budget=budget)
    await system.supervisor.start()
    await system.supervisor.stop()
    told = [one for one in system.told if one["event"] == "indexing"]
    assert told[0] == {
        "event": "indexing", "program": "a", "data": "p", "sequences": 7, "part": 0.1
    }  # fmt: skip
    assert told[-1]["part"] == 1.0


@pytest.mark.asyncio
async def test_a_crash_at_start_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
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


@asynccontextmanager
async def watched(system: System) -> AsyncIterator[None]:
    """The system is up and watched, as `python -m orchgpu.local` does it."""
    look = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCHLD, look.set)
    try:
        await system.supervisor.start()
        watching = asyncio.create_task(system.supervisor.watch(look, system.changed))
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait([watching])
            assert watching.cancelled()
    finally:
        loop.remove_signal_handler(signal.SIGCHLD)
        await system.supervisor.stop()


async def until(holds: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline_s, "it did not come to that"
        await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_a_dead_program_is_restarted_and_the_rest_keeps_running(tmp_path: Path) -> None:
    system = System(tmp_path, SYSTEM, {"a": SERVES, "b": SERVES})
    async with watched(system):
        first = system.pids()
        for victim in (first[2], first[0]):  # both are down at once: one is told of, then both
            os.kill(victim, signal.SIGKILL)
        await until(lambda: len(system.names("ready")) == 6)
        death = next(told for told in system.told if "a ended" in str(told.get("message")))
        assert "a ended by signal SIGKILL" in death["message"]
        assert death["details"]["log_tail"] == [f"hello from {system.home.ready / 'a.json'}"]
        assert sorted(system.names("restarting")) == ["a", "cloud"]
        assert [one == other for one, other in zip(first, system.pids(), strict=True)] == [
            False,
            True,
            False,
            True,
        ]
        await until(lambda: set(system.changes[-1].values()) == {("running", 1), ("running", 0)})
        assert {state for state, _ in system.changes[-1].values()} == {"running"}
        assert any(change["a"][0] == "restarting" for change in system.changes)
    assert not any(birth_of(pid) for pid in (*first, *system.all_pids))


@pytest.mark.asyncio
async def test_a_program_that_dies_again_and_again_is_given_up(tmp_path: Path) -> None:
    once = f"import pathlib\nmark = pathlib.Path({str(tmp_path / 'mark')!r})\n"
    once += "if mark.exists():\n    raise SystemExit(7)\nmark.touch()\n" + SERVES
    budget = dataclasses.replace(Budget().scaled(0.01), restarts_max=3)
    system = System(tmp_path, SYSTEM, {"a": once, "b": SERVES}, budget=budget)
    async with watched(system):
        os.kill(system.pids()[2], signal.SIGKILL)
        await until(lambda: system.names("given_up"))
        pauses = [told["in_s"] for told in system.told if told["event"] == "restarting"]
        assert pauses == pytest.approx([0.005, 0.01, 0.02])
        assert (
            sum("status 7" in told["message"] for told in system.told if told["event"] == "died")
            == 3
        )
        assert system.changes[-1]["a"] == ("given_up", 3)
        assert birth_of(system.pids()[3])
        await asyncio.sleep(0)
        assert len(system.names("given_up")) == 1


@pytest.mark.asyncio
async def test_a_stop_in_the_middle_of_a_restart_leaves_nothing(tmp_path: Path) -> None:
    slow = f"import pathlib\nmark = pathlib.Path({str(tmp_path / 'mark')!r})\n"
    slow += "if mark.exists():\n    import time; time.sleep(600)\nmark.touch()\n" + SERVES
    system = System(tmp_path, SYSTEM, {"a": slow})
    async with watched(system):
        dead = system.pids()[2]
        os.kill(dead, signal.SIGKILL)
        await until(lambda: system.pids()[2] != dead)
        pids = system.pids()
    assert not any(birth_of(pid) for pid in pids)


@pytest.mark.asyncio
async def test_what_starts_again_listens_where_it_did(tmp_path: Path) -> None:
    system = System(tmp_path, SYSTEM)
    async with watched(system):
        system.home.keep_addresses(system.supervisor.addresses())
        os.kill(system.pids()[0], signal.SIGKILL)
        await until(lambda: len(system.names("ready")) == 3)
        assert system.plan.asked[-1]["cloud"]["endpoint"] == "http://127.0.0.1:9"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        free = system.home.last_addresses()
        busy = {"scheduler": {"socket": f"127.0.0.1:{taken.getsockname()[1]}"}}
        system.home.keep_addresses({**free, **busy})
        again = System(tmp_path, SYSTEM)
        async with watched(again):
            first = again.plan.asked[0]
    assert first["cloud"] == {"endpoint": "http://127.0.0.1:9"}
    assert first["scheduler"] == {}  # somebody else listens there now


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
    source = SERVES.replace(
        'json.dumps({"pid": os.getpid(), "endpoint": "http://127.0.0.1:9"})', repr(content)
    )
    system = System(tmp_path, {"cloud": source})
    with pytest.raises(AppError, match="ready file is not valid"):
        await system.supervisor.start()
    await system.supervisor.stop()


def test_nothing_outlives_a_killed_parent(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    program = Plan(home, {"cloud": SERVES}).program("cloud", {})
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            PARENT,
            *map(str, (program.ready_file, program.log)),
            *program.command,
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
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


def test_a_program_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    async def started() -> None:
        child = Child(
            Program(
                name="ghost",
                command=("/no/such/program",),
                ready_file=tmp_path / "r",
                log=tmp_path / "logs" / "l",
                environment={},
            )
        )
        await child.wait_ready(20)

    (tmp_path / "logs").mkdir()
    with pytest.raises(Died, match="ghost ended with status 1") as failure:
        asyncio.run(started())
    assert any(
        "/no/such/program" in line or "FileNotFoundError" in line
        for line in failure.value.details["log_tail"]
    )

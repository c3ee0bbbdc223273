"""Starts the programs of one local system in order, starts dead ones again, stops in reverse."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.net.addresses import address_of, parse_address
from orchgpu.local.child import Child, LogLine, Program, Ready, birth_of
from orchgpu.local.home import Home, ProcessRecord, ProgramState, SystemRecord
from orchgpu.local.programs import ReadyFiles, key_pair, queues_of
from orchgpu.local.restarts import Restarts

#: Progress as data: {"event": "starting" | "ready" | "died" | "restarting" | "given_up" |
#: "stopped" | "indexing", "program": …, …}
Event = dict[str, object]
Report = Callable[[Event], None]
#: Keys of ready files with an address.
_ADDRESSES = ("endpoint", "socket", "http", "gateway", "metrics", "store_events")


class StartOrder(Protocol):
    """The programs of a system; `Programs` implements it."""

    def stages(self) -> tuple[tuple[str, ...], ...]:
        """Names; programs of one stage start together, after all of the stage before."""
        ...

    def program(self, name: str, ready: ReadyFiles) -> Program:
        """The program of that name, given the ready files of the stages before, and its own last
        one: it listens there again."""
        ...


class Supervisor:
    """The processes of one system. `stop` must be awaited whatever `start` and `watch` did."""

    def __init__(self, programs: StartOrder, home: Home, report: Report, budget: Budget) -> None:
        self._programs = programs
        self._budget = budget
        self._home = home
        self._report = report
        self._children: list[Child] = []  # in order of start; a restarted one keeps its place
        self._ready: dict[str, Ready] = {}  # by name: its last ready file
        self._states: dict[str, str] = {}  # by name; RUNNING is left out
        self._restarts = Restarts(budget)

    async def start(self) -> None:
        """Start every stage. Raises Died or TIMEOUT; `stop` ends what runs then."""
        last = _free(self._home.last_addresses())
        for stage in self._programs.stages():
            ready = {**last, **self._ready}
            await self._start_stage([self._programs.program(name, ready) for name in stage])

    async def _start_stage(self, programs: list[Program]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for program in programs:
                    group.create_task(self._launch(program), name=f"launch/{program.name}")
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _launch(self, program: Program) -> None:
        self._report({"event": "starting", "program": program.name})
        begun_s = time.monotonic()
        child = Child(program)
        self._put(child)
        self._ready[program.name] = await child.wait_ready(
            self._budget.program_ready_s, partial(self._indexing, program.name)
        )
        self._report(
            {
                "event": "ready",
                "program": program.name,
                "address": child.address,
                "took_s": round(time.monotonic() - begun_s, 3),
            }
        )

    def _indexing(self, program: str, line: LogLine) -> None:
        about = {key: line.get(key) for key in ("data", "sequences", "part")}
        self._report({"event": "indexing", "program": program, **about})

    def _put(self, fresh: Child) -> None:
        for at, child in enumerate(self._children):
            if child.program.name == fresh.program.name:
                self._children[at] = fresh
                return
        self._children.append(fresh)

    def record(self, cloud: str, supervisor_pid: int) -> SystemRecord:
        """The running system for `system.json`. Call it after `start`."""
        access_key, secret_key = key_pair(self._ready)
        return SystemRecord(
            access_key=access_key,
            secret_key=secret_key,
            supervisor_pid=supervisor_pid,
            cloud=cloud,
            endpoint=str(self._ready["cloud"]["endpoint"]),
            weather=str(self._ready["cloud"].get("weather", "")),
            queues=queues_of(self._ready),
            scheduler=str(self._ready["scheduler"]["socket"]),
            scheduler_http=str(self._ready["scheduler"]["http"]),
            console=str(self._ready.get("console", {}).get("url", "")),
            processes=tuple(self._process(child) for child in self._children),
        )

    def _process(self, child: Child) -> ProcessRecord:
        name = child.program.name
        return ProcessRecord(
            name=name,
            pid=child.pid,
            birth=birth_of(child.pid),
            address=child.program.address_in(self._ready[name]),  # its last, until it is ready
            log=str(child.program.log),
            restarts=self._restarts.count(name),
            state=self._states.get(name, ProgramState.RUNNING),
        )

    def addresses(self) -> dict[str, dict[str, str]]:
        """The addresses of each program, by the keys of its ready file."""
        return {
            name: {key: str(value) for key, value in ready.items() if key in _ADDRESSES}
            for name, ready in self._ready.items()
        }

    async def watch(self, look: asyncio.Event, changed: Callable[[], None]) -> None:
        """Restart dead programs until cancelled. `look` is set when a child may have ended;
        `changed` is called when `record` has changed."""
        async with asyncio.TaskGroup() as group:
            while True:
                look.clear()
                for child in self._newly_dead():
                    self._report({"event": "died", **child.death().as_json()})
                    group.create_task(self._revive(child.program.name, changed))
                await look.wait()

    def _newly_dead(self) -> list[Child]:
        dead = [
            child
            for child in self._children
            if child.program.name not in self._states and child.exit_status() is not None
        ]
        self._states.update((child.program.name, ProgramState.RESTARTING) for child in dead)
        return dead

    async def _revive(self, name: str, changed: Callable[[], None]) -> None:
        while (pause_s := self._restarts.after_death(name, time.monotonic())) is not None:
            self._report({"event": "restarting", "program": name, "in_s": pause_s})
            changed()
            await asyncio.sleep(pause_s)
            if await self._revived(name):
                del self._states[name]
                changed()
                return
        self._states[name] = ProgramState.GIVEN_UP
        log = str(self._home.logs / f"{name}.log")
        self._report(
            {
                "event": "given_up",
                "program": name,
                "restarts": self._restarts.count(name),
                "log": log,
            }
        )
        changed()

    async def _revived(self, name: str) -> bool:
        try:
            await self._launch(self._programs.program(name, self._ready))
        except AppError as error:
            self._report({"event": "died", **error.as_json()})
        except OSError as error:  # no process can be started
            text = f"{name} cannot be started: {error}"
            self._report({"event": "died", **AppError(ErrorCode.UNAVAILABLE, text).as_json()})
        else:
            return True
        child = next(child for child in self._children if child.program.name == name)
        await child.stop(
            self._budget.program_stop_s
        )  # a program that was not ready in time still runs
        return False

    async def stop(self) -> None:
        """Stop all, last started first; hosts stop together. Safe to repeat."""
        while self._children:
            names = self._last_stage()
            await asyncio.gather(
                *(self._stop(c) for c in self._children if c.program.name in names)
            )
            self._children = [c for c in self._children if c.program.name not in names]
        self._home.forget_system()

    def _last_stage(self) -> tuple[str, ...]:
        """Hosts stop together; all others one after the other, the cloud last."""
        last = self._children[-1].program.name
        stage = next(s for s in self._programs.stages() if last in s)
        return (last,) if "cloud" in stage else stage

    async def _stop(self, child: Child) -> None:
        in_time = await child.stop(self._budget.drain_s + self._budget.program_stop_s)
        self._report(
            {
                "event": "stopped",
                "program": child.program.name,
                "status": child.exit_status(),
                "in_time": in_time,
            }
        )


def _free(addresses: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    return {
        name: {key: address for key, address in found.items() if _is_free(address)}
        for name, found in addresses.items()
    }


def _is_free(address: str) -> bool:
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(parse_address(address_of(address)))
    except (OSError, AppError):
        return False
    return True

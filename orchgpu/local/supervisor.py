"""Starts the programs of one local system in order, watches them, stops them in reverse."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from corekit.budget import Budget
from orchgpu.local.child import Child, Died, Program, birth_of
from orchgpu.local.home import Home, ProcessRecord, SystemRecord
from orchgpu.local.programs import Ready, key_pair

#: Progress as data: {"event": "starting" | "ready" | "died" | "stopped", "program": …, …}
Tell = Callable[[dict[str, Any]], None]


class Plan(Protocol):
    """What a system is made of; `Programs` is ours."""

    def stages(self) -> tuple[tuple[str, ...], ...]:
        """Names; programs of one stage start together, after all of the stage before."""
        ...

    def program(self, name: str, ready: Ready) -> Program:
        """The program of that name, given the ready files of the stages before."""
        ...


class Supervisor:
    """The processes of one system. `stop` must be awaited whatever `start` did."""

    def __init__(self, programs: Plan, home: Home, tell: Tell, budget: Budget) -> None:
        self._programs = programs
        self._budget = budget
        self._home = home
        self._tell = tell
        self._children: list[Child] = []  # in order of start
        self._reported: list[str] = []  # names of the dead that were told of

    async def start(self) -> None:
        """Start every stage. Raises Died or TIMEOUT; what runs then is still ours to stop."""
        for stage in self._programs.stages():
            ready = {child.program.name: child.ready for child in self._children}
            await self._start_stage([self._programs.program(name, ready) for name in stage])

    async def _start_stage(self, programs: list[Program]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for program in programs:
                    group.create_task(self._launch(program), name=f"launch/{program.name}")
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _launch(self, program: Program) -> None:
        self._tell({"event": "starting", "program": program.name})
        begun_s = time.monotonic()
        child = Child(program)
        self._children.append(child)
        await child.wait_ready(self._budget.program_ready_s)
        self._tell({
            "event": "ready",
            "program": program.name,
            "address": child.address,
            "took_s": round(time.monotonic() - begun_s, 3),
        })  # fmt: skip

    def record(self, cloud: str, supervisor_pid: int) -> SystemRecord:
        """The running system for `system.json`. Call it after `start`."""
        ready = {child.program.name: child.ready for child in self._children}
        access_key, secret_key = key_pair(ready)
        return SystemRecord(
            access_key=access_key,
            secret_key=secret_key,
            supervisor_pid=supervisor_pid,
            cloud=cloud,
            endpoint=str(ready["cloud"]["endpoint"]),
            scheduler=str(ready["scheduler"]["socket"]),
            scheduler_http=str(ready["scheduler"]["http"]),
            processes=tuple(
                ProcessRecord(
                    name=child.program.name,
                    pid=child.pid,
                    birth=birth_of(child.pid),
                    address=child.address,
                    log=str(child.program.log),
                )
                for child in self._children
            ),
        )

    def deaths(self) -> list[Died]:
        """Programs that ended since the last call; the rest keeps running."""
        fresh = [
            child
            for child in self._children
            if child.program.name not in self._reported and child.exit_status() is not None
        ]
        self._reported.extend(child.program.name for child in fresh)
        return [child.death() for child in fresh]

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
        """Hosts stop side by side; all others one after the other: the cloud goes last."""
        last = self._children[-1].program.name
        stage = next(s for s in self._programs.stages() if last in s)
        return (last,) if "cloud" in stage else stage

    async def _stop(self, child: Child) -> None:
        in_time = await child.stop(self._budget.drain_s + self._budget.program_stop_s)
        self._tell({
            "event": "stopped",
            "program": child.program.name,
            "status": child.exit_status(),
            "in_time": in_time,
        })  # fmt: skip

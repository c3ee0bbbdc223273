"""The fleets of a simulated world: production programs that are killed, and edits of offers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.decode import encode
from corekit.values import replace
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.protocol.ops import Op
from orchgpu.fleet.core.decide import STOP_AGAIN_S
from orchgpu.fleet.core.model import Memory, Offers, Rules
from orchgpu.fleet.core.pools import LATE_S_MIN, LATE_STARTS, LOST_S
from orchgpu.fleet.program import Fleet, MemoryFile
from orchgpu.ports import AnswerT
from simulator.faults.checkers import Violation
from simulator.faults.provider import NO_CAPACITY, NOTICE_S, SimProvider
from simulator.faults.requester import SimRequester


class KeptMemory(MemoryFile):
    """The memory of a fleet across its kills."""

    def __init__(self) -> None:
        super().__init__(None)
        self.kept = Memory()

    def check(self, _: Rules) -> None:
        """Do nothing: it is kept."""

    def read(self, _: Rules) -> Memory:
        return self.kept

    def keep(self, memory: Memory) -> None:
        self.kept = memory


class SimClient(SchedulerClient):
    """The scheduler's client over the simulated wire."""

    def __init__(self, requester: SimRequester, budget: Budget) -> None:
        super().__init__("127.0.0.1:1", budget=budget)
        self._requester = requester

    async def ask(self, op: Op[AnswerT]) -> AnswerT:
        return await self._requester.ask(op)


@dataclass(slots=True)
class Program:
    """One fleet program; `task` is None while it is killed."""

    memory: KeptMemory
    requester: SimRequester
    task: asyncio.Task[None] | None = None


@dataclass
class SimFleet:
    """All fleet programs of a world over one provider."""

    provider: SimProvider
    file: Path  #: of the offers
    budget: Budget
    nursery: Nursery
    new_requester: Callable[[str], SimRequester]  #: by the name of its session
    programs: list[Program] = field(default_factory=list)
    _edits: list[int] = field(default_factory=list)  #: in force; the newest, which is last, holds
    _starts: int = 0

    def start(self) -> None:
        """Start the programs."""
        self._write()
        for _ in range(self.provider.scenario.programs):
            self.programs.append(Program(KeptMemory(), self._requester()))
            self._start(self.programs[-1])

    def _requester(self) -> SimRequester:
        self._starts += 1
        return self.new_requester(f"fleet-{self._starts}")

    def _start(self, program: Program) -> None:
        client = SimClient(program.requester, self.budget)
        wall_s = self.provider.clock.wall_s
        fleet = Fleet(client, self.provider, self.file, program.memory, wall_s)
        program.task = self.nursery.start(fleet.run(self.budget.fleet_look_s), "fleet")

    # ------------------------------------------------------------------ faults

    async def inject(self, kind: str, target: int, lasts_s: float) -> None:
        """One fault, until it is repaired."""
        provider = self.provider
        group = provider.groups[target % len(provider.groups)]
        living = provider.living()
        match kind:
            case "kill fleet" | "kill fleet and its memory":
                program = self.programs[target % len(self.programs)]
                await self._kill(program, lasts_s, forget=kind != "kill fleet")
            case "provider refuses":
                await provider.hold_back(group, NO_CAPACITY, lasts_s)
            case "provider is late":
                await provider.hold_back(group, "", lasts_s)
            case "hosts never join":
                await provider.make_deaf(group, lasts_s)
            case "host is taken" | "spot notice" if living:
                machine = living[target % len(living)]
                notice = kind == "spot notice"
                await provider.take(machine, notice=notice, same_size=bool(target % 2))
            case "edit offers":
                await self._edit(target % len(provider.scenario.edits), lasts_s)

    async def _kill(self, program: Program, lasts_s: float, *, forget: bool) -> None:
        """`kill -9`, wherever it is in its step, and a start later."""
        if program.task is None:
            return
        program.task.cancel()
        program.task = None
        program.requester.disconnect()
        await asyncio.sleep(lasts_s)
        if forget and not self._in_unknown_groups():
            program.memory.kept = Memory()
        program.requester = self._requester()
        self._start(program)

    def _in_unknown_groups(self) -> bool:
        """True when there are hosts or orders that only a memory knows: it must not be lost then,
        as the documentation states."""
        offered = {one.at_port for one in self._offers().offers}
        used = {one.group for one in self.provider.machines.values()}
        return bool((used | self.provider.ordered().keys()) - offered)

    async def _edit(self, edit: int, lasts_s: float) -> None:
        self._edits.append(edit)
        self._write()
        await asyncio.sleep(lasts_s)
        self._edits.remove(edit)
        self._write()

    def _offers(self) -> Offers:
        scenario = self.provider.scenario
        edited = scenario.edits[self._edits[-1]] if self._edits else scenario.offers.offers
        return replace(scenario.offers, offers=edited)

    def _write(self) -> None:
        offers = self._offers()
        self.file.write_text(offers_text(offers))
        self.provider.checker.fleet.edited(self.provider.clock.monotonic_s(), offers)

    # ------------------------------------------------------------------ the end

    async def check_end(self) -> None:
        """Without demand every pool has its minimum in bounded time, and there is no other machine.

        Raises Violation.
        """
        provider = self.provider
        least = {one.at_port: one.min for one in provider.scenario.offers.offers if one.min}
        begin_s, bound_s = provider.clock.monotonic_s(), self._bound_s()
        while (found := (provider.ordered(), self._joined())) != (least, least):
            if provider.checker.violation is not None:
                raise provider.checker.violation
            if provider.clock.monotonic_s() > begin_s + bound_s:
                machines = list(provider.machines.values())
                raise Violation(
                    f"{bound_s:.0f} s without demand: {found} instead of {least}: {machines}"
                )
            await asyncio.sleep(10.0)

    def _joined(self) -> dict[str, int]:
        """Machines by group, as soon as all have joined."""
        machines = self.provider.machines.values()
        if any(one.host is None or one.ending for one in machines):
            return {}
        return dict(Counter(one.group for one in machines))

    def _bound_s(self) -> float:
        """The longest way to the minimum: hosts never join and their offer is left out, then hosts
        start and are idle."""
        offers = self.provider.scenario.offers
        start_s = 2 * max(one.start_s for one in offers.offers)
        late_s = max(LATE_S_MIN, LATE_STARTS * start_s)
        ends_s = LOST_S + STOP_AGAIN_S + NOTICE_S + max(one.idle_s for one in offers.offers)
        return 3 * (late_s + start_s) + offers.rules.skip_s + 2 * ends_s


def offers_text(offers: Offers) -> str:
    """The file of these offers."""
    listed = []
    for one in offers.offers:
        keys = encode(one)
        memory_mib = keys.pop("memory_mib")
        listed.append({**keys, "group": one.at_port, "memory": f"{memory_mib}MiB"})
    rules = {name: value for name, value in encode(offers.rules).items() if value is not None}
    return yaml.safe_dump({"offers": listed, **rules})

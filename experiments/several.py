"""Several experiments, each a process of its own, at the same time where they may be."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.report import ROOT
from corekit.aio.supervise import Nursery
from corekit.cli.progress import Bar
from experiments import results
from experiments.experiment import Beside, Evidence
from experiments.page import experiment_of

#: Of a simulation: it gets what the others leave.
NICE = 10
#: Experiments that mostly wait, at the same time. In a whole run they end before the simulations,
#: and each start of a local system is work that the others would measure.
WAITING_AT_ONCE, WAITING_AT_ONCE_QUICK = 1, 3
REDRAW_S = 1.0
#: Before the reason, on standard error.
FAILED = "{}: failed: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Experiments by their neighbours: simulations one after the other with all processors, some
    of those that wait beside them, and the others alone after that."""

    simulated: Sequence[str]
    waiting: Sequence[str]
    alone: Sequence[str]
    waiting_at_once: int

    @property
    def total(self) -> int:
        """The number of experiments."""
        return len(self.simulated) + len(self.waiting) + len(self.alone)


def plan(names: Sequence[str], *, quick: bool) -> Plan:
    """Each name once, in order; first, however, those that always wait, which do it longest."""
    beside = [name for name in names if experiment_of(name).has_neighbours(quick=quick)]
    beside.sort(key=lambda name: experiment_of(name).beside is not Beside.ALWAYS)
    simulated = [name for name in beside if experiment_of(name).evidence is Evidence.SIMULATED]
    return Plan(
        simulated=simulated,
        waiting=[name for name in beside if name not in simulated],
        alone=[name for name in names if name not in beside],
        waiting_at_once=WAITING_AT_ONCE_QUICK if quick else WAITING_AT_ONCE,
    )


@dataclass(kw_only=True)
class Several:
    """A run of several experiments; their results and pictures are added to a folder."""

    docs: Path
    words: Sequence[str]  #: of each one's command line
    failed: list[str] = field(default_factory=list)
    _running: list[str] = field(default_factory=list)
    _done: int = 0

    async def run(self, planned: Plan) -> None:
        """Run all; what fails is noted, and the others run."""
        began_s, bar = time.monotonic(), Bar(planned.total, quiet=False)

        async def redraw() -> None:
            while True:
                minutes = (time.monotonic() - began_s) / 60
                bar.draw(self._done, f", {minutes:.0f} min: {', '.join(self._running)}")
                await asyncio.sleep(REDRAW_S)

        async with Nursery("experiments") as nursery:
            nursery.start_eternal(redraw(), "bar")
            waiting = iter(planned.waiting)  # each of some takes the next one
            async with asyncio.TaskGroup() as group:
                group.create_task(self._in_turn(planned.simulated, bar, NICE))
                for _ in range(planned.waiting_at_once):
                    group.create_task(self._in_turn(waiting, bar))
            await self._in_turn(planned.alone, bar)
        bar.clear()

    async def _in_turn(self, names: Iterable[str], bar: Bar, nice: int = 0) -> None:
        for name in names:
            self._running.append(name)
            began_s, error = time.monotonic(), await self._one(name, nice)
            took_s = time.monotonic() - began_s
            self._running.remove(name)
            self._done += 1
            if error is not None:
                self.failed.append(name)
            outcome = f"{name}: {took_s:.0f} s" if error is None else FAILED.format(name) + error
            bar.line(f"[{self._done}/{bar.total}] {outcome}", err=error is not None)

    async def _one(self, name: str, nice: int) -> str | None:
        """Run an experiment; returns why it failed."""
        with tempfile.TemporaryDirectory(prefix="experiment-") as folder:
            command = ["nice", "-n", str(nice), sys.executable, "-m", "experiments", name]
            command += ["--no-page", "--docs", folder, *self.words]
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, stdout=asyncio.subprocess.DEVNULL, stderr=pipe
            )
            try:
                _, errors = await process.communicate()
            except BaseException:  # it stops what it started
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                await process.communicate()
                raise
            _add(Path(folder), self.docs)
        if process.returncode == 0:
            return None
        lines = errors.decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix(FAILED.format(name)) if lines else "nothing on its errors"


def _add(folder: Path, docs: Path) -> None:
    found: Mapping[str, results.Kept] = results.read(results.file_in(folder))
    file = results.file_in(docs)
    results.write(file, {**results.read(file), **found})
    for picture in folder.glob("papers/*.svg"):
        shutil.copy(picture, docs / "papers")

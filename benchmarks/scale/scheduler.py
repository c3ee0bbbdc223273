"""ssgmd with the large system in its journal: hosts, running and waiting jobs, ended ones.

Running jobs hold leases with open sessions; 3 % of all jobs wait for their tenant's quota. No host
and no orchestrator reports: the limits on their silence are those of `QUIET`.

python -m benchmarks.scale.scheduler --ready-file FILE --state FOLDER [--hosts N] [--jobs N]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.processes import program
from benchmarks.scale import values
from benchmarks.scale.generated import GeneratedSystem
from corekit.aio.process import run_program, write_ready
from corekit.budget import Budget
from corekit.ids import HostId, IdSource, JobId, SessionId
from corekit.values import Value, replace
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.access.secret import LeaseSecrets
from gpu_scheduler.daemon.app import running_daemon
from gpu_scheduler.daemon.journal.journal import Journal
from gpu_scheduler.daemon.settings import DaemonSettings
from gpu_scheduler.policy_registry import installed_policies
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol.changes import Entry, RecordWritten

_LONG_S = 1e6
QUIET = replace(
    Budget(),
    host_stale_s=_LONG_S,
    host_lost_s=_LONG_S,
    client_gone_s=_LONG_S,
    record_forget_s=_LONG_S,
)
#: Entries that are written together.
GROUP = 500
#: The journal is written and read in so many seconds, even on a busy machine.
READY_WITHIN_S = 300.0


class Core:
    """A machine whose entries are collected."""

    def __init__(self, system: GeneratedSystem) -> None:
        self._system = system
        self._machine = SchedulerMachine(
            QUIET, IdSource(1), values.PARAMETERS, installed_policies()
        )

    def entries(self) -> Iterator[Entry]:
        """The whole journal."""
        yield from self._handle(on.EpochBegan)[0]
        for number in range(self._system.hosts):
            op = values.hello(self._system, number)
            yield from self._handle(on.HostAsked, host=op.host, reply_to="", op=op)[0]
        for record in values.ended_records(self._system):
            entry = Entry(parts=(RecordWritten(record=record),))
            self._machine.apply(entry)
            yield entry
        for number in values.live_jobs(self._system):
            yield from self._live(number)

    def _live(self, number: int) -> Iterator[Entry]:
        """A job that waits, or whose session is open."""
        attempt = ops.Attempt(
            holder=JobId(self._system.job_id(number)),
            n=1,
            revision=0,
            request=values.request(self._system, number),
            handle=f"handle-{number}",
            block=values.block(self._system, number),
        )
        written, answer = self._ask(attempt)
        yield from written
        assert isinstance(answer, answers.AttemptAnswer), answer
        if answer.granted is None:
            return
        lease = answer.granted.lease
        staged = ops.StagedOp(holder=attempt.holder, lease=lease.id, connect_by_s=3600.0)
        opened = host_ops.SessionChange(
            lease=lease.id, state=host_ops.SessionState.OPENED, nonce="n"
        )
        yield from self._ask(staged)[0]
        host = HostId(lease.shares[0].host)
        yield from self._handle(on.HostAsked, host=host, reply_to="", op=opened)[0]

    def _ask(self, op: ops.Op[Value]) -> tuple[list[Entry], object]:
        return self._handle(on.Asked, session=SessionId("orchestrator"), reply_to="r", op=op)

    def _handle(self, kind: type[Any], **fields: Any) -> tuple[list[Entry], object]:
        at_s = time.time()
        decision = self._machine.handle(kind(at_s=at_s, wall_s=at_s, **fields))
        replies = [one for one in decision.actions if isinstance(one, do.Reply)]
        return list(decision.changes), replies[0].answer if replies else None


async def write(folder: Path, system: GeneratedSystem) -> None:
    """The journal of the system."""
    journal = Journal.in_folder(folder)
    journal.recover()
    try:
        group: list[Entry] = []
        for entry in chain(Core(system).entries(), [None]):
            if entry is not None:
                group.append(entry)
            if len(group) >= GROUP or entry is None:
                await journal.append(group)
                group = []
    finally:
        journal.close()


async def serve(folder: Path, system: GeneratedSystem, ready: Path) -> None:
    """Serve the system until the process is ended."""
    await write(folder, system)
    settings = DaemonSettings(state=folder, budget=QUIET, parameters=values.PARAMETERS)
    async with running_daemon(settings) as daemon:
        write_ready(ready, {"socket": daemon.socket, "http": daemon.http})
        await asyncio.Event().wait()


@contextmanager
def running(folder: Path, hosts: int, jobs: int) -> Iterator[dict[str, str]]:
    """This program as a process, for the length of the block: its endpoints."""
    sizes = ("--hosts", str(hosts), "--jobs", str(jobs), "--state", str(folder / "state"))
    module = "benchmarks.scale.scheduler"
    with program(module, folder / "ready.json", *sizes, within_s=READY_WITHIN_S) as found:
        yield found


def sizes(parser: argparse.ArgumentParser) -> None:
    """The arguments of a benchmark about the large system."""
    parser.add_argument("--hosts", type=int, default=1250, help="with 8 devices each")
    parser.add_argument("--jobs", type=int, default=100_000)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--ready-file", type=Path, required=True)
    arguments.add_argument("--state", type=Path, required=True)
    sizes(arguments)
    asked = arguments.parse_args()
    generated = values.large(time.time(), asked.hosts, asked.jobs)
    asked.state.mkdir(mode=0o700, parents=True)
    LeaseSecrets.open(asked.state)  # a journal is not opened without the key of its leases
    run_program("scheduler", serve(asked.state, generated, asked.ready_file))

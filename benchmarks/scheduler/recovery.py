"""Recovery: how long ssgmd needs to be back with 10,000 leases, beside reading and parsing alone.

    recovery_ratio   journal to state / reading the same file and json.loads of every line

The journal is the scheduler's own, one entry per grant, on devices of four quarters; in turns,
median of the rounds. `recovery_memory_mib` is what the process grew by with the state in it.

    ENGINE_recovery_ratio   the same, log to state / reading the log's items and json.loads of each

The engines are those of `--engines` (postgres, s3, dynamodb) that are there.

    python -m benchmarks.scheduler.recovery [--json] [--leases N] [--rounds N]
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.measure import resident_mib
from benchmarks.scheduler import logs
from corekit.budget import Budget
from corekit.ids import AttemptId, DeviceId, HostId, IdSource, SessionId
from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.journal.journal import Journal, JournalSettings
from gpu_scheduler.daemon.log.engines.file import NAME
from gpu_scheduler.daemon.log.registry import parse_log_address
from gpu_scheduler.model import Device, DeviceKind, Request
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.codec import VERSION

DEVICE_MIB, QUARTERS, PER_HOST = 16384, 4, 10
GROUP = 16  #: entries synced together, as when some dozen clients ask at once
TARGET = 5.0
_NOW: dict[str, Any] = {"at_s": 1.0, "wall_s": 1.7e9}


def _machine() -> SchedulerMachine:
    return SchedulerMachine(Budget(), IdSource("recovery"))


def _host(number: int) -> on.Event:
    host = HostId(f"host-{number}")
    devices = tuple(
        Device(
            id=DeviceId(f"{host}/{index}"),
            index=index,
            kind=DeviceKind.CUDA,
            model="bench",
            memory_mib=DEVICE_MIB,
        )
        for index in range(PER_HOST)
    )
    hello = host_ops.HostHello(
        host=host,
        incarnation="1",
        gateway="127.0.0.1:1",
        devices=devices,
        epoch_seen=0,
        installed=(),
        version=VERSION,
    )
    return on.HostAsked(host=host, reply_to="", op=hello, **_NOW)


def _reserve(number: int) -> on.Event:
    request = Request(memory_mib=DEVICE_MIB // QUARTERS)
    op = ops.Reserve(attempt=AttemptId(f"attempt-{number}"), request=request)
    return on.Asked(session=SessionId("bench"), reply_to="", op=op, **_NOW)


async def write(journal: Journal, leases: int) -> None:
    """The journal of a scheduler that granted so many leases."""
    machine = _machine()
    hosts = -(-leases // (QUARTERS * PER_HOST))
    events: list[on.Event] = [on.EpochBegan(**_NOW), *map(_host, range(hosts))]
    events += map(_reserve, range(leases))
    try:
        for start in range(0, len(events), GROUP):
            group = [machine.handle(event).changes for event in events[start : start + GROUP]]
            await journal.append([entry for changes in group for entry in changes])
    finally:
        journal.close()
    assert len(machine.state.leases) == leases


def recover(journal: Journal) -> SchedulerMachine:
    """What ssgmd does before it serves."""
    try:
        entries = journal.recover()
    finally:
        journal.close()
    machine = _machine()
    for entry in entries:
        machine.apply(entry)
    return machine


def parse(path: Path) -> int:
    """Reading and parsing the same file, nothing else."""
    lines = path.read_bytes().rstrip(b"\0\n").split(b"\n")
    return len([json.loads(line[line.index(b" [") :]) for line in lines if b" [" in line])


def parse_log(address: str) -> int:
    """Reading and parsing the same items, nothing else."""
    log = logs.opened(address)
    try:
        lines = [data.split(b" ", 2)[2] for _, data in log.read(2)]
    finally:
        log.close()
    return len([json.loads(line.split(b" ", 3)[3]) for line in lines])


def _in_log(address: str) -> Journal:
    where = parse_log_address(address)
    return Journal(JournalSettings(address=where, state=Path("/nonexistent"), call_s=logs.CALL_S))


def in_logs(names: Sequence[str], leases: int, rounds: int) -> Iterator[report.Figure]:
    """The figure of every engine that is there."""
    with logs.running(names) as engines:
        for engine in engines:
            address = engine.fresh()
            journal = _in_log(address)
            journal.recover()
            asyncio.run(write(journal, leases))
            ours_s, bare_s = [], []
            for _ in range(rounds):
                gc.collect()
                started_s = time.perf_counter()
                assert len(recover(_in_log(address)).state.leases) == leases
                between_s = time.perf_counter()
                parse_log(address)
                ours_s.append(between_s - started_s)
                bare_s.append(time.perf_counter() - between_s)
            ours, bare = statistics.median(ours_s), statistics.median(bare_s)
            yield report.Figure(
                f"{engine.name}_recovery_ratio",
                ours / bare,
                "ratio",
                f"reading and parsing the same items, s (ours {ours:.2f} s)",
                bare,
            )


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--leases", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engines", default="postgres,s3,dynamodb", help="of logs")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        journal = Journal.in_folder(folder)
        journal.recover()
        asyncio.run(write(journal, asked.leases))
        empty_mib = resident_mib()
        machine = recover(Journal.in_folder(folder))
        assert len(machine.state.leases) == asked.leases
        grown_mib = resident_mib() - empty_mib
        del machine
        ours_s, bare_s = [], []
        for _ in range(asked.rounds):
            gc.collect()
            started_s = time.perf_counter()
            recover(Journal.in_folder(folder))
            between_s = time.perf_counter()
            parse(folder / NAME)
            ours_s.append(between_s - started_s)
            bare_s.append(time.perf_counter() - between_s)
        size_mib = (folder / NAME).stat().st_size / 2**20
    ours, bare = statistics.median(ours_s), statistics.median(bare_s)
    figures = [
        report.Figure(
            "recovery_ratio",
            ours / bare,
            "ratio",
            f"reading and parsing the same {size_mib:.1f} MiB, s (ours {ours:.2f} s)",
            bare,
            target=f"<= {TARGET:g}",
        ),
        report.Figure("recovery_leases", asked.leases, "leases"),
        report.Figure("recovery_memory_mib", grown_mib, "MiB"),
    ]
    names = [name for name in asked.engines.split(",") if name]
    figures += in_logs(names, asked.leases, asked.rounds)
    report.show("scheduler.recovery", figures, as_json=asked.json)


if __name__ == "__main__":
    main()

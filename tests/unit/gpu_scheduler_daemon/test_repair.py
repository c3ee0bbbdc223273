"""A damaged journal is looked at and repaired: what is sound stays, nothing is given twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.ids import DeviceId, HostId, IdSource, JobId, LeaseId, SessionId
from gpu_scheduler.core import events as on
from gpu_scheduler.core.changes import Entry, LeaseChanged
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.journal import NAME, Journal
from gpu_scheduler.daemon.journal_format import HEADER, encode_group
from gpu_scheduler.daemon.repair import apply_all, check, repair
from gpu_scheduler.model import Device, DeviceKind, Hold, LeaseState, Request

NOW: dict[str, Any] = {"at_s": 0.0, "wall_s": 1_700_000_000.0}
ASKED: dict[str, Any] = {**NOW, "session": SessionId("s"), "reply_to": "1.1"}


def history() -> list[Entry]:
    """A host with two devices, two reservations, a job."""
    device = {"kind": DeviceKind.CUDA, "model": "M", "memory_mib": 1000}
    events: list[on.Event] = [
        on.EpochBegan(**NOW),
        on.HostHello(
            host=HostId("h"), incarnation="i", gateway="h:1", epoch_seen=0, installed=(),
            devices=tuple(Device(id=DeviceId(f"h/{i}"), index=i, **device) for i in range(2)),
            reply_to="1.1", **NOW,
        ),
        on.ReserveAsked(
            attempt="a", request=Request(memory_mib=900), wait=False, hold=Hold.SESSION,
            lease_s=None, **ASKED,
        ),
        on.AttemptAsked(
            holder=JobId("job-1"), n=1, revision=0, handle="", block={}, wait=False,
            request=Request(memory_mib=900), received_ago_s=0.0, **ASKED,
        ),
    ]  # fmt: skip
    machine = SchedulerMachine(Budget(), IdSource("seed"))
    return [entry for event in events for entry in machine.handle(event).changes]


def written(folder: Path, entries: Sequence[Entry]) -> Path:
    """A journal with one line per entry."""
    journal, _ = Journal.open(folder)

    async def append() -> None:
        for entry in entries:
            await journal.append([entry])

    asyncio.run(append())
    journal.close()
    return folder / NAME


def recovered(folder: Path) -> SchedulerMachine:
    journal, entries = Journal.open(folder)
    machine = SchedulerMachine(Budget(), IdSource("again"))
    apply_all(machine, entries, journal.path)
    journal.close()
    return machine


def test_a_whole_journal_is_left_alone(tmp_path: Path) -> None:
    path = written(tmp_path, history())
    before = path.read_bytes()
    checked = check(tmp_path)
    assert (checked.leases, checked.records, checked.damage) == (2, 1, None)
    assert repair(tmp_path) == checked
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == [NAME, "lock"]


def test_a_torn_tail_is_no_damage(tmp_path: Path) -> None:
    path = written(tmp_path, history())
    path.write_bytes(path.read_bytes()[:-7])
    checked = check(tmp_path)
    assert checked.damage is None
    assert checked.torn_bytes > 0
    assert "torn last entry will be dropped" in checked.sentence


@pytest.mark.parametrize("line", [0, 1, 2, 3, 4])
def test_what_lies_before_the_damage_stays_and_its_leases_end(tmp_path: Path, line: int) -> None:
    """Wherever the damage is, the next run's epoch and fences lie above all that were given."""
    entries = history()
    whole = written(tmp_path / "whole", entries)
    fences = [lease.lease.fence for lease in recovered(tmp_path / "whole").state.leases.values()]
    lines = whole.read_bytes().splitlines(keepends=True)
    damaged = tmp_path / "damaged"
    path = written(damaged, entries)
    lines[line] = lines[line][:20] + b"?" + lines[line][21:]
    path.write_bytes(b"".join(lines))
    with pytest.raises(AppError, match=f"ssgmd --state {damaged} journal repair"):
        Journal.open(damaged)
    checked = check(damaged)
    assert checked.damage is not None
    assert checked.entries == max(0, line - 1)
    repaired = repair(damaged)
    assert repaired.kept_as == str(damaged / "journal.damaged-1")
    assert (damaged / "journal.damaged-1").read_bytes() == b"".join(lines)
    state = recovered(damaged).state
    assert not state.leases
    assert state.epoch > 1
    assert state.position >= max(fences)
    assert len(state.inventory.hosts) == (line > 2)
    assert check(damaged).damage is None


def test_what_was_lost_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, history())
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b"garbage\n", *lines[3:]]))
    assert "job-1" in check(tmp_path).named_there
    assert "job-1" in repair(tmp_path).sentence


def test_a_line_that_does_not_follow_is_damage(tmp_path: Path) -> None:
    """Its checksum holds, but the lease that it changes was never granted."""
    stray = Entry(parts=(LeaseChanged(lease=LeaseId("lease-x"), state=LeaseState.ENDING),))
    entries = history()
    path = written(tmp_path, [*entries[:2], stray, *entries[2:]])
    journal, read = Journal.open(tmp_path)
    journal.close()
    with pytest.raises(AppError, match="entry 3 does not follow from those before it") as caught:
        apply_all(SchedulerMachine(Budget(), IdSource("x")), read, path)
    assert caught.value.code is ErrorCode.INTERNAL
    repaired = repair(tmp_path)
    assert repaired.entries == 2
    assert repaired.damage is not None
    assert "does not follow" in repaired.damage
    assert len(recovered(tmp_path).state.inventory.hosts) == 1


def test_each_repair_keeps_its_own_old_file(tmp_path: Path) -> None:
    path = written(tmp_path, history())
    for number in (1, 2):
        data = path.read_bytes()
        path.write_bytes(data[:60] + b"?" + data[61:])
        assert repair(tmp_path).kept_as == f"{path}.damaged-{number}"


def test_nothing_is_repaired_under_a_running_daemon_or_of_another_version(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="no journal in") as caught:
        check(tmp_path)
    assert caught.value.code is ErrorCode.NOT_FOUND
    journal, _ = Journal.open(tmp_path)
    with pytest.raises(AppError, match="another ssgmd runs") as caught:
        repair(tmp_path)
    assert caught.value.code is ErrorCode.CONFLICT
    journal.close()
    for body, said in ((b'{"journal":"ssgmd","version":9}', "version"), (HEADER, "cannot read")):
        more = encode_group(b'[[["New",{}]]]') if body is HEADER else b""
        (tmp_path / NAME).write_bytes(encode_group(body) + more)
        with pytest.raises(AppError, match=said):
            repair(tmp_path)

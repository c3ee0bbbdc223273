"""Check and repair of a damaged journal: undamaged entries stay, nothing is granted twice."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.ids import IdSource, LeaseId
from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.core.replay.snapshot import snapshot
from gpu_scheduler.daemon.journal.format import body_of
from gpu_scheduler.daemon.journal.repair import apply_all
from gpu_scheduler.daemon.log.engines.file import NAME, FileLog
from gpu_scheduler.daemon.log.item import RUN_LENGTH, encode_items
from gpu_scheduler.daemon.log.sync_marker import NAME as MARKER_NAME
from gpu_scheduler.model import LeaseState
from gpu_scheduler.parameters import Parameters
from gpu_scheduler.protocol.changes import (
    Entry,
    LeaseChanged,
    ParameterSet,
    decode_entry,
    encode_entry,
)
from tests.unit.gpu_scheduler_daemon.journals import (
    NOW,
    check,
    compact,
    history,
    lines_of,
    opened,
    repair,
    written_as,
)


def written(folder: Path, entries: Sequence[Entry]) -> Path:
    """A journal with one line per entry."""
    journal, _ = opened(folder)

    async def append() -> None:
        for entry in entries:
            await journal.append([entry])

    asyncio.run(append())
    journal.close()
    return folder / NAME


def recovered(folder: Path) -> SchedulerMachine:
    journal, entries = opened(folder)
    machine = SchedulerMachine(Budget(), IdSource("again"))
    apply_all(machine, entries, journal.name)
    journal.close()
    return machine


def test_a_whole_journal_is_left_alone(tmp_path: Path) -> None:
    path = written(tmp_path, history())
    before = path.read_bytes()
    checked = check(tmp_path)
    assert (checked.leases, checked.records, checked.damage) == (2, 1, None)
    assert repair(tmp_path) == checked
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == [NAME, MARKER_NAME]


def test_a_torn_tail_is_not_damage(tmp_path: Path) -> None:
    path = written(tmp_path, history())
    with path.open("ab") as file:
        file.write(b"1234abcd 1234")
    checked = check(tmp_path)
    assert checked.damage is None
    assert checked.torn_bytes > 0
    assert "torn last entry will be dropped" in checked.sentence


@pytest.mark.parametrize("line", [0, 1, 2, 3, 4])
def test_a_repair_keeps_everything_before_the_damage_and_ends_its_leases(
    tmp_path: Path, line: int
) -> None:
    """Wherever the damage is, the next run's epoch and fences lie above all that were given."""
    entries = history()
    whole = written(tmp_path / "whole", entries)
    fences = [lease.lease.fence for lease in recovered(tmp_path / "whole").state.leases.values()]
    lines = lines_of(whole.read_bytes())
    damaged = tmp_path / "damaged"
    path = written(damaged, entries)
    lines[line] = lines[line][:20] + b"?" + lines[line][21:]
    path.write_bytes(b"".join(lines))
    with pytest.raises(AppError, match=f"ssgmd --state {damaged} journal repair"):
        opened(damaged)
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


@pytest.mark.parametrize("compacted", [False, True], ids=["as written", "compacted"])
def test_a_repair_never_sets_the_epoch_back(tmp_path: Path, compacted: bool) -> None:
    """A snapshot line stands for all lines before it, so its loss is the loss of all of them."""
    epochs = 300
    journal, _ = opened(tmp_path)
    machine = SchedulerMachine(Budget(), IdSource("seed"))

    async def run() -> None:
        for _ in range(epochs):
            await journal.append(machine.handle(on.EpochBegan(**NOW)).changes)
        if compacted:
            await compact(journal, machine.parts)

    asyncio.run(run())
    assert journal.figures.compactions == compacted
    journal.close()
    lines = lines_of((tmp_path / NAME).read_bytes())
    damaged = 0 if compacted else 1  # the snapshot, or the first epoch
    lines[damaged] = lines[damaged][:20] + b"?" + lines[damaged][21:]
    (tmp_path / NAME).write_bytes(b"".join(lines))
    assert repair(tmp_path).entries == 0
    assert recovered(tmp_path).state.epoch > machine.state.epoch


def test_leases_and_jobs_in_the_damaged_part_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, history())
    lines = lines_of(path.read_bytes())
    path.write_bytes(b"".join([*lines[:3], b"garbage\n", *lines[3:]]))
    assert "job-1" in check(tmp_path).named_there
    assert "job-1" in repair(tmp_path).sentence


def test_a_line_that_does_not_follow_is_damage(tmp_path: Path) -> None:
    """Its checksum holds, but the lease that it changes was never granted."""
    stray = Entry(parts=(LeaseChanged(lease=LeaseId("lease-x"), state=LeaseState.ENDING),))
    entries = history()
    path = written(tmp_path, [*entries[:2], stray, *entries[2:]])
    journal, read = opened(tmp_path)
    journal.close()
    with pytest.raises(AppError, match="entry 3 does not follow from those before it") as caught:
        apply_all(SchedulerMachine(Budget(), IdSource("x")), read, str(path))
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


def test_nothing_is_repaired_without_a_journal_or_of_another_version(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="holds no journal") as caught:
        check(tmp_path)
    assert caught.value.code is ErrorCode.NOT_FOUND
    newer = b'00000000 {"journal":"ssgmd","version":9}'
    sealed = b"%08x %s\n" % (zlib.crc32(newer[9:]), newer[9:])
    log = FileLog(tmp_path)
    assert log.put_if_absent(1, encode_items(sealed, "0" * RUN_LENGTH, 2**20)[0])
    log.close()
    with pytest.raises(AppError, match="version"):
        repair(tmp_path)
    written_as(tmp_path / "unreadable", b'[[["New",{}]]]')
    with pytest.raises(AppError, match="cannot read"):
        repair(tmp_path / "unreadable")


def test_a_missing_end_is_damage_and_counted_exactly(tmp_path: Path) -> None:
    """The disk gave an older file: no byte of it is wrong, but two groups are missing."""
    path = written(tmp_path, history())
    fences = [lease.lease.fence for lease in recovered(tmp_path).state.leases.values()]
    lines = lines_of(path.read_bytes())
    path.write_bytes(b"".join(lines[:-2]))
    with pytest.raises(AppError, match=r"items 4 to 5 are missing, synced before"):
        opened(tmp_path)
    checked = check(tmp_path)
    assert (checked.entries, checked.lost_lines, checked.damaged_bytes) == (2, 2, 0)
    assert "2 synced groups of entries are lost" in checked.sentence
    repair(tmp_path)
    state = recovered(tmp_path).state
    assert state.epoch > 1
    assert state.position > max(fences)


def test_after_a_missing_line_the_whole_lines_are_counted(tmp_path: Path) -> None:
    path = written(tmp_path, history())
    lines = lines_of(path.read_bytes())
    path.write_bytes(b"".join([*lines[:3], *lines[4:]]))
    checked = check(tmp_path)
    assert checked.damage is not None
    assert "item 4" in checked.damage
    assert (checked.entries, checked.lost_lines) == (2, 1)
    assert "job-1" in checked.named_there


@pytest.mark.parametrize("left", [b"", None], ids=["empty", "deleted"])
def test_an_empty_journal_is_damage_if_lines_were_synced(
    tmp_path: Path, left: bytes | None
) -> None:
    path = written(tmp_path, history())
    path.unlink() if left is None else path.write_bytes(left)
    with pytest.raises(AppError, match="it is empty, but 5 items were synced"):
        opened(tmp_path)
    assert check(tmp_path).lost_lines is None
    assert repair(tmp_path).damage is not None
    assert recovered(tmp_path).state.epoch > 4


def test_a_repair_without_the_marker_keeps_every_entry(tmp_path: Path) -> None:
    """Its end may be missing: epoch and fences are set far above it."""
    written(tmp_path, history())
    before = recovered(tmp_path).state
    (tmp_path / MARKER_NAME).unlink()
    checked = check(tmp_path)
    assert (checked.entries, checked.lost_lines, checked.damaged_bytes) == (4, None, 0)
    assert "is unknown" in checked.sentence
    ended = repair(tmp_path)
    assert set(ended.live) == set(before.leases)
    after = recovered(tmp_path).state
    assert not after.leases
    assert after.records.keys() == before.records.keys()
    assert after.position > before.position + 10**9
    assert after.epoch > before.epoch + 10**9
    assert check(tmp_path).damage is None


def test_a_parameter_of_a_newer_version_is_kept_and_no_lease_ends(tmp_path: Path) -> None:
    newer = Entry(
        parts=(
            ParameterSet(name="policy", value="lottery"),
            ParameterSet(name="colour", value="blue"),
            ParameterSet(name="bypass_max", value=3),
        )
    )
    path = written(tmp_path, [*history(), newer])
    before = path.read_bytes()
    checked = repair(tmp_path)
    assert (checked.damage, checked.leases) == (None, 2)
    assert set(checked.ignored) == {"policy", "colour"}
    assert path.read_bytes() == before
    state = recovered(tmp_path).state
    assert state.parameters == Parameters(bypass_max=3)
    again = SchedulerMachine(Budget(), IdSource("snapshot"))
    for entry in snapshot(state):
        again.apply(decode_entry(encode_entry(entry)))
    assert again.state.overrides == {"policy": "lottery", "colour": "blue", "bypass_max": 3}


def test_keys_and_changes_of_a_newer_version_are_ignored_and_named(tmp_path: Path) -> None:
    texts = [json.loads(encode_entry(entry)) for entry in history()]
    texts[2][0][1]["lease"]["mood"] = "good"
    texts[3].append(["LeasePainted", {"lease": "x", "ignorable": True}])
    path = written_as(tmp_path, *map(group_of, texts))
    checked = check(tmp_path)
    assert (checked.damage, checked.leases) == (None, 2)
    assert set(checked.ignored) == {"lease_granted.lease.mood", "LeasePainted"}
    state = recovered(tmp_path).state
    assert [entry.name for entry in state.unknown] == ["LeasePainted"]
    assert encode_entry(snapshot(state)[0]).count(b"LeasePainted") == 1
    assert repair(tmp_path).damage is None
    assert path.exists()


@pytest.mark.parametrize(
    ("name", "fields"),
    [("LeasePainted", {"lease": "x"}), ("lease_changed", {"lease": "x", "state": "PAINTED"})],
)
def test_an_unreadable_entry_names_the_version_that_wrote_it(
    tmp_path: Path, name: str, fields: dict[str, Any]
) -> None:
    texts = [json.loads(encode_entry(entry)) for entry in history()]
    texts[0][0][1]["build"] = "7.7.7"
    path = written_as(tmp_path, *map(group_of, [*texts, [[name, fields]]]))
    before = path.read_bytes()
    for act in (opened, check, repair):
        with pytest.raises(AppError, match=r"version 7\.7\.7 of ssgmd.*do not repair") as caught:
            act(tmp_path)
        assert "damaged" not in caught.value.message
    assert path.read_bytes() == before


def test_an_unreadable_entry_names_the_build_whose_run_began_in_its_group(tmp_path: Path) -> None:
    """The start of a run and its first changes may be synced as one group."""
    texts = [json.loads(encode_entry(entry)) for entry in history()]
    texts[0][0][1]["build"] = "7.7.7"
    first = json.dumps(texts[0], separators=(",", ":")).encode()
    group = body_of([first, b'[["LeasePainted",{"lease":"x"}]]'])
    written_as(tmp_path, group, wrote="6.6.6")
    with pytest.raises(AppError, match=r"version 7\.7\.7 of ssgmd"):
        opened(tmp_path)


def group_of(texts: Any) -> bytes:
    """A group of one entry, as some other build wrote it."""
    return body_of([json.dumps(texts, separators=(",", ":")).encode()])

"""`ssgmd journal check|repair|backup|migrate` on a log of every engine."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from corekit.budget import Budget
from corekit.ids import IdSource
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.cli import main
from gpu_scheduler.daemon.journal.journal import Journal, JournalSettings
from gpu_scheduler.daemon.log.engines.file import lock_folder
from gpu_scheduler.daemon.log.registry import parse_log_address
from gpu_scheduler.daemon.log.writer import LogSuperseded
from gpu_scheduler.protocol.changes import Entry, encode_parts
from tests.log_engines import CALL_S, EngineUnderTest
from tests.unit.gpu_scheduler_daemon.journals import history
from tests.unit.gpu_scheduler_daemon.journals import opened as in_folder


def ssgmd(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="ssgmd", catch_exceptions=False)


def at(address: str, state: Path) -> tuple[str, ...]:
    """The options that name a journal; a file is in its state folder."""
    file = address.removeprefix("file://")
    return ("--state", file) if file != address else ("--state", str(state), "--log", address)


def opened(address: str, state: Path) -> tuple[Journal, tuple[Entry, ...]]:
    parsed = parse_log_address(address)
    journal = Journal(JournalSettings(address=parsed, state=state, call_s=CALL_S))
    return journal, journal.recover()


def append(journal: Journal, *entries: Entry) -> None:
    async def run() -> None:
        for entry in entries:
            await journal.append([entry])

    asyncio.run(run())


def machine_after(entries: tuple[Entry, ...]) -> SchedulerMachine:
    machine = SchedulerMachine(Budget(), IdSource("seed"))
    for entry in entries:
        machine.apply(entry)
    return machine


def state_after(entries: tuple[Entry, ...]) -> bytes:
    return encode_parts(machine_after(entries).parts())


@pytest.fixture
def log(engine: EngineUnderTest, tmp_path: Path) -> str:
    """A log with a host, a reservation and a job; its writer has ended."""
    address = engine.fresh()
    journal, _ = opened(address, tmp_path)
    append(journal, *history())
    journal.close()
    return address


def test_check_reports_a_sound_log_and_an_empty_one(
    log: str, engine: EngineUnderTest, tmp_path: Path
) -> None:
    done = ssgmd(*at(log, tmp_path), "journal", "check", "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert (found["leases"], found["records"], found["damage"]) == (2, 1, None)
    assert found["items"] == len(history()) + 1
    done = ssgmd(*at(engine.fresh(), tmp_path), "journal", "check")
    assert done.exit_code == 3
    assert "holds no journal" in done.stderr


def test_a_damaged_log_is_repaired(log: str, engine: EngineUnderTest, tmp_path: Path) -> None:
    """Everything before the damage stays, but its leases end; the daemon starts from it."""
    seq = len(history()) + 2
    port = engine.open(log)
    assert port.put_if_absent(seq, b"0123456789abcdef 0 00000000 x 3 [] lease-lost")
    assert port.put_if_absent(seq + 1, b"fedcba9876543210 0 more")
    where = (*at(log, tmp_path), "journal")
    checked = ssgmd(*where, "check", "--json")
    assert checked.exit_code == 1
    assert json.loads(checked.stdout)["lost_lines"] == 2
    repaired = ssgmd(*where, "repair", "--json")
    assert repaired.exit_code == 0, repaired.stderr
    found = json.loads(repaired.stdout)
    assert len(found["live"]) == 2
    assert b"lease-lost" in Path(found["kept_as"]).read_bytes()
    assert ssgmd(*where, "check").exit_code == 0
    journal, entries = opened(log, tmp_path)
    machine = machine_after(entries)
    assert not machine.state.leases
    assert machine.state.epoch >= 3
    append(journal, Entry(parts=()))
    journal.close()
    assert "undamaged" in ssgmd(*where, "repair").stdout


def test_a_damaged_snapshot_is_repaired(engine: EngineUnderTest, tmp_path: Path) -> None:
    address = engine.fresh()
    port = engine.open(address)
    port.put_if_absent(1, b"0123456789abcdef 0 x")
    port.put_snapshot(1, b"no snapshot")
    where = (*at(address, tmp_path), "journal")
    assert ssgmd(*where, "check").exit_code == 1
    repaired = ssgmd(*where, "repair", "--json")
    assert repaired.exit_code == 0, repaired.stderr
    assert json.loads(repaired.stdout)["lost_lines"] is None
    journal, entries = opened(address, tmp_path)
    assert machine_after(entries).state.epoch > 10**9
    append(journal, Entry(parts=()))
    journal.close()


def test_a_backup_beside_a_running_daemon_is_a_state_folder(log: str, tmp_path: Path) -> None:
    running, entries = opened(log, tmp_path)
    key = Path(at(log, tmp_path)[1]) / "master.key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    copy = tmp_path / "copy"
    done = ssgmd(*at(log, tmp_path), "journal", "backup", str(copy), "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["beside"] == ["master.key"]
    assert (copy / "master.key").stat().st_mode & 0o777 == 0o600
    append(running, Entry(parts=()))  # it was not disturbed
    running.close()
    journal, copied = in_folder(copy)
    journal.close()
    assert state_after(copied) == state_after(entries)
    again = ssgmd(*at(log, tmp_path), "journal", "backup", str(copy))
    assert again.exit_code == 4


def test_a_backup_without_the_master_key_names_what_a_start_needs(log: str, tmp_path: Path) -> None:
    key = tmp_path / "elsewhere.key"
    key.write_bytes(b"k" * 32)
    given = (*at(log, tmp_path), "--master-key", str(key), "journal", "backup")
    done = ssgmd(*given, str(tmp_path / "copy"))
    assert done.exit_code == 0, done.stderr
    assert f"not in the copy: start with --master-key {key}" in done.stderr


def test_a_journal_moves_into_a_log_and_back(engine: EngineUnderTest, tmp_path: Path) -> None:
    folder = tmp_path / "one"
    journal, _ = in_folder(folder)
    append(journal, *history())
    daemon = lock_folder(folder)
    busy = ssgmd("--state", str(folder), "journal", "migrate", engine.fresh())
    assert busy.exit_code == 4  # a daemon has the folder
    os.close(daemon)
    journal.close()
    address = engine.fresh()
    done = ssgmd("--state", str(folder), "journal", "migrate", address)
    assert done.exit_code == 0, done.stderr
    in_log, entries = opened(address, tmp_path)
    assert state_after(entries) == state_after(tuple(history()))
    append(in_log, Entry(parts=()))
    taken = ssgmd("--state", str(folder), "journal", "migrate", address)
    assert taken.exit_code == 4
    target = f"file://{tmp_path}/two"
    back = ssgmd(*at(address, tmp_path), "journal", "migrate", target)
    assert back.exit_code == 0, back.stderr
    with pytest.raises(LogSuperseded):  # what still wrote to the old place ends
        append(in_log, Entry(parts=()))
    in_log.close()
    journal, copied = in_folder(tmp_path / "two")
    journal.close()
    assert state_after(copied) == state_after(tuple(history()))


def test_a_log_moves_into_another_log(log: str, engine: EngineUnderTest, tmp_path: Path) -> None:
    target = engine.fresh()
    done = ssgmd(*at(log, tmp_path), "journal", "migrate", target, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    names = [address.removeprefix("file://") for address in (log, target)]
    if engine.name == "file":
        names = [f"{name}/journal" for name in names]
    assert [found["source"], found["target"], found["leases"]] == [*names, 2]
    journal, entries = opened(target, tmp_path)
    append(journal, Entry(parts=()))
    journal.close()
    assert state_after(entries) == state_after(tuple(history()))

"""`ssgmd journal backup` and `migrate` of a journal file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from corekit.budget import Budget
from corekit.errors import AppError
from corekit.ids import IdSource
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.daemon.cli import main
from gpu_scheduler.daemon.journal.transfer import state_of, whole_journal
from gpu_scheduler.daemon.log.engines.file import NAME, FileLog
from gpu_scheduler.daemon.log.sync_marker import NAME as MARKER_NAME
from gpu_scheduler.protocol.changes import Entry
from tests.unit.gpu_scheduler_daemon.journals import compact, history, opened


def ssgmd(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="ssgmd", catch_exceptions=False)


def state_in(folder: Path) -> bytes:
    return state_of(whole_journal(FileLog(folder), str(folder / NAME)))


def test_a_backup_beside_a_running_daemon_holds_all_that_was_answered(tmp_path: Path) -> None:
    """Before and after a compaction, and with a line that is being written now."""
    state, machine = tmp_path / "state", SchedulerMachine(Budget(), IdSource("seed"))
    journal, _ = opened(state)

    async def append(entry: Entry) -> None:
        await journal.append([entry])

    try:
        for number, entry in enumerate(history()):
            machine.apply(entry)
            asyncio.run(append(entry))
            copy = tmp_path / str(number)
            assert ssgmd("--state", str(state), "journal", "backup", str(copy)).exit_code == 0
            backup, entries = opened(copy)
            backup.close()
            assert entries == tuple(history()[: number + 1])
        asyncio.run(compact(journal, machine.parts))
        with (state / NAME).open("r+b") as file:
            file.seek(len((state / NAME).read_bytes().rstrip(b"\0")))
            file.write(b"0123456789abcdef half a line")
        done = ssgmd("--state", str(state), "journal", "backup", str(tmp_path / "c"), "--json")
        assert json.loads(done.stdout)["leases"] == 2
    finally:
        journal.close()
    assert state_in(tmp_path / "c") == state_in(state)


def test_a_copy_needs_a_whole_journal(tmp_path: Path) -> None:
    state = tmp_path / "state"
    opened(state)[0].close()
    marker = (state / MARKER_NAME).read_bytes()
    (state / MARKER_NAME).unlink()
    with pytest.raises(AppError, match="is missing"):
        state_in(state)
    (state / MARKER_NAME).write_bytes(marker)
    done = ssgmd("--state", str(tmp_path / "none"), "journal", "backup", str(tmp_path / "b"))
    assert done.exit_code == 3
    assert not (tmp_path / "b").exists()
    done = ssgmd("--state", str(state), "journal", "backup", str(state))
    assert done.exit_code == 4


def test_a_journal_moves_to_another_folder(tmp_path: Path) -> None:
    state, target = tmp_path / "state", tmp_path / "target"
    opened(state)[0].close()
    done = ssgmd("--state", str(state), "journal", "migrate", f"file://{target}", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["target"] == str(target / NAME)
    assert ssgmd("--state", str(target), "journal", "check").exit_code == 0
    wrong = ssgmd("--state", str(state), "--log", f"file://{target}", "journal", "check")
    assert wrong.exit_code == 2
    assert f"--state {target}" in wrong.stderr

"""The folder of a local system: its lock, its record."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from orchgpu.local.home import Home, ProcessRecord, default_home
from orchgpu.local.system import running_system, stop_system
from tests.local_systems import system_record

SYSTEM = system_record(
    processes=(ProcessRecord(name="cloud", pid=4, birth="5", address=None, log="/x"),)
)


def created(path: Path) -> Home:
    home = Home(path)
    home.create()
    return home


def test_a_folder_holds_secrets_and_is_private(tmp_path: Path) -> None:
    home = created(tmp_path / "home")
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o700


def test_one_supervisor_per_folder(tmp_path: Path) -> None:
    home = created(tmp_path)
    with home.lock():
        assert home.supervised()
        with pytest.raises(AppError) as refused:
            home.lock()
        assert refused.value.code is ErrorCode.CONFLICT
    assert not home.supervised()


def test_a_record_is_read_only_while_its_supervisor_lives(tmp_path: Path) -> None:
    home = created(tmp_path)
    home.write_system(SYSTEM)
    assert home.read_system() is None  # left by one that was killed
    with home.lock():
        assert home.read_system() == SYSTEM
    assert stop_system(home) is False
    assert not home.system_file.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"surprise": true}'])
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    home = created(tmp_path)
    home.system_file.write_text(text)
    with home.lock(), pytest.raises(AppError) as refused:
        home.read_system()
    assert refused.value.code is ErrorCode.INVALID
    assert "system.json" in refused.value.message


def test_a_secret_is_private_whatever_a_killed_supervisor_left(tmp_path: Path) -> None:
    home = created(tmp_path)
    left = home.system_file.with_name(f"{home.system_file.name}.{os.getpid()}.new")
    left.touch(mode=0o644)
    home.write_system(replace(SYSTEM, secret_key="s"))
    assert stat.S_IMODE(home.system_file.stat().st_mode) == 0o600
    assert not left.exists()


def test_a_state_of_a_newer_version_is_kept(tmp_path: Path) -> None:
    home = created(tmp_path)
    newer = replace(SYSTEM, processes=(replace(SYSTEM.processes[0], state="hibernating"),))
    home.write_system(newer)
    with home.lock():
        assert home.read_system() == newer


def test_without_a_system_the_message_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="orchgpu up") as refused:
        running_system(Home(tmp_path))
    assert refused.value.code is ErrorCode.UNAVAILABLE


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(AppError) as refused:
        Home(tmp_path / "taken").create()
    assert refused.value.code is ErrorCode.INVALID


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_home().path == tmp_path / ".orchgpu"
    monkeypatch.setenv("ORCHGPU_HOME", str(tmp_path / "else"))
    assert default_home().path == tmp_path / "else"

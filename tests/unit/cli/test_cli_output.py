"""Where the output goes: a reader that goes away, a full disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from corekit.errors import EXIT_STATUS, ErrorCode
from orchgpu.cli.main import BROKEN_PIPE_STATUS
from orchgpu.cli.output import ReaderGone, pause

FULL = Path("/dev/full")
ORCHGPU = [sys.executable, "-m", "orchgpu"]


def ended(arguments: list[str], folder: Path, stdout: IO[bytes] | int) -> tuple[int, str]:
    """Status and standard error of a command that writes there."""
    done = subprocess.run(
        [*ORCHGPU, *arguments], cwd=folder, stdout=stdout, stderr=subprocess.PIPE, text=True,
        timeout=120, check=False, env={**os.environ, "ORCHGPU_HOME": str(folder / "home")},
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("arguments", [["config", "show"], ["--help"], ["fdl", "explain"]])
def test_a_reader_that_went_away_ends_a_command_with_141(
    arguments: list[str], tmp_path: Path
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert ended(arguments, tmp_path, writing) == (BROKEN_PIPE_STATUS, "")
    finally:
        os.close(writing)


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "arguments", [["config", "show"], ["--help"], ["config", "show", "--json"]]
)
def test_a_full_disk_ends_a_command_with_one_line(arguments: list[str], tmp_path: Path) -> None:
    with FULL.open("wb") as full:
        status, said = ended(arguments, tmp_path, full)
    assert status == EXIT_STATUS[ErrorCode.EXHAUSTED]
    assert said == "orchgpu: cannot write the output: No space left on device\n"


def test_a_failure_whose_line_cannot_be_written_keeps_its_status(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*ORCHGPU, "status"], cwd=tmp_path, stdout=writing, stderr=writing, timeout=120,
        check=False, env={**os.environ, "ORCHGPU_HOME": str(tmp_path / "home")},
    )  # fmt: skip
    os.close(writing)
    assert done.returncode == BROKEN_PIPE_STATUS


def test_a_pause_ends_when_the_reader_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        pause(0.0)  # somebody reads
        os.close(reading)
        with pytest.raises(ReaderGone):
            pause(3600.0)


def test_a_pause_needs_no_file_to_write_to(capsys: pytest.CaptureFixture[str]) -> None:
    pause(0.0)
    assert capsys.readouterr().out == ""


def test_following_a_log_ends_when_the_reader_goes_away_though_nothing_is_written(
    tmp_path: Path,
) -> None:
    logs = tmp_path / "home" / "logs"
    logs.mkdir(parents=True)
    (logs / "cloud.log").write_text("one\n")
    following = subprocess.Popen(
        [*ORCHGPU, "logs", "-f"], cwd=tmp_path, stdout=subprocess.PIPE,
        env={**os.environ, "ORCHGPU_HOME": str(tmp_path / "home")},
    )  # fmt: skip
    try:
        assert following.stdout is not None
        assert following.stdout.readline() == b"cloud | one\n"
        following.stdout.close()
        assert following.wait(120) == BROKEN_PIPE_STATUS
    finally:
        following.kill()
        following.wait()

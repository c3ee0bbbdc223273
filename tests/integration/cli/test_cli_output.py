"""Lost output: a closed pipe, a full disk."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import IO

import pytest

from corekit.aio.output import BROKEN_PIPE_STATUS, UNWRITABLE_STATUS, ReaderGone, pause
from corekit.cli.text import cells

FULL = Path("/dev/full")
ORCHGPU = [sys.executable, "-m", "orchgpu"]


def ended(arguments: list[str], folder: Path, stdout: IO[bytes] | int) -> tuple[int, str]:
    """Status and standard error of a command that writes there."""
    done = subprocess.run(
        [*ORCHGPU, *arguments],
        cwd=folder,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "ORCHGPU_HOME": str(folder / "home")},
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("arguments", [["config", "show"], ["--help"], ["fdl", "explain"]])
def test_a_closed_pipe_ends_a_command_with_141(arguments: list[str], tmp_path: Path) -> None:
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
    assert status == UNWRITABLE_STATUS
    assert said == "orchgpu: cannot write the output: No space left on device\n"


def test_a_failure_whose_line_cannot_be_written_keeps_its_status(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*ORCHGPU, "status"],
        cwd=tmp_path,
        stdout=writing,
        stderr=writing,
        timeout=120,
        check=False,
        env={**os.environ, "ORCHGPU_HOME": str(tmp_path / "home")},
    )
    os.close(writing)
    assert done.returncode == BROKEN_PIPE_STATUS


@pytest.mark.parametrize(
    ("closed", "commands"),
    [
        (">&-", {"config show": 0, "--help": 0}),
        ("2>&-", {"status": 8, "nonsense": 2}),
        (">&- 2>&-", {"config show": 0, "status": 8, "nonsense": 2, "--help": 0}),
    ],
)
def test_a_stream_closed_from_the_start_is_ignored(
    closed: str, commands: dict[str, int], tmp_path: Path
) -> None:
    """The one to which the command would write, and both."""
    environ = {**os.environ, "ORCHGPU_HOME": str(tmp_path / "home")}
    for command, status in commands.items():
        line = f"{sys.executable} -m orchgpu {command} {closed}"
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=environ,
            cwd=tmp_path,
        )
        assert (done.returncode, "Traceback" in done.stderr) == (status, False)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_table_is_as_wide_as_a_real_terminal_allows(columns: int, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        with os.fdopen(theirs, "wb") as output:
            done = subprocess.run(
                [*ORCHGPU, "config", "show"],
                cwd=tmp_path,
                stdout=output,
                timeout=120,
                check=False,
                env={**environ, "ORCHGPU_HOME": str(tmp_path / ("home" * 40)), "NO_COLOR": "1"},
            )
        shown = terminal.read(1 << 16).decode().splitlines()
    assert done.returncode == 0
    assert shown[0].startswith("SETTING")
    assert "…" in shown[1]  # the long name of the folder
    assert max(map(cells, shown)) <= columns


def test_a_log_is_as_wide_as_a_real_terminal_allows(tmp_path: Path) -> None:
    logs = tmp_path / "home" / "logs"
    logs.mkdir(parents=True)
    (logs / "cloud.log").write_text(" ".join(["word"] * 60) + "\n")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        with os.fdopen(theirs, "wb") as output:
            done = subprocess.run(
                [*ORCHGPU, "logs"],
                cwd=tmp_path,
                stdout=output,
                timeout=120,
                check=False,
                env={**environ, "ORCHGPU_HOME": str(tmp_path / "home")},
            )
        shown = terminal.read(1 << 16).decode().splitlines()
    assert done.returncode == 0
    assert shown[0].startswith("cloud | word word")
    assert max(map(cells, shown)) <= 60
    assert {line[:8] for line in shown[1:]} == {" " * 8}
    assert " ".join(shown).split().count("word") == 60


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
        [*ORCHGPU, "logs", "-f"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        env={**os.environ, "ORCHGPU_HOME": str(tmp_path / "home")},
    )
    try:
        assert following.stdout is not None
        assert following.stdout.readline() == b"cloud | one\n"
        following.stdout.close()
        assert following.wait(120) == BROKEN_PIPE_STATUS
    finally:
        following.kill()
        following.wait()

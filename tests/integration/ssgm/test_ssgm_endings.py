"""Ends of `ssgm` and of the daemons' commands: wrong ids, a full disk, a closed pipe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.ssgm.conftest import Lab

UNKNOWN = "lease-000000000000"


@pytest.mark.parametrize("op", ["renew", "resize", "transfer", "dealloc"])
def test_a_malformed_lease_id_is_wrong_input_and_an_ended_lease_is_not_found(
    lab: Lab, op: str
) -> None:
    more = {"resize": ["40"], "transfer": ["session-x"]}.get(op, [])
    wrong = lab.ssgm(op, "nope", *more)
    assert (wrong.returncode, "is not a lease" in wrong.stderr) == (2, True)
    gone = lab.ssgm(op, UNKNOWN, *more)
    if op == "dealloc":
        assert gone.returncode == 0
        assert "is released" not in gone.stdout
        assert "it has ended, or never existed" in gone.stdout
    else:
        assert (gone.returncode, "is over" in gone.stderr) == (3, True)


@pytest.mark.parametrize("command", [["hosts"], ["hosts", "--json"], ["get"]])
def test_a_full_disk_is_reported_in_one_line(lab: Lab, command: list[str]) -> None:
    arguments = [sys.executable, "-m", "gpu_scheduler.client", *command]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*arguments, "--scheduler", lab.scheduler],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 74
    assert done.stderr == "ssgm: cannot write the output: No space left on device\n"


def test_a_reader_that_went_away_ends_it_quietly(lab: Lab) -> None:
    arguments = [sys.executable, "-m", "gpu_scheduler.client", "get", "--scheduler", lab.scheduler]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        program.stdout.close()
        assert program.stderr.read() == b""
        assert program.wait(60) == 141


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("gpu_scheduler.daemon", "ssgmd"),
        ("gpu_scheduler.monitor", "ssgm-monitor"),
        ("remote_gpu.host", "gpud"),
    ],
)
def test_a_daemon_describes_itself(module: str, name: str) -> None:
    for flag, said in (("-h", "Usage: "), ("--version", f"{name}, version ")):
        done = subprocess.run(
            [sys.executable, "-m", module, flag],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(said)
        assert "…" not in done.stdout.partition("Commands:")[2]
        assert "...\n" not in done.stdout.partition("Commands:")[2]


@pytest.mark.parametrize(
    "words",
    [
        ["daemon", "--help"],
        ["daemon", "--state", "{state}", "keys", "list", "--json"],
        ["daemon", "--state", "{state}", "config", "show"],
        ["monitor", "--version"],
    ],
    ids=" ".join,
)
def test_a_daemon_ends_by_its_output_as_every_other_command(
    words: list[str], tmp_path: Path
) -> None:
    program = {"daemon": "ssgmd", "monitor": "ssgm-monitor"}[words[0]]
    arguments = [word.format(state=tmp_path) for word in words[1:]]
    command = [sys.executable, "-m", f"gpu_scheduler.{words[0]}", *arguments]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    said = f"{program}: cannot write the output: No space left on device\n"
    assert (done.returncode, done.stderr) == (74, said)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as closed:
        assert closed.stdout is not None
        assert closed.stderr is not None
        closed.stdout.close()
        assert (closed.stderr.read(), closed.wait(60)) == (b"", 141)


@pytest.mark.parametrize("group", [[], ["keys"], ["journal"], ["config"]], ids=str)
def test_short_helps_are_whole(group: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpu_scheduler.daemon", *group, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "", "COLUMNS": "80"},
    )
    assert done.returncode == 0
    assert "...\n" not in done.stdout.partition("Commands:")[2] + "\n"

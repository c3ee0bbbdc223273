"""docs/tutorial.md, executed line by line: each command prints what the page shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import weather

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"
_BLOCK = re.compile(r"^```(?P<info>.*)\n(?P<body>(?:.*\n)*?)```$", re.MULTILINE)


@dataclass(frozen=True)
class File:
    name: str
    text: str


@dataclass(frozen=True)
class Command:
    command: str
    shown: tuple[str, ...]  #: lines; `…` stands for anything in a line, alone for any lines


def steps(page: str) -> Iterator[File | Command]:
    """The files and commands of a page, in its order."""
    for block in _BLOCK.finditer(page):
        info, body = block["info"], block["body"]
        if "file=" in info:
            yield File(info.partition("file=")[2], body)
        elif info == "console":
            for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                command, *shown = part.splitlines()
                yield Command(command, tuple(shown))


def pattern(shown: tuple[str, ...]) -> re.Pattern[str]:
    """What a session prints that looks as shown."""
    lines = [
        "(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + " *\n"
        for line in shown
    ]
    return re.compile("".join(lines))


def test_what_is_shown_leaves_open_only_what_differs() -> None:
    shown = pattern(("a", "…", "b … c", "…"))
    assert shown.fullmatch("a\nx\ny\nb 1 c\n")
    assert shown.fullmatch("a  \nb 1 c\nz\n")
    assert not shown.fullmatch("a\nb 1 d\n")
    assert not shown.fullmatch("z\na\nb 1 c\n")


def in_weather(shown: tuple[str, ...], told: str) -> tuple[re.Pattern[str], str]:
    """The same for a session in weather: `doctor` shows it; attempts did not start, uncounted."""
    lines = told.splitlines(keepends=True)
    shown = tuple(line.replace("attempt 1 (", "attempt … (") for line in shown)
    return pattern(shown), "".join(x for x in lines if not x.startswith("ok      weather:"))


def until_rules_are_in_force(home: Path) -> None:
    """Wait until the cloud's notification rules take effect, which takes minutes on AWS."""
    url = json.loads((home / "system.json").read_text())["endpoint"] + "/_local_cloud/weather"
    deadline_s = time.monotonic() + 60
    while True:
        with urllib.request.urlopen(url, timeout=10) as answer:
            if not json.load(answer)["late_rules"]:
                return
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A shell in an empty folder with `orchgpu` on its path; the system it starts ends with it."""
    folder, programs = tmp_path / "tutorial", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    program = programs / "orchgpu"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m orchgpu "$@"\n')
    program.chmod(0o755)
    foreign = ("AWS_", "LOCALSTACK_", "ORCHGPU_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    environment |= {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    environment["AWS_PROFILE"] = "no-such-profile"  # what runs here needs none
    environment |= weather.environment()
    run = subprocess.Popen(
        ["/bin/sh"],
        cwd=folder,
        env=environment,
        text=True,
        bufsize=1,
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield run
    finally:
        subprocess.run(
            [program, "down"], cwd=folder, env=environment, capture_output=True, check=False
        )
        run.kill()
        run.communicate()


def said(shell: subprocess.Popen[str], command: str) -> str:
    """What the command prints, standard error among it."""
    assert shell.stdin is not None
    assert shell.stdout is not None
    mark = "the end of this command"
    shell.stdin.write(f"{command}\necho '{mark}'\n")
    lines: list[str] = []
    for line in shell.stdout:
        if line.rstrip("\n") == mark:
            return "".join(lines)
        lines.append(line)
    raise AssertionError(f"the shell ended in {command!r}: {''.join(lines)}")


@pytest.mark.timeout(600)
def test_every_command_of_the_tutorial_does_what_it_shows(
    shell: subprocess.Popen[str], tmp_path: Path
) -> None:
    for step in steps(TUTORIAL.read_text()):
        if isinstance(step, File):
            (tmp_path / "tutorial" / step.name).write_text(step.text)
            continue
        told = said(shell, step.command)
        if weather.chosen() and step.command.startswith("orchgpu deploy"):
            # nothing repeats the lost events of a function without a queue
            until_rules_are_in_force(tmp_path / "tutorial" / ".orchgpu")
        wanted = pattern(step.shown)
        if weather.chosen():
            wanted, told = in_weather(step.shown, told)
        assert wanted.fullmatch(told), f"$ {step.command}\n{told}"

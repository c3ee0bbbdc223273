"""Pages whose commands are executed: their files and commands, and a shell that runs them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
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


@contextmanager
def shell_in(
    folder: Path, programs: Mapping[str, Sequence[str]], **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """A shell in an empty folder; the system that it starts there ends with it.

    `programs`: commands on its path, each with its command line.
    """
    work, binaries = folder / "work", folder / "bin"
    work.mkdir()
    binaries.mkdir()
    for name, line in programs.items():
        program = binaries / name
        program.write_text(f'#!/bin/sh\nexec {shlex.join(line)} "$@"\n')
        program.chmod(0o755)
    foreign = ("AWS_", "LOCALSTACK_", "ORCHGPU_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    environment |= {"PATH": f"{binaries}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    environment |= variables
    run = subprocess.Popen(
        ["/bin/sh"],
        cwd=work,
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
        down = [sys.executable, "-m", "orchgpu", "down"]
        subprocess.run(down, cwd=work, env=environment, capture_output=True, check=False)
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


#: What a command printed, and what the page shows, as both are to be compared.
Compared = Callable[[Command, str], tuple[str, tuple[str, ...]]]


def _as_printed(step: Command, told: str) -> tuple[str, tuple[str, ...]]:
    return told, step.shown


def perform(
    page: Path, shell: subprocess.Popen[str], folder: Path, compared: Compared = _as_printed
) -> None:
    """Write the files of a page and run its commands: each prints what the page shows."""
    for step in steps(page.read_text()):
        if isinstance(step, File):
            (folder / "work" / step.name).write_text(step.text)
            continue
        told, shown = compared(step, said(shell, step.command))
        assert pattern(shown).fullmatch(told), f"$ {step.command}\n{told}"

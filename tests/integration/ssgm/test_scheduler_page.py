"""The pages about the scheduler are true: every command is run, tables hold what the code holds.

After a change of what a command prints: `UPDATE_PAGE=1 pytest tests/integration/ssgm -k page`
writes the new output into the page; read the difference before committing it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from corekit.metrics import METRICS
from gpu_scheduler.daemon.access.keys import KeyRole
from gpu_scheduler.daemon.cli import main as ssgmd_command
from gpu_scheduler.daemon.config import SETTINGS
from gpu_scheduler.model import EndReason, HostState, LeaseState
from gpu_scheduler.parameters import NAMES
from gpu_scheduler.request_options import REQUEST_OPTIONS
from tests.integration.conftest import until
from tests.integration.ssgm.conftest import Unhurried, run_ssgm
from tests.integration.ssgm.played_host import PlayedHost
from tests.integration.ssgm.transcript import Names, Step, steps_of, updated

DOCS = Path(__file__).parents[3] / "docs"
#: In the order of their commands: the first key closes the daemon's endpoints.
PAGES = [
    DOCS / "explanation/scheduling.md",
    DOCS / "reference/ssgm.md",
    DOCS / "how-to/scheduler.md",
    DOCS / "how-to/keys-and-tls.md",
]
#: The page's daemon, as a reader would run it; each is called otherwise here.
SOCKET, HTTP, STATE, CONFIG = (
    "10.0.1.10:4700",
    "10.0.1.10:4780",
    "/var/lib/ssgmd",
    "/etc/orchgpu/ssgmd.toml",
)
A100 = {
    "kind": "cuda",
    "model": "NVIDIA A100 80GB PCIe",
    "memory_mib": 81408,
    "driver": "550.54.15",
    "runtime": "12.4",
}
T4 = {
    "kind": "cuda",
    "model": "Tesla T4",
    "memory_mib": 15000,
    "driver": "535.183.01",
    "runtime": "12.2",
}


class Reader:
    """Somebody who works through the page."""

    def __init__(self, folder: Path, page: str) -> None:
        self._programs = Unhurried(folder)
        self._names = Names()
        self._background: list[tuple[Step, subprocess.Popen[str]]] = []
        self._hosts: list[PlayedHost] = []
        config = folder / "ssgmd.toml"
        config.write_text(page.partition("```toml\n")[2].partition("```")[0])
        self._here = {STATE: str(folder / "state"), CONFIG: str(config)}

    def _serve(self) -> None:
        """The page's daemon and its two hosts."""
        ready = self._programs.ssgmd().wait_ready()
        self._here |= {SOCKET: ready["socket"], HTTP: ready["http"]}
        self._here[_classic(SOCKET)] = _classic(ready["socket"])
        os.environ["SSGM_SCHEDULER"] = ready["socket"]
        self._hosts += [
            PlayedHost(ready["socket"], "gpu-a", "10.0.1.21:4711", A100, A100),
            PlayedHost(ready["socket"], "gpu-b", "10.0.1.22:4711", T4),
        ]

    def close(self) -> None:
        """End all that runs; what the page does to the daemon's files comes after that."""
        for _, process in self._background:
            process.kill()
            process.communicate()
        for host in self._hosts:
            host.close()
        self._hosts.clear()
        for program in self._programs.started:
            program.kill()

    def run(self, step: Step) -> Iterator[tuple[Step, str | None]]:
        """The command, and those of the background that it ended; None: as the page says."""
        if not self._programs.started and not step.command.startswith("ssgmd"):
            self._serve()
        command = self._names.real(step.command)
        for there, here in self._here.items():
            command = command.replace(there, here)
        words = shlex.split(command)
        if step.background:
            self._background.append((step, self._started(words)))
            until(step.command, lambda: "empty" not in run_ssgm("queue").stdout)
            return
        yield step, self._names.difference(step.expected, self._told(words))
        if words[:2] == ["ssgm", "dealloc"] and self._background:
            waited, process = self._background.pop()  # the release served it
            out, _ = process.communicate(timeout=60)
            yield waited, self._names.difference(waited.expected, self._there(out))

    def _told(self, words: list[str]) -> str:
        match words:
            case ["ssgm", *arguments]:
                done = run_ssgm(*arguments)
                return self._there(done.stdout + done.stderr)
            case ["ssgmd", *arguments]:
                if "--state" in arguments:  # the first key would close the daemon's doors
                    self.close()
                return self._there(_ssgmd(arguments))
            case ["curl", "-s", url, *rest]:
                with urllib.request.urlopen(url, timeout=30) as answer:
                    lines = answer.read().decode().splitlines(keepends=True)
                return "".join(line for line in lines if not rest or rest[-1] in line)
        raise AssertionError(f"the page runs what nobody knows: {words}")

    def _started(self, words: list[str]) -> subprocess.Popen[str]:
        assert words[0] == "ssgm"
        return subprocess.Popen(
            [sys.executable, "-m", "gpu_scheduler.client", *words[1:]],
            env={**self._programs.environment, "SSGM_SCHEDULER": self._here[SOCKET]},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _there(self, printed: str) -> str:
        for there, here in self._here.items():
            printed = printed.replace(here, there)
        return printed


def _classic(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"-S {host} -P {port}"


def _ssgmd(arguments: list[str]) -> str:
    out = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        contextlib.suppress(SystemExit),
    ):
        ssgmd_command.main(arguments, prog_name="ssgmd")
    return out.getvalue()


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.setenv("SSGM_SCHEDULER", "")  # set when the daemon serves, undone at the end
    monkeypatch.setenv("ORCHGPU_TIME_SCALE", "1")
    someone = Reader(tmp_path, (DOCS / "how-to/scheduler.md").read_text())
    yield someone
    someone.close()


def test_every_command_prints_what_the_pages_show(reader: Reader) -> None:
    differences = []
    for path in PAGES:
        page, wrong = path.read_text(), []
        for step in steps_of(page):
            wrong += [(which, told) for which, told in reader.run(step) if told is not None]
        if os.environ.get("UPDATE_PAGE"):
            for step, told in sorted(wrong, key=lambda pair: -pair[0].line):
                page = updated(page, step, told.partition("\nand printed was\n")[2])
            path.write_text(page)
        differences += [f"{path.name}, {step}\n{told}" for step, told in wrong]
    assert not differences, "\n\n".join(differences)


def _words_in(heading: str) -> set[str]:
    """First cells of the tables below a heading of a page, without code marks."""
    pages = "\n## \n".join(page.read_text() for page in PAGES)
    text = pages.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert text, f"no heading {heading!r}"
    cells = re.findall(r"(?m)^\| (.+?) \|", text)
    return {cell.strip("`") for cell in cells}


def test_the_pages_know_every_word() -> None:
    assert {f"{word.short}`, `{word.flag}".lstrip("`, ") for word in REQUEST_OPTIONS} <= _words_in(
        "The options of a request"
    )
    states = {*HostState, *LeaseState, *EndReason}
    assert {str(state) for state in states} <= _words_in("States")
    assert set(NAMES) <= _words_in("Rules and limits")
    assert {role.value for role in KeyRole} <= _words_in("Roles")
    assert {setting.name for setting in SETTINGS} <= {
        name.strip("`") for cell in _words_in("Running it") for name in cell.split(", ")
    }


def test_the_pages_name_metrics_that_exist() -> None:
    pages = "".join(page.read_text() for page in PAGES)
    figures = set(re.findall(r"\b(?:ssgmd|DCGM_FI)_\w+", pages))
    assert len(figures) > 8
    names = {name for metric in METRICS.values() for name in metric.series}
    assert sorted(name for name in figures if name not in names) == []

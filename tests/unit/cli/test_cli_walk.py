"""All commands and sub-commands: help with an example, --json for data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import gpu_scheduler.client.cli
import gpu_scheduler.daemon.cli
import gpu_scheduler.monitor.cli
import local_cloud.bridge.cli
import local_cloud.server.cli
import remote_gpu.host.cli
from corekit.aio.output import BROKEN_PIPE_STATUS, UNWRITABLE_STATUS
from corekit.cli.program import INTERRUPTED_STATUS
from corekit.errors import EXIT_STATUS
from gpu_scheduler.daemon.log.writer import SUPERSEDED_STATUS
from orchgpu.cli.main import cli
from tests.commandline import run

#: What these print is itself a text for other programs, or a screen: a script, JSON, a log.
PRINT_NO_DATA = {
    "collect",
    "completion",
    "fdl export",
    "fdl schema",
    "fleet run",
    "iam",
    "orchestrate",
    "top",
    "web",
}


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        yield f"{path}{name}", command


ALL = dict(commands(cli))
LEAVES = [name for name, command in ALL.items() if not isinstance(command, click.Group)]


@pytest.mark.parametrize("name", LEAVES)
def test_help_has_an_example_that_can_be_parsed(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*name.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Usage: orchgpu {name}" in shown
    assert f"Example:  orchgpu {name.split()[0]}" in shown
    assert all(len(line) <= 100 for line in shown.splitlines())


@pytest.mark.parametrize("name", LEAVES)
def test_a_command_with_data_has_json_and_none_prompts(name: str) -> None:
    options = {word for one in ALL[name].params for word in one.opts}
    assert ("--json" in options) is (name not in PRINT_NO_DATA)
    assert not any(one.prompt for one in ALL[name].params if isinstance(one, click.Option))


@pytest.mark.parametrize("name", LEAVES)
def test_every_option_has_help(name: str) -> None:
    options = [one for one in ALL[name].params if isinstance(one, click.Option)]
    assert [one.opts for one in options if not one.help] == []


@pytest.mark.parametrize("name", ["", *(n for n in ALL if n not in LEAVES)])
def test_the_list_of_commands_is_whole_at_80_columns(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*name.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert [line for line in lines[1:] if line.endswith(("...", "…"))] == []  # after the usage


def test_every_command_stands_in_one_section_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    told = re.findall(r"^  (\w+)  +\S", shown.partition("Define and deploy:")[2], re.MULTILINE)
    assert sorted(told) == sorted(cli.commands)
    after = [line for line in shown.partition("Define and deploy:")[2].splitlines() if line]
    assert [line for line in after if line.startswith("   ")] == []  # none goes on in a second line


PROGRAMS = {
    "ssgm": gpu_scheduler.client.cli.commands,
    "ssgmd": gpu_scheduler.daemon.cli.main,
    "ssgm-monitor": gpu_scheduler.monitor.cli.main,
    "gpud": remote_gpu.host.cli.main,
    "cloud": local_cloud.server.cli.main,
    "bridge": local_cloud.bridge.cli.main,
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_option_of_every_program_has_help(program: str) -> None:
    command = PROGRAMS[program]
    found = dict(commands(command)) if isinstance(command, click.Group) else {}
    options = [
        option
        for one in (command, *found.values())
        for option in one.params
        if isinstance(option, click.Option)
    ]
    assert [option.opts for option in options if not option.help] == []


def test_every_exit_status_is_documented() -> None:
    table = (Path(__file__).parents[3] / "docs" / "reference/exit-codes.md").read_text()
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert documented == {
        0,
        INTERRUPTED_STATUS,
        BROKEN_PIPE_STATUS,
        UNWRITABLE_STATUS,
        SUPERSEDED_STATUS,
        *EXIT_STATUS.values(),
    }


def test_every_command_is_in_the_documents() -> None:
    files = (Path(__file__).parents[3] / "docs").rglob("*.md")
    told = "\n".join(file.read_text() for file in files)
    assert [name for name in LEAVES if f"orchgpu {name}" not in told] == []

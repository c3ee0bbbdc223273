"""Commands that are registered by their file."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from corekit.cli.groups import CommandGroup

COMMAND = '''"""Greet a {name}."""
import click

@click.command("{name}")
def command():
    """Greet a {name}, at length."""
    click.echo("hello {name}")
'''


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandGroup:
    """Two commands in one section."""
    package = tmp_path / f"greetings_{tmp_path.name}"
    package.mkdir()
    (package / "__init__.py").write_text('"""Greetings."""\n')
    for name in ("moon", "new_world"):
        text = COMMAND.format(name=name.replace("_", "-"))
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return CommandGroup("greet", packages=[package.name])


def test_a_file_is_a_command_in_the_section_of_its_folder(group: CommandGroup) -> None:
    shown = CliRunner().invoke(group, ["--help"]).output
    section = "Greetings:\n  moon       Greet a moon.\n  new-world  Greet a new-world.\n"
    assert shown.endswith(section)
    assert CliRunner().invoke(group, ["new-world"]).output == "hello new-world\n"


def test_only_the_command_that_is_used_is_imported(group: CommandGroup, tmp_path: Path) -> None:
    CliRunner().invoke(group, ["--help"])
    CliRunner().invoke(group, ["moon"])
    found = [
        name.rpartition(".")[2]
        for name in sys.modules
        if name.startswith(f"greetings_{tmp_path.name}.")
    ]
    assert found == ["moon"]


def test_a_mistyped_command_gets_a_hint(group: CommandGroup) -> None:
    assert "Did you mean 'moon'?" in CliRunner().invoke(group, ["mon"]).output


def test_tab_offers_commands_with_their_summaries(group: CommandGroup) -> None:
    context = click.Context(group)
    offered = {one.value: one.help for one in group.shell_complete(context, "n")}
    assert offered == {"new-world": "Greet a new-world."}

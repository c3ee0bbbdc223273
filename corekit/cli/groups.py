"""Groups of commands in sections; a command's module is imported when the command is used.

A command is one file in a folder of commands: its name is the file's (`_` becomes `-`), its line in
--help the first line of the module's docstring, its section that of the folder's `__init__.py`, and
the module's attribute `command` is the click command. Nothing else registers it.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

#: A summary is never cut: it is wrapped.
_WHOLE = 1000


class _NotImported(click.Command):
    """Stands for a command until it is used."""

    def __init__(self, package: str, file: Path) -> None:
        super().__init__(file.stem.replace("_", "-"), short_help=f"{_first_line(file)}.")
        self.module = f"{package}.{file.stem}"


def _first_line(file: Path) -> str:
    """The first line of the module's docstring, without importing it."""
    with file.open(encoding="utf-8") as text:
        return text.readline().strip().strip('"').removesuffix(".")


class CommandGroup(click.Group):
    """A group that lists its commands in sections, each with its whole summary."""

    def __init__(
        self,
        name: str | None = None,
        commands: MutableMapping[str, click.Command] | Sequence[click.Command] | None = None,
        packages: Sequence[str] = (),
        **attributes: Any,
    ) -> None:
        """`packages`: folders of commands, each of which is a section."""
        super().__init__(name, commands, **attributes)
        self.sections: dict[str, list[str]] = {}
        for package in packages:
            spec = importlib.util.find_spec(package)
            assert spec is not None, f"{package} is a folder of commands"
            folder = Path(str(spec.origin)).parent
            files = sorted(folder.glob("[!_]*.py"))
            title = _first_line(folder / "__init__.py")
            self.add_section(title, [_NotImported(package, file) for file in files])

    def add_section(self, title: str, commands: Sequence[click.Command]) -> None:
        """Add commands that are listed together, in this order."""
        for command in commands:
            self.add_command(command)
        self.sections[title] = [command.name or "" for command in commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, whose module is imported now."""
        command = super().get_command(ctx, cmd_name)
        if not isinstance(command, _NotImported):
            return command
        imported: click.Command = importlib.import_module(command.module).command
        imported.short_help = command.short_help
        self.add_command(imported, cmd_name)
        return imported

    def summary(self, name: str) -> str:
        """The line of a command in the list."""
        return self.commands[name].get_short_help_str(_WHOLE)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, by section."""
        for title, names in (self.sections or {"Commands": self.list_commands(ctx)}).items():
            with formatter.section(title):
                formatter.write_dl([(name, self.summary(name)) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands, then of options; no command is imported for it."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [CompletionItem(name, help=self.summary(name)) for name in names] + options

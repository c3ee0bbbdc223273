"""Groups of commands in sections; a command's module is imported when the command is used.

A command is one file in a folder of commands: its name is the file's (`_` becomes `-`), its line in
--help the first line of the module's docstring, its section that of the folder's `__init__.py`, and
the module's attribute `command` is the click command. Nothing else registers it.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem

#: A summary is never cut: it is wrapped.
_WHOLE = 1000


class CommandModules(MutableMapping[str, click.Command]):
    """The commands of some folders by name; each module is imported on first use."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._commands: dict[str, click.Command] = {}
        self._modules: dict[str, str] = {}
        self.summaries: dict[str, str] = {}
        self.sections: dict[str, list[str]] = {}
        for package in packages:
            self._find(package)

    def _find(self, package: str) -> None:
        spec = importlib.util.find_spec(package)
        assert spec is not None, f"{package} is a folder of commands"
        folder = Path(str(spec.origin)).parent
        names = self.sections.setdefault(_first_line(folder / "__init__.py"), [])
        for file in sorted(folder.glob("[!_]*.py")):
            name = file.stem.replace("_", "-")
            self._modules[name] = f"{package}.{file.stem}"
            self.summaries[name] = _first_line(file) + "."
            names.append(name)

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._commands:
            found: click.Command = importlib.import_module(self._modules[name]).command
            self._commands[name] = found
        return self._commands[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._commands[name] = command

    def __delitem__(self, name: str) -> None:
        del self._commands[name]

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys((*self._modules, *self._commands))

    def __len__(self) -> int:
        return len(self._modules | self._commands)


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
        **attributes: object,
    ) -> None:
        super().__init__(name, commands, **attributes)  # type: ignore[arg-type]  # click's own
        self.sections: dict[str, list[str]] = getattr(commands, "sections", {})
        self._summaries: dict[str, str] = getattr(commands, "summaries", {})

    def add_section(self, title: str, commands: Sequence[click.Command]) -> None:
        """Add commands that are listed together, in this order."""
        for command in commands:
            self.add_command(command)
        self.sections[title] = [command.name or "" for command in commands]

    def summary(self, name: str) -> str:
        """The line of a command in the list."""
        return self._summaries.get(name) or self.commands[name].get_short_help_str(_WHOLE)

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

"""Options generated from the fields of a settings dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import click
import pytest
from click.testing import CliRunner

from corekit.cli.settings import Option, options_from, settings_of


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Every kind of field."""

    name: Annotated[str, Option("Its name.")]
    paths: Annotated[tuple[str, ...], Option("Paths.", metavar="PATH")] = ()
    folder: Annotated[Path | None, Option("A folder.")] = None
    colour: Annotated[Colour, Option("Its colour.")] = Colour.RED
    size: Annotated[float, Option("Its size.", range=(0, 1))] = 0.5
    count: Annotated[int, Option("How many.", range=(1, 9))] = 1
    kind: Annotated[str | None, Option("Its kind.", choices=("a", "b"))] = None
    loud: Annotated[bool, Option("Loud.")] = False
    log: Annotated[bool, Option("Log.")] = True


def read(*arguments: str) -> Options:
    found: list[Options] = []

    @click.command
    @options_from(Options)
    def command(options: Options) -> None:
        found.append(options)

    command.main(arguments, standalone_mode=False)
    return found[0]


def test_without_arguments_every_field_has_its_default() -> None:
    assert read("--name", "n") == Options(name="n")


def test_every_field_is_read_as_its_type() -> None:
    given = (
        "--name n --paths a --paths b --folder f --colour blue --size 1 --count 3"
        " --kind b --loud --no-log"
    )
    assert read(*given.split()) == Options(
        name="n",
        paths=("a", "b"),
        folder=Path("f"),
        colour=Colour.BLUE,
        size=1.0,
        count=3,
        kind="b",
        loud=True,
        log=False,
    )


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "--name n --colour green",
        "--name n --size 2",
        "--name n --kind c",
        "--name n --count 10",
        "--name n --count 1.5",
    ],
)
def test_a_wrong_value_is_refused(wrong: str) -> None:
    with pytest.raises(click.UsageError):
        read(*wrong.split())


def test_help_lists_the_fields_in_their_order_with_their_defaults() -> None:
    @click.command
    @options_from(Options)
    def command(options: Options) -> None:
        """Not called."""

    shown = CliRunner().invoke(command, ["--help"]).output
    places = [shown.index(setting.flag) for setting in settings_of(Options)]
    assert places == sorted(places)
    assert "Its colour. [default: red]" in " ".join(shown.split())

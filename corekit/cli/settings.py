"""Command-line options generated from the fields of a settings dataclass.

A field is declared once: `listen: Annotated[str, Option("Its address.")] = "127.0.0.1:0"`. A `bool`
is a flag, a tuple a repeatable option, an enum a choice, a `Path` a path; a field without a default
is a required option.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import click

from corekit.suggest import did_you_mean

T = TypeVar("T")
#: A click command's function, which takes its options by name.
Function = Callable[..., object]


class Choice(click.Choice[str]):
    """click's choice; the message of a wrong value ends with the nearest known one."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        """As click words it."""
        known = [str(choice) for choice in self.choices]
        text = str(value) if self.case_sensitive else str(value).upper()
        names = known if self.case_sensitive else [name.upper() for name in known]
        message = super().get_invalid_choice_message(value, ctx)
        return message.removesuffix(".") + did_you_mean(text, names)


@dataclass(frozen=True, slots=True)
class Option:
    """Annotation of a field."""

    help: str
    metavar: str | None = None
    range: tuple[float, float] | None = None
    choices: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One option of a program."""

    name: str
    type: Any  #: of the field
    about: Option
    default: Any = None
    required: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def option(self, *, resolved_later: bool = False) -> click.Option:
        """The option; `resolved_later`: the value is None when the option is not given."""
        has_text = self.default not in (None, "", (), True, False)
        shown = f" [default: {self.default}]" if has_text else ""
        names = f"{self.flag}/--no-{self.flag[2:]}" if self.default is True else self.flag
        default = self.default.value if self._is_enum and self.default else self.default
        given: dict[str, Any] = (
            {} if self.required else {"default": None if resolved_later else default}
        )
        return click.Option(
            [names, self.name],
            type=self._type,
            is_flag=self.type is bool or None,
            multiple=typing.get_origin(self.type) is tuple,
            required=self.required,
            metavar=self.about.metavar,
            help=self.about.help + shown,
            **given,
        )

    def value(self, given: object) -> object:
        """The field's value, from the option's value."""
        return self.type(given) if self._is_enum else given

    @property
    def _is_enum(self) -> bool:
        return isinstance(self.type, type) and issubclass(self.type, Enum)

    @property
    def _type(self) -> click.ParamType[Any] | None:
        if self._is_enum:
            return Choice([member.value for member in self.type])
        if self.about.choices:
            return Choice(self.about.choices)
        if Path in (self.type, *typing.get_args(self.type)):
            return click.Path(path_type=Path)
        if self.about.range is None:
            return None
        least, most = self.about.range
        if self.type is int:
            return click.IntRange(int(least), int(most))
        return click.FloatRange(least, most)


def settings_of(cls: type[Any]) -> tuple[Setting, ...]:
    """The settings of a dataclass, in its order."""
    types = typing.get_type_hints(cls, include_extras=True)
    settings = []
    for field in dataclasses.fields(cls):
        kind, about = typing.get_args(types[field.name])
        required = field.default is dataclasses.MISSING
        default = None if required else field.default
        settings.append(
            Setting(name=field.name, type=kind, about=about, default=default, required=required)
        )
    return tuple(settings)


def options_from(cls: type[T]) -> Callable[[Function], Function]:
    """An option for every field of the dataclass; the command gets an instance, `options`."""
    settings = settings_of(cls)

    def decorate(command: Function) -> Function:
        @functools.wraps(command)
        def call(**given: object) -> object:
            values = {each.name: each.value(given.pop(each.name)) for each in settings}
            return command(options=cls(**values), **given)

        declared: list[click.Parameter] = vars(call).setdefault("__click_params__", [])
        declared += [each.option() for each in reversed(settings)]
        return call

    return decorate

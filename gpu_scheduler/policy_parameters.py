"""Parameters that a queue policy declares: `ssgm set policy.NAME.PARAMETER VALUE`. Pure."""

from __future__ import annotations

import math
from typing import Protocol

from corekit.errors import invalid
from corekit.values import Value

#: A value on the wire or on a command line.
Given = str | float | int | bool | None

_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class PolicyParameter(Value):
    """One parameter of a policy. The type of its default is the type of its values."""

    name: str
    meaning: str
    default: str | float | bool
    choices: tuple[str, ...] = ()  #: of a text
    at_least: float = 0.0  #: of a number
    at_most: float = 1e9

    @property
    def valid(self) -> str:
        """The valid values as text."""
        if isinstance(self.default, bool):
            return "true, false"
        if isinstance(self.default, str):
            return ", ".join(self.choices)
        return f"{self.at_least:g}…{self.at_most:g}"

    def read(self, given: Given) -> str | float | bool:
        """The value in the type of the parameter. Raises INVALID with the valid values."""
        if isinstance(self.default, bool):
            return self._flag(given)
        return self._text(given) if isinstance(self.default, str) else self._number(given)

    def _flag(self, given: Given) -> bool:
        found = given if isinstance(given, bool) else _FLAGS.get(str(given).strip().lower())
        if found is None:
            raise invalid(f"{given!r} is not one of {', '.join(_FLAGS)}")
        return found

    def _text(self, given: Given) -> str:
        if not isinstance(given, str) or given not in self.choices:
            raise invalid(f"{given!r} is not one of {', '.join(self.choices)}")
        return given

    def _number(self, given: Given) -> float:
        number = finite(given)
        if not self.at_least <= number <= self.at_most:  # NaN lies nowhere
            raise invalid(f"{given!r} is not a number in {self.at_least:g}…{self.at_most:g}")
        return number


class Parameterised(Protocol):
    """A policy, as far as its parameters are concerned."""

    @property
    def parameters(self) -> tuple[PolicyParameter, ...]: ...


def finite(given: Given) -> float:
    """The number that was given; NaN for anything else."""
    try:
        number = math.nan if isinstance(given, bool) or given is None else float(given)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan

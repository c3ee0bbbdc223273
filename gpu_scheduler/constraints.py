"""Versions of a device, and constraints on them: `onnxruntime>=1.10,<1.13`, `driver==550.54.15`.

Versions of drivers and runtimes are compared as numbers: 550.54.15 > 550.9, 12.0 = 12.

A constraint is a name and a version specifier of Python packages (PEP 440): `==` exact, `>=` and
`>` minimum, `<=` and `<` maximum, `!=` and `~=`; several are joined by commas. The names are those
of libraries that the host reports for the kind of a device, `driver` and `runtime`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

DRIVER, RUNTIME = "driver", "runtime"
CONSTRAINTS_MAX = 32  #: of one request
_CHARACTERS_MAX = 200
_CONSTRAINT = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*([<>=!~].*)", re.ASCII)

#: Versions of one device by name, sorted.
Versions = tuple[tuple[str, str], ...]


class Constraint(NamedTuple):
    """The accepted versions of one library, of the driver, or of the runtime."""

    name: str
    specifier: str  #: `>=1.10,<1.13`

    def __str__(self) -> str:
        return f"{self.name}{self.specifier}"


@lru_cache(maxsize=1024)
def parse_constraint(text: str) -> Constraint | None:
    """The constraint that a text stands for; None for a text that is not a constraint."""
    # Here, because it takes 30 ms of every command, most of which name no version.
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    match = _CONSTRAINT.fullmatch(text)
    if match is None or len(text) > _CHARACTERS_MAX:
        return None
    try:
        specifiers = SpecifierSet(match[2])
    except InvalidSpecifier:
        return None
    given = dict.fromkeys("".join(part.split()) for part in match[2].split(",") if part.strip())
    return Constraint(canonical(match[1]), ",".join(given)) if specifiers else None


def constraint_problem(text: str) -> str | None:
    """The problem with the text of a constraint; None for a valid one."""
    if parse_constraint(text) is not None:
        return None
    return f"{text!r:.80} is not a name with versions, such as onnxruntime>=1.10,<1.13"


def canonical(name: str) -> str:
    """The one spelling of a library's name (PEP 503): `Onnx_Runtime` is `onnx-runtime`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def of_libraries(requires: Iterable[str]) -> tuple[str, ...]:
    """The constraints without those on drivers and runtimes."""
    parsed = ((text, parse_constraint(text)) for text in requires)
    return tuple(t for t, one in parsed if one is not None and one.name not in (DRIVER, RUNTIME))


@lru_cache(maxsize=4096)
def first_unmet(requires: tuple[str, ...], versions: Versions) -> Constraint | None:
    """The first constraint that these versions do not meet; an unknown version meets none."""
    known = dict(versions)
    for text in requires:
        constraint = parse_constraint(text)
        if constraint is None:  # a form of a newer version, which no device here is known to meet
            return Constraint(text, "")
        if not _allows(constraint.specifier, known.get(constraint.name, "")):
            return constraint
    return None


def _allows(specifier: str, version: str) -> bool:
    from packaging.specifiers import SpecifierSet  # as in `parse_constraint`
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


# ---------------------------------------------------------------------- drivers and runtimes

#: NVIDIA's versions have three numbers, OpenCL's two.
_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,7}")

Version = tuple[int, ...]  #: () = unknown, less than every other


def is_version(text: str) -> bool:
    """True for numbers separated by dots, the form of a minimum version."""
    return _VERSION.fullmatch(text) is not None


@lru_cache(maxsize=1024)
def parse_version(text: str) -> Version:
    """The numbers at the beginning of `text` (`"3.0 PoCL 5.0"` is 3.0), without trailing zeros.

    A text that does not begin with a number is an unknown version, `()`.
    """
    match = _VERSION.match(text)
    numbers = [int(part) for part in match[0].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def dotted(version: Version) -> str:
    """The text of a version; "" = unknown."""
    return ".".join(map(str, version))

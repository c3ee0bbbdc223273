"""Parameters of jobs as people give them."""

from __future__ import annotations

from collections.abc import Iterable

from contract.parameters import set_text
from corekit.errors import invalid


def named_values(given: Iterable[str], option: str) -> dict[str, str]:
    """Texts `NAME=VALUE` by name. Raises INVALID. `option`: its name, for errors."""
    found: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals:
            raise invalid(f"{option} {one!r:.100}: write NAME=VALUE")
        if name in found:
            raise invalid(f"{option} {name:.70}: given twice")
        found[name] = value
    return found


def parameters_text(given: Iterable[str], option: str) -> str:
    """Texts `NAME=VALUE` as `contract.parameters.set_text` writes them. Raises INVALID."""
    try:
        return set_text(named_values(given, option))
    except ValueError as error:
        raise invalid(f"{option}: {error}") from None

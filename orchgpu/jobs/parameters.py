"""Parameters of jobs as people give them."""

from __future__ import annotations

from collections.abc import Iterable

from contract.parameters import set_text
from corekit.errors import invalid


def parameters_text(given: Iterable[str], option: str) -> str:
    """Texts `NAME=VALUE` as `contract.parameters.set_text` writes them. Raises INVALID.

    `option`: its name, for errors.
    """
    found: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals:
            raise invalid(f"{option} {one!r:.100}: write NAME=VALUE")
        if name in found:
            raise invalid(f"{option} {name:.70}: given twice")
        found[name] = value
    try:
        return set_text(found)
    except ValueError as error:
        raise invalid(f"{option}: {error}") from None

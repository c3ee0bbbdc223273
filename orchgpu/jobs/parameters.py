"""Parameters of jobs as people give them."""

from __future__ import annotations

from collections.abc import Iterable

from contract import parameters
from corekit.errors import invalid


def named_values(given: Iterable[str], option: str) -> dict[str, str]:
    """Texts `NAME=VALUE` by name. Raises INVALID. `option`: its name, for errors."""
    try:
        return parameters.named_values(given)
    except ValueError as error:
        raise invalid(f"{option} {error}") from None


def parameters_text(given: Iterable[str], option: str) -> str:
    """Texts `NAME=VALUE` as `contract.parameters.set_text` writes them. Raises INVALID."""
    named = named_values(given, option)
    try:
        return parameters.set_text(named)
    except ValueError as error:
        raise invalid(f"{option}: {error}") from None
